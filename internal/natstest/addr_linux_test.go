package natstest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// An address that is held is listened on again and again by who names it, and is given to nobody who asks for any.
func TestAHeldAddressIsNobodyElses(t *testing.T) {
	held, release, err := HoldAddr()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for range 3 {
		l, err := net.Listen("tcp", held)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", held)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		_ = l.Close()
	}
	if conn, err := net.Dial("tcp", held); err == nil {
		_ = conn.Close()
		t.Error("somebody listens at an address that is only held")
	}
	if l, err := anyPortOf(t, held); err == nil {
		_ = l.Close()
		t.Error("given to somebody else")
	}
	release()
	l, err := anyPortOf(t, held)
	if err != nil {
		t.Fatalf("not given to anybody once it is released: %v", err)
	}
	_ = l.Close()
}

// anyPortOf listens on any port that the system has, of which there is one only: that of addr.
func anyPortOf(t *testing.T, addr string) (net.Listener, error) {
	t.Helper()
	const localPortRange = 51 // IP_LOCAL_PORT_RANGE of linux/in.h, since Linux 6.3: the lowest port, and the highest above it
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var set error
		err := conn.Control(func(fd uintptr) {
			set = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, localPortRange, port|port<<16)
		})
		return errors.Join(err, set)
	}}
	l, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if errors.Is(err, syscall.ENOPROTOOPT) {
		t.Skip("this kernel cannot be asked for one port of all")
	}
	return l, err
}
