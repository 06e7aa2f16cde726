package natstest

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// HoldAddr is like [FreeAddr], but the caller keeps the address until it calls release.
//
// A socket that is bound to the address and does not listen holds it. Linux never gives a
// bound port to a program that asks for any free port. A program that names the port can still
// listen on it, if both sockets allow the reuse of addresses. Go does so for every listener.
func HoldAddr() (addr string, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			_ = syscall.Close(fd)
		}
	}()
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return "", nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", nil, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return "", nil, os.NewSyscallError("getsockname", err)
	}
	return fmt.Sprint("127.0.0.1:", name.(*syscall.SockaddrInet4).Port), sync.OnceFunc(func() { _ = syscall.Close(fd) }), nil
}
