package enter

import (
	"syscall"
	"unsafe"
)

// Numbers of system calls, the same on every architecture of Go, and options of prctl. Package
// syscall does not have them.
const (
	sysOpenat2       = 437
	sysMountSetattr  = 442
	sysCreateRuleset = 444
	sysAddRule       = 445
	sysRestrictSelf  = 446

	prCapbsetDrop      = 24
	prSetNoNewPrivs    = 38
	prCapAmbient       = 47
	prCapAmbientClear  = 4
	seccompModeFilter  = 2
	rulePathBeneath    = 1
	rulePort           = 2
	capabilityVersion3 = 0x20080522

	oPath             = 0x200000
	resolveNoLinks    = 4
	atFDCWD           = -100
	atEmptyPath       = 0x1000
	atRecursive       = 0x8000
	mountAttrReadOnly = 1
	// Devices on the mount do not work.
	mountAttrNoDevices = 4
)

func prctl(option int, a, b uintptr) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, uintptr(option), a, b, 0, 0, 0)
	return errno
}

// mapUser maps one user and one group of the parent namespace to the same ids in the new
// namespace.
func mapUser(uid, gid uint64) syscall.Errno {
	for _, f := range [][2]string{
		{"/proc/self/setgroups", "deny"},
		{"/proc/self/uid_map", decimal(uid) + " " + decimal(uid) + " 1"},
		{"/proc/self/gid_map", decimal(gid) + " " + decimal(gid) + " 1"},
	} {
		if errno := writeFile(f[0], f[1]); errno != 0 {
			return errno
		}
	}
	return 0
}

func writeFile(name, text string) syscall.Errno {
	fd, err := syscall.Open(name, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err.(syscall.Errno)
	}
	defer syscall.Close(fd)
	if _, err := syscall.Write(fd, []byte(text)); err != nil {
		return err.(syscall.Errno)
	}
	return 0
}

func mount(source, target, kind string, flags uintptr, data string) syscall.Errno {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return err.(syscall.Errno)
	}
	return 0
}

// openExactly opens a path without following links. Inside a writable folder, another command
// may have replaced a folder by a link.
func openExactly(path string) (int, syscall.Errno) {
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return -1, syscall.EINVAL
	}
	how := struct{ flags, mode, resolve uint64 }{oPath | syscall.O_CLOEXEC, 0, resolveNoLinks}
	dirfd := atFDCWD
	fd, _, errno := syscall.RawSyscall6(sysOpenat2, uintptr(dirfd), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
	if errno == syscall.ENOSYS || errno == syscall.EPERM { // EPERM: an outer sandbox refuses
		return openStepwise(path)
	}
	return int(fd), errno
}

// openStepwise does the work of openExactly without openat2.
func openStepwise(path string) (int, syscall.Errno) {
	at, err := syscall.Open("/", oPath|syscall.O_CLOEXEC, 0)
	for i := 0; err == nil && i < len(path); {
		end := i
		for end < len(path) && path[end] != '/' {
			end++
		}
		if part := path[i:end]; part != "" {
			var next int
			next, err = syscall.Openat(at, part, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
			_ = syscall.Close(at)
			at = next
			var st syscall.Stat_t
			if err == nil {
				err = syscall.Fstat(at, &st)
			}
			if err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
				err = syscall.ELOOP
			}
		}
		i = end + 1
	}
	if err != nil {
		if at >= 0 {
			_ = syscall.Close(at)
		}
		return -1, err.(syscall.Errno)
	}
	return at, 0
}

// bind makes a path a mount point.
func bind(path string) syscall.Errno {
	fd, errno := openExactly(path)
	if errno != 0 {
		return errno
	}
	defer syscall.Close(fd)
	same := "/proc/self/fd/" + decimal(uint64(fd))
	return mount(same, same, "", syscall.MS_BIND|syscall.MS_REC, "")
}

// rebind makes a path a mount point, and makes it read-only or writable.
func rebind(path string, readOnly bool) syscall.Errno {
	if errno := bind(path); errno != 0 {
		return errno
	}
	errno := setReadOnly(path, readOnly, atRecursive)
	if errno == syscall.EPERM && !readOnly {
		// This user may not be allowed to make a mount below the path writable. Change only
		// the mount itself.
		errno = setReadOnly(path, readOnly, 0)
	}
	return errno
}

// device makes a device a mount point on which the device works.
func device(path string) syscall.Errno {
	if errno := bind(path); errno != 0 {
		return errno
	}
	errno := setMount(path, 0, mountAttrNoDevices, 0)
	if errno == syscall.EPERM { // the device did not work before either
		return 0
	}
	return errno
}

