//go:build !linux

package natstest

import "net"

// HoldAddr is like [FreeAddr], but the caller keeps the address until it calls release. On
// this system nothing holds the address: it was only free at the time of the call.
func HoldAddr() (addr string, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), func() {}, l.Close()
}
