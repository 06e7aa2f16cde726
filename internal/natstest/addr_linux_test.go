package natstest

import (
	"net"
	"testing"
)

// An address that is held is listened on again and again by who names it, and is given to nobody who names none.
func TestAHeldAddressIsNobodyElses(t *testing.T) {
	held := FreeAddr(t)
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
	for range 500 { // the system goes through its ports from a place of its own: a free one comes up sooner or later
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if l.Addr().String() == held {
			t.Fatal("given to somebody else")
		}
	}
}
