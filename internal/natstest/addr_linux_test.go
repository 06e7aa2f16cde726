package natstest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// A program can listen on a held address by its number, again and again. A program that asks
// the system for any free port never gets it.
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
		t.Error("the held port was given to another listener")
	}
	release()
	l, err := anyPortOf(t, held)
	if err != nil {
		t.Fatalf("no listener gets the port after its release: %v", err)
	}
	_ = l.Close()
}

// anyPortOf asks the system for any free port, within a range that has only the port of addr.
func anyPortOf(t *testing.T, addr string) (net.Listener, error) {
	t.Helper()
	// The option IP_LOCAL_PORT_RANGE of linux/in.h exists since Linux 6.3. Its value has the
	// lowest port in the lower 16 bits and the highest port in the upper 16 bits.
	const localPortRange = 51
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
