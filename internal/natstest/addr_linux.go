package natstest

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// HoldAddr is like [FreeAddr], but the caller keeps the address until it calls release.
//
// A socket that is bound to the address and does not listen holds it. Linux lets other programs
// listen on this port if they name it and both sides allow the reuse of addresses, as Go does for
// every listener. It does not choose a bound port for a program that asks for any free one.
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
