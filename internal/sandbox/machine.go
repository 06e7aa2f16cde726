package sandbox

// Machine says which mechanisms a machine has.
type Machine struct {
	OS       string // a value of runtime.GOOS
	Landlock int    // version of its ABI; 0: none
	Seccomp  bool
	PIDBound bool // the kernel limits the process ids of a namespace
	// Namespaces holds the namespaces that the helper can have: the first set that works.
	Namespaces Namespaces
	// WhyNot says why the helper cannot have more namespaces, in the system's words.
	WhyNot   string
	Root     bool // the worker is root
	UID, GID int
}

// Namespaces are kinds of namespaces that work together.
type Namespaces struct {
	User   bool
	Mount  bool
	PID    bool
	OwnPID bool // PID is set, and /proc can show the processes of the namespace
	Net    bool
}

// String lists the namespaces.
func (n Namespaces) String() string {
	switch {
	case n.OwnPID && n.User:
		return "namespaces for users, mounts and process ids"
	case n.OwnPID:
		return "namespaces for mounts and process ids"
	case n.Mount && n.User:
		return "namespaces for users and mounts"
	case n.Mount:
		return "a namespace for mounts"
	}
	return "no namespaces"
}
