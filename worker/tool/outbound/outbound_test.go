package outbound

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"
)

func TestRefused(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::127.0.0.1",
		"169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe",
		"64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00:808:808", "::ffff:0:a9fe:a9fe", "64:ff9b::7f00:1", "2002:a9fe:a9fe::", "2002:7f00:1::1", "::a9fe:a9fe",
		"0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "239.1.1.1", "ff02::1", "255.255.255.255", "240.0.0.1",
		"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "2001::1", "fec0::1",
	} {
		if why := Refused(netip.MustParseAddr(address), false); why == "" {
			t.Errorf("%s is let through", address)
		}
	}
	for _, address := range []string{
		"10.0.0.1", "192.168.1.1", "172.16.0.1", "8.8.8.8", "fd12:3456::1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808",
	} {
		if why := Refused(netip.MustParseAddr(address), false); why != "" {
			t.Errorf("%s is refused: %s", address, why)
		}
	}
}

func TestLoopbackCanBeAllowed(t *testing.T) {
	for address, allowed := range map[string]bool{
		"127.0.0.1": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": false, "169.254.169.254": false, "fe80::1": false,
	} {
		if why := Refused(netip.MustParseAddr(address), true); (why == "") != allowed {
			t.Errorf("%s: got %q, want allowed %t", address, why, allowed)
		}
	}
}

// The address is checked when the connection is made. So spellings of an address that only a
// resolver understands, and names that lead to the address, are refused too. A resolver may
// read a spelling as another host, where nothing listens.
func TestNamesAreCheckedWhereTheyLead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the request arrived")
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	client := &http.Client{Transport: Transport(Config{})}
	for host, certain := range map[string]bool{
		"127.0.0.1": true, "localhost": true, "[::ffff:127.0.0.1]": true,
		"2130706433": false, "0x7f.1": false, "0177.0.0.1": false, "127.1": false, "0": false,
	} {
		ctx := t.Context()
		if !certain {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Second) // the resolver may be slow
			defer cancel()
		}
		request, err := http.NewRequestWithContext(ctx, "GET", "http://"+host+":"+port, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
			t.Errorf("%s: a request was sent", host)
			continue
		}
		var refused *RefusedError
		if certain && !errors.As(err, &refused) {
			t.Errorf("%s: %v, want that the address is refused", host, err)
		}
	}
}
