package sandbox

import (
	"encoding/binary"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are the system calls that no command needs, and that reach into other processes or the
// kernel. They fail with EPERM. Those of other architectures are not known here and are left out.
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

// unknown are system calls that fail as if the kernel did not have them. Programs then use older
// ones: of clone the filter sees the flags, and memory of files counts where memfd's would not.
var unknown = []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "memfd_create", "memfd_secret"}

// newNamespaces are the flags of clone and unshare that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// systemCallFilter returns the seccomp filter for commands of this reach, as the kernel has
// its instructions.
func systemCallFilter(reach Reach) []byte {
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
	if reach != HostNetwork {
		refuse = append(refuse, "socket")
	}
	flags := seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: newNamespaces}}
	policy := seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: known(unknown)},
			{Action: seccomp.ActionErrno, Names: refuse, NamesWithCondtions: []seccomp.NameWithConditions{
				{Name: "clone", Conditions: flags}, {Name: "unshare", Conditions: flags},
			}},
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