// setReadOnly makes a mount read-only or writable. With atRecursive, it also changes all
// mounts below it.
func setReadOnly(path string, readOnly bool, flags uintptr) syscall.Errno {
	if readOnly {
		return setMount(path, mountAttrReadOnly, 0, flags)
	}
	return setMount(path, 0, mountAttrReadOnly, flags)
}

// setMount sets and clears attributes of a mount. With atRecursive, it also does so for all
// mounts below it.
func setMount(path string, set, clear uint64, flags uintptr) syscall.Errno {
	fd, errno := openExactly(path)
	if errno != 0 {
		return errno
	}
	defer syscall.Close(fd)
	attr := struct{ set, clear, propagation, userns uint64 }{set: set, clear: clear}
	var empty byte
	_, _, errno = syscall.RawSyscall6(sysMountSetattr, uintptr(fd), uintptr(unsafe.Pointer(&empty)), atEmptyPath|flags,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	return errno
}

// hide covers a path with an empty file or folder.
func hide(path string) syscall.Errno {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return err.(syscall.Errno)
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return mount("tmpfs", path, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_RDONLY, "mode=0555,size=4096")
	}
	return mount("/dev/null", path, "", syscall.MS_BIND, "")
}

func limit(resource int, bound uint64) syscall.Errno {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(resource, &now); err != nil {
		return err.(syscall.Errno)
	}
	bound = min(bound, now.Max)
	if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: bound, Max: bound}); err != nil {
		return err.(syscall.Errno)
	}
	return 0
}

// dropCaps drops every capability except those in keep. Programs that root execs later do not
// get them back.
func dropCaps(keep uint64) syscall.Errno {
	for c := range uintptr(64) {
		if keep&(1<<c) != 0 {
			continue
		}
		errno := prctl(prCapbsetDrop, c, 0)
		if errno == syscall.EINVAL { // c is above the kernel's last capability
			break
		}
		if errno == syscall.EPERM { // there is nothing to drop
			break
		}
		if errno != 0 {
			return errno
		}
	}
	// A kernel before 4.3 has no ambient capabilities, so an error of this call is ignored.
	_ = prctl(prCapAmbient, prCapAmbientClear, 0)
	hdr := struct {
		version uint32
		pid     int32
	}{version: capabilityVersion3}
	var data [2]struct{ effective, permitted, inheritable uint32 }
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data)), 0); errno != 0 {
		return errno
	}
	for i := range data {
		kept := uint32(keep >> (32 * i))
		data[i].effective &= kept
		data[i].permitted &= kept
		data[i].inheritable = 0
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data)), 0)
	return errno
}

// newRuleset makes a Landlock ruleset with these attributes.
func (h *helper) newRuleset(attributes string) syscall.Errno {
	b := []byte(attributes)
	fd, _, errno := syscall.RawSyscall(sysCreateRuleset, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	if errno == 0 {
		h.ruleset = int(fd)
	}
	return errno
}

// allow adds a rule to the ruleset. If the path is a file, it leaves out rights that only
// folders have. If links is set, it follows links.
func (h *helper) allow(s Step, links bool) syscall.Errno {
	fd, errno := openExactly(s.Path)
	if errno == syscall.ELOOP && links {
		var err error
		if fd, err = syscall.Open(s.Path, oPath|syscall.O_CLOEXEC, 0); err != nil {
			return err.(syscall.Errno)
		}
		errno = 0
	}
	if errno != 0 {
		return errno
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err.(syscall.Errno)
	}
	rights := s.A
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		rights &= s.B
	}
	if rights == 0 {
		return 0
	}
	var rule [12]byte // packed: the rights, and the descriptor
	copy(rule[:], number(nil, rights, 8))
	copy(rule[8:], number(nil, uint64(fd), 4))
	_, _, errno = syscall.RawSyscall6(sysAddRule, uintptr(h.ruleset), rulePathBeneath, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	return errno
}

func (h *helper) restrict() syscall.Errno {
	_, _, errno := syscall.RawSyscall(sysRestrictSelf, uintptr(h.ruleset), 0, 0)
	_ = syscall.Close(h.ruleset)
	return errno
}

// filter installs a seccomp filter on this thread.
func filter(program string) syscall.Errno {
	b := []byte(program)
	if len(b) == 0 {
		return syscall.EINVAL
	}
	prog := struct {
		count uint16
		code  *byte
	}{uint16(len(b) / 8), &b[0]}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, syscall.PR_SET_SECCOMP, seccompModeFilter, uintptr(unsafe.Pointer(&prog)), 0, 0, 0)
	return errno
}
