// Package enter is the helper between a worker and a command in a sandbox. The worker starts its
// own program again with [Variable] set. The helper then confines itself, step by step, and becomes
// the command:
//
//	worker --clone, new namespaces--> helper: mounts, limits, capabilities, Landlock, seccomp
//	       --exec--> command
//
// If there is a namespace for process ids, the helper stays as its first process, and the
// command is a child of the helper. A command that is itself the first process would ignore
// most signals. The helper writes to the status pipe how the command ended.
//
// The helper runs in the init function of this package. The package imports only syscall, so
// Go initializes it before almost all other packages. The helper therefore starts in 1 ms
// instead of 20 ms. For the same reason it uses no libraries for Landlock and seccomp, and
// makes the few system calls itself. Package sandbox decides everything, and compiles the
// filter with a library.
package enter

// Variable is the environment variable that turns the program into the helper. Its value is two
// file descriptors: the file with the steps, and the status pipe. The command does not get it.
const Variable = "TOOLFLEET_SANDBOX"

// Op says what a [Step] does.
type Op byte

// The steps, with the fields that they use. The helper carries them out in the order of the
// list.
const (
	MapUser    Op = 'u' // A, B: map only this user and this group into the new user namespace
	OwnMounts  Op = 'm' // keep changes of mounts in this namespace
	Listen     Op = 'N' // A: a port; listen there in the own network namespace, for the worker
	FreezeAll  Op = 'w' // make every mount read-only, without devices
	Device     Op = 'd' // Path: a device that works in spite of FreezeAll
	Writable   Op = 'W' // Path: make it and all below it writable again
	Pin        Op = 'b' // Path: make it a mount point, so that it cannot be renamed
	ReadOnly   Op = 'r' // Path: make it read-only, and all below it
	Hide       Op = 'h' // Path: cover a file or a folder with an empty one
	MountProc  Op = 'p' // Path: mount the processes of this namespace there
	MostPIDs   Op = 'k' // A: the bound on process ids of this namespace
	MountShm   Op = 's' // Path: mount an empty folder in memory there; A: its size in bytes
	Limit      Op = 'l' // A: the resource; B: its bound
	OOMScore   Op = 'o' // Path: what to write as the score
	DropCaps   Op = 'c' // A: bits of the capabilities to keep
	NoNewPrivs Op = 'n'
	Ruleset    Op = 'L' // Path: the attributes of a Landlock ruleset, as the kernel has them
	Allow      Op = 'a' // Path, A: access rights below it; B: those of them that files can have
	Follow     Op = 'A' // like Allow, but follows links: for paths that no command can change
	AllowPort  Op = 'P' // A: access rights to the port B
	Restrict   Op = 'R' // enforce the ruleset
	Filter     Op = 'f' // Path: a seccomp filter, as instructions for the kernel
	Fork       Op = 'F' // run the command as a child; the last step
	Probe      Op = 'z' // end with status 0 instead of running a command; the last step
)

// Step is one action of the helper. If the path of a step does not exist, the helper skips the
// step.
type Step struct {
	Op   Op
	A, B uint64
	Path string
}

const header = 1 + 8 + 8 + 4

// Encode returns the steps as [Decode] reads them.
func Encode(steps []Step) []byte {
	var b []byte
	for _, s := range steps {
		b = append(b, byte(s.Op))
		b = number(b, s.A, 8)
		b = number(b, s.B, 8)
		b = number(b, uint64(len(s.Path)), 4)
		b = append(b, s.Path...)
	}
	return b
}

// Decode reads the first step and returns the rest. ok is false at the end, and for a broken
// step.
func Decode(b []byte) (s Step, rest []byte, ok bool) {
	if len(b) < header {
		return s, nil, false
	}
	size := value(b[17:header])
	if uint64(len(b)-header) < size {
		return s, nil, false
	}
	s = Step{Op: Op(b[0]), A: value(b[1:9]), B: value(b[9:17]), Path: string(b[header : header+size])}
	return s, b[header+size:], true
}

func number(b []byte, n uint64, bytes int) []byte {
	for range bytes {
		b = append(b, byte(n))
		n >>= 8
	}
	return b
}

func value(b []byte) (n uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n
}

// The first byte of what the helper writes to the status pipe.
const (
	// Failed says that the command did not run. A text follows: the step, and the system's
	// error.
	Failed = 'E'
	// Ended says that the command has ended. Its wait status follows, in four bytes.
	Ended = 'W'
)

// EndedWith returns the wait status of a report that begins with Ended.
func EndedWith(report []byte) (status uint32, ok bool) {
	if len(report) != 5 || report[0] != Ended {
		return 0, false
	}
	return uint32(value(report[1:])), true
}
