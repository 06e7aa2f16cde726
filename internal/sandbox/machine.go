package sandbox

// Machine says which mechanisms a machine has.
type Machine struct {
	OS       string // as runtime.GOOS has it
	Landlock int    // version of its ABI; 0: none
	Seccomp  bool
	PIDBound bool // the kernel bounds the process ids of a namespace
	// Namespaces is what the helper may have of its own; the first that works of the list in
	// [Probe].
	Namespaces Namespaces
	// WhyNot is why there are no more namespaces, in the system's words.
	WhyNot   string
	Root     bool // the worker is root
	UID, GID int
}

// Namespaces are kinds of namespaces that work together.
type Namespaces struct {
	User   bool
	Mount  bool
	PID    bool
	OwnPID bool // PID, and /proc can show it
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
