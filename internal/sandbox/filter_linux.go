package sandbox

import (
	"encoding/binary"
	"slices"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused lists system calls that no command needs, and that affect other processes or the
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

// unknown lists system calls that fail as if the kernel did not have them. Programs then use
// older calls, whose effects the worker can limit: the filter can see the flags of clone and
// openat, and the memory of files is counted, unlike that of memfd_create.
var unknown = []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "memfd_create", "memfd_secret", "openat2"}

// shared lists system calls for memory, queues and semaphores that do not belong to the file
// system. Without an IPC namespace, a command would share them with the whole machine.
var shared = []string{"shmget", "shmat", "msgget", "semget", "ipc", "mq_open", "mq_unlink"}

// ofOthers lists system calls that change how another process runs. Landlock does not cover
// them. A command may use them only on the calling thread, which is 0.
var ofOthers = []seccomp.NameWithConditions{
	when("prlimit64", not(0, 0)),
	when("sched_setscheduler", not(0, 0)), when("sched_setparam", not(0, 0)), when("sched_setattr", not(0, 0)), when("sched_setaffinity", not(0, 0)),
	when("setpriority", not(1, 0)), when("setpriority", bits(0, unix.PRIO_USER)), // here 0 would mean all processes of the user
	when("ioprio_set", not(1, 0)), when("ioprio_set", bits(0, 1), bits(0, 2)), // 3 means the same here
}

// setID lists system calls that can make a program run as its owner or group. If a command of
// root left such a program behind, every user could become root with it.
var setID = []seccomp.NameWithConditions{
	when("chmod", bits(1, idBits)), when("fchmod", bits(1, idBits)), when("fchmodat", bits(2, idBits)), when("fchmodat2", bits(2, idBits)),
	when("open", bits(1, makesFile), bits(2, idBits)), when("openat", bits(2, makesFile), bits(3, idBits)), when("creat", bits(1, idBits)),
	when("mknod", bits(1, idBits)), when("mknodat", bits(2, idBits)),
}

const (
	// notStream are bits that the type of a socket has only if it is not SOCK_STREAM.
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

// bits returns the condition that an argument of a system call has all the bits that are set
// in value.
func bits(argument uint32, value uint64) seccomp.Condition {
	return seccomp.Condition{Argument: argument, Operation: seccomp.BitsSet, Value: value}
}

// newNamespaces are the flags of clone and unshare that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// notInternet refuses sockets that a network namespace does not confine, such as unix sockets
// in the file system.
var notInternet = []seccomp.NameWithConditions{when("socket", not(0, unix.AF_INET), not(0, unix.AF_INET6))}

// notTCP refuses sockets that Landlock does not confine. It also refuses messages that open a
// connection, because Landlock does not see such connections.
var notTCP = []seccomp.NameWithConditions{
	when("socket", bits(1, notStream)),
	when("socket", not(2, 0), not(2, unix.IPPROTO_TCP)),
	when("sendto", bits(3, unix.MSG_FASTOPEN)), when("sendmsg", bits(2, unix.MSG_FASTOPEN)), when("sendmmsg", bits(3, unix.MSG_FASTOPEN)),
}

// systemCallFilter returns the seccomp filter for commands, as instructions for the kernel.
// The commands may make the allowed sockets, and have the namespaces own.
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
	// programs. Such calls would bypass the filter.
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
