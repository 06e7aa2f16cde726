package enter

import (
	"syscall"
	"unsafe"
)

const (
	siocGIFFlags = 0x8913
	siocSIFFlags = 0x8914
	flagUp       = 1
)

// listen opens a port in the network namespace of this process and passes it to the worker.
// The worker accepts connections there although it is in another namespace. The socket to the
// worker is the descriptor after the status pipe.
func (h *helper) listen(port int) syscall.Errno {
	worker := h.status + 1
	defer syscall.Close(worker)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err.(syscall.Errno)
	}
	defer syscall.Close(fd)
	if errno := loopbackUp(fd); errno != 0 {
		return errno
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err.(syscall.Errno)
	}
	if err := syscall.Listen(fd, 128); err != nil {
		return err.(syscall.Errno)
	}
	if err := syscall.Sendmsg(worker, []byte{0}, syscall.UnixRights(fd), nil, 0); err != nil {
		return err.(syscall.Errno)
	}
	return 0
}

// loopbackUp starts the loopback interface. In a new network namespace it is down.
func loopbackUp(fd int) syscall.Errno {
	var request struct { // struct ifreq
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "lo")
	if _, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), siocGIFFlags, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	request.flags |= flagUp
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), siocSIFFlags, uintptr(unsafe.Pointer(&request)))
	return errno
}

// allowPort adds a rule about a TCP port to the ruleset.
func (h *helper) allowPort(rights, port uint64) syscall.Errno {
	rule := [2]uint64{rights, port}
	_, _, errno := syscall.RawSyscall6(sysAddRule, uintptr(h.ruleset), rulePort, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	return errno
}
