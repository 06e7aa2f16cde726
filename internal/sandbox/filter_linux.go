package sandbox

import (
	"encoding/binary"
	"slices"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused lists system calls that no command needs, and that reach into other processes or the
// kernel. They fail with EPERM. Names that this architecture does not have are left out.
var refused = []string{
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_getfd",
	"mount", "umount", "umount2", "pivot_root", "chroot", "mount_setattr", "move_mount", "open_tree", "open_tree_attr",
	"fsopen", "fsconfig", "fsmount", "fspick", "setns", "swapon", "swapoff", "quotactl", "quotactl_fd", "acct",
	"open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark", "lookup_dcookie",
	"bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key",
	"init_module", "finit_module", "delete_module", "create_module", "kexec_load", "kexec_file_load", "reboot",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime", "sethostname", "setdomainname", "syslog",
	"iopl", "ioperm", "modify_ldt", "vm86", "vm86old", "nfsservctl", "uselib", "_sysctl", "vhangup", "personality",
	"move_pages", "migrate_pages", "mbind", "set_mempolicy",
}

// unknown lists system calls that fail as if the kernel did not have them, so programs fall back to
// older ones. The filter can see the flags of clone and openat. Memory of files is counted, memory
// of memfd_create is not.
var unknown = []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "memfd_create", "memfd_secret", "openat2"}

// shared lists system calls for memory, queues and semaphores outside of the file system. Without a
// namespace of its own, a command would share them with the whole machine.
var shared = []string{"shmget", "shmat", "msgget", "semget", "ipc", "mq_open", "mq_unlink"}

// ofOthers lists calls that change how another process runs. Landlock does not cover them. A
// command may use them on the calling thread, which is 0.
var ofOthers = []seccomp.NameWithConditions{
	when("prlimit64", not(0, 0)),
	when("sched_setscheduler", not(0, 0)), when("sched_setparam", not(0, 0)), when("sched_setattr", not(0, 0)), when("sched_setaffinity", not(0, 0)),
	when("setpriority", not(1, 0)), when("setpriority", bits(0, unix.PRIO_USER)), // here 0 would mean all processes of the user
	when("ioprio_set", not(1, 0)), when("ioprio_set", bits(0, 1), bits(0, 2)), // 3 means the same here
}

// setID lists calls that can make a program run as its owner or group. With such a program, left
// behind by a command of root, every user could become root.
var setID = []seccomp.NameWithConditions{
	when("chmod", bits(1, idBits)), when("fchmod", bits(1, idBits)), when("fchmodat", bits(2, idBits)), when("fchmodat2", bits(2, idBits)),
	when("open", bits(1, makesFile), bits(2, idBits)), when("openat", bits(2, makesFile), bits(3, idBits)), when("creat", bits(1, idBits)),
	when("mknod", bits(1, idBits)), when("mknodat", bits(2, idBits)),
}

const (
	// notStream are bits that no type of a socket has but those beside SOCK_STREAM.
	notStream = 0xe
	idBits    = unix.S_ISUID | unix.S_ISGID
	makesFile = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY // without these flags, the argument for the mode is undefined
)

func when(name string, all ...seccomp.Condition) seccomp.NameWithConditions {
	return seccomp.NameWithConditions{Name: name, Conditions: all}
}

func not(argument uint32, value uint64) seccomp.Condition {
	return seccomp.Condition{Argument: argument, Operation: seccomp.NotEqual, Value: value}
}

// bits is the condition that at least these bits are set.
func bits(argument uint32, value uint64) seccomp.Condition {
	return seccomp.Condition{Argument: argument, Operation: seccomp.BitsSet, Value: value}
}

// newNamespaces are the flags of clone and unshare that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// notInternet are sockets that a network namespace does not hold, such as unix sockets in the file
// system.
var notInternet = []seccomp.NameWithConditions{when("socket", not(0, unix.AF_INET), not(0, unix.AF_INET6))}

// notTCP are sockets that Landlock does not hold, and connections that it does not see: a message
// that opens one.
var notTCP = []seccomp.NameWithConditions{
	when("socket", bits(1, notStream)),
	when("socket", not(2, 0), not(2, unix.IPPROTO_TCP)),
	when("sendto", bits(3, unix.MSG_FASTOPEN)), when("sendmsg", bits(2, unix.MSG_FASTOPEN)), when("sendmmsg", bits(3, unix.MSG_FASTOPEN)),
}

// systemCallFilter returns the seccomp filter for commands with these sockets in these namespaces,
// as instructions for the kernel.
func systemCallFilter(allowed sockets, own Namespaces) []byte {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil // the helper refuses an empty filter, so nothing runs
	}
	known := func(names []string) (list []string) {
		for _, name := range names {
			if _, ok := info.SyscallNames[name]; ok {
				list = append(list, name)
			}
		}
		return list
	}
	refuse := known(refused)
	if allowed == noSockets {
		refuse = append(refuse, "socket")
	}
	if !own.Mount { // the IPC namespace comes with the mount namespace
		refuse = append(refuse, known(shared)...)
	}
	some := []seccomp.NameWithConditions{when("clone", bits(0, newNamespaces)), when("unshare", bits(0, newNamespaces))}
	some = append(some, setID...)
	if allowed == internetSockets || allowed == tcpSockets {
		some = append(some, notInternet...)
	}
	if allowed == tcpSockets {
		some = append(some, notTCP...)
	}
	if !own.PID {
		some = append(some, ofOthers...)
	}
	some = slices.DeleteFunc(some, func(c seccomp.NameWithConditions) bool {
		_, ok := info.SyscallNames[c.Name]
		return !ok
	})
	policy := seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: known(unknown)},
			{Action: seccomp.ActionErrno, Names: refuse, NamesWithCondtions: some},
		},
	}
	rest, err := policy.Assemble()
	if err != nil {
		return nil
	}
	// The library allows every system call of another architecture, such as those of 32-bit
	// programs. They would get around the filter.
	const archOffset = 4
	program := append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.ENOSYS)},
	}, rest...)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil
	}
	var b []byte
	for _, i := range raw {
		b = binary.NativeEndian.AppendUint16(b, i.Op)
		b = append(b, i.Jt, i.Jf)
		b = binary.NativeEndian.AppendUint32(b, i.K)
	}
	return b
}
