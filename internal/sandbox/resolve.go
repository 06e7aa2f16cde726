package sandbox

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/enter"
)

// Plan says how a machine enforces a policy.
type Plan struct {
	Layers  []Layer
	Missing []Missing
	Steps   []enter.Step
	Spaces  Namespaces
	// Way is how commands reach the proxy of the worker.
	Way Way
}

// Way is how commands reach the proxy of the worker.
type Way byte

// The ways.
const (
	NoWay    Way = iota // there is no proxy
	OwnSpace            // the proxy listens inside the commands' network namespace
	OnePort             // the proxy listens on this machine, and Landlock allows its port
)

// proxyPort is the port of the proxy inside a network namespace.
const proxyPort = 3128

// Resolve returns how a machine enforces a policy. It is pure.
func Resolve(p Policy, m Machine) Plan {
	r := resolver{p: p, m: m, pinned: map[string]bool{}}
	if m.OS != "linux" {
		for _, property := range []Property{Files, Processes, Network, Limits} {
			if property != Network || p.Network != HostNetwork {
				r.lack(property, "commands are not confined, because the sandbox needs Linux")
			}
		}
		return r.plan
	}
	r.plan.Spaces = m.Namespaces
	r.plan.Way = wayOut(p, m)
	r.plan.Spaces.Net = r.plan.Way == OwnSpace
	r.namespaces()
	r.limits()
	r.step(enter.Step{Op: enter.DropCaps, A: r.keptCaps()}, enter.Step{Op: enter.NoNewPrivs})
	r.have(Processes, "no_new_privs, and no capabilities")
	r.landlock()
	r.filter()
	if m.Namespaces.PID {
		r.step(enter.Step{Op: enter.Fork})
	}
	order := []Property{Files, Processes, Network, Limits}
	slices.SortStableFunc(r.plan.Layers, func(a, b Layer) int {
		return slices.Index(order, a.Property) - slices.Index(order, b.Property)
	})
	return r.plan
}

type resolver struct {
	p    Policy
	m    Machine
	plan Plan
	// pinned holds the folders that cannot be renamed, because they are mount points.
	pinned map[string]bool
}

func (r *resolver) step(steps ...enter.Step) { r.plan.Steps = append(r.plan.Steps, steps...) }

func (r *resolver) have(p Property, format string, args ...any) {
	r.plan.Layers = append(r.plan.Layers, Layer{p, fmt.Sprintf(format, args...)})
}

func (r *resolver) lack(p Property, format string, args ...any) {
	r.plan.Missing = append(r.plan.Missing, Missing{p, fmt.Sprintf(format, args...)})
}

// leastPIDs is the lowest limit on process ids that the kernel accepts.
const leastPIDs = 302

// shmSize limits the /dev/shm of a command. Files there do not count as memory of any process.
const shmSize = 64 << 20

func (r *resolver) namespaces() {
	n := r.m.Namespaces
	if n.User && !r.m.Root {
		r.step(enter.Step{Op: enter.MapUser, A: uint64(r.m.UID), B: uint64(r.m.GID)})
	}
	if r.plan.Way == OwnSpace {
		r.step(enter.Step{Op: enter.Listen, A: proxyPort})
	}
	if n.Mount {
		r.step(enter.Step{Op: enter.OwnMounts}, enter.Step{Op: enter.FreezeAll})
		for _, name := range devices {
			r.step(enter.Step{Op: enter.Device, Path: name})
		}
		for _, name := range r.writable() {
			r.step(enter.Step{Op: enter.Writable, Path: name})
		}
		r.have(Files, "a mount namespace in which only the writable folders can be changed")
	} else {
		r.lack(Files, "commands may change modes, owners and times of files elsewhere, because there is no mount namespace (%s)", r.m.WhyNot)
	}
	r.hide()
	r.protect()
	if n.Mount {
		r.step(enter.Step{Op: enter.MountShm, Path: "/dev/shm", A: shmSize})
	}
	if n.OwnPID {
		r.step(enter.Step{Op: enter.MountProc, Path: "/proc"})
		if r.boundsPIDs() {
			r.step(enter.Step{Op: enter.MostPIDs, A: uint64(max(r.p.Limit.Processes, leastPIDs))})
		}
		for _, name := range procSwitches {
			r.step(enter.Step{Op: enter.ReadOnly, Path: name})
		}
		r.have(Processes, "%s: a command sees no other processes", n)
	}
}

// writable returns the folders that commands may change.
func (r *resolver) writable() []string {
	if r.p.Temp == "" {
		return r.p.Write
	}
	return append(slices.Clone(r.p.Write), r.p.Temp)
}

// hide hides the worker's keys. Landlock alone cannot hide a key inside a readable folder.
func (r *resolver) hide() {
	if r.m.Namespaces.Mount {
		for _, name := range services {
			r.step(enter.Step{Op: enter.Hide, Path: name})
		}
	}
	open := slices.Concat(r.p.Read, r.p.Write)
	for _, name := range r.p.Hide {
		switch {
		case r.m.Namespaces.Mount:
			r.pinAbove(name) // otherwise a rename would show the key to the next command
			r.step(enter.Step{Op: enter.Hide, Path: name})
		case r.m.Landlock > 0 && insideAny(name, open):
			r.lack(Files, "%s may be read, because it lies in a folder that commands may read and there is no mount namespace (%s): move it elsewhere", name, r.m.WhyNot)
		}
	}
}

func (r *resolver) protect() {
	if len(r.p.Protect) == 0 {
		return
	}
	if !r.m.Namespaces.Mount {
		r.lack(Files, "protected paths such as .git/hooks may be changed in the writable folders, because there is no mount namespace (%s)", r.m.WhyNot)
		return
	}
	for _, name := range r.p.Protect {
		if r.pinAbove(name) { // outside of writable folders, Landlock already prevents writing
			r.step(enter.Step{Op: enter.ReadOnly, Path: name})
		}
	}
	if links := r.p.Replaceable; len(links) > 0 {
		r.lack(Files, "%s may be replaced, because it is a link or behind one", strings.Join(links, ", "))
	}
	r.have(Files, "a mount namespace keeps protected paths such as .git/hooks from being changed")
}

// pinAbove keeps the folders above a path from being renamed. Otherwise a command could put
// another folder in their place. pinAbove reports whether the path is in a writable folder.
func (r *resolver) pinAbove(name string) bool {
	i := slices.IndexFunc(r.p.Write, func(w string) bool { return inside(name, w) && name != w })
	if i < 0 {
		return false
	}
	var above []string
	for dir := path.Dir(name); dir != r.p.Write[i] && dir != "/"; dir = path.Dir(dir) {
		above = append(above, dir)
	}
	for _, dir := range slices.Backward(above) {
		if !r.pinned[dir] {
			r.pinned[dir] = true
			r.step(enter.Step{Op: enter.Pin, Path: dir})
		}
	}
	return true
}

// Resources of setrlimit. Their numbers are the same on every architecture of Go.
const (
	rlimitCPU, rlimitFileSize, rlimitCore, rlimitProcesses = 0, 1, 4, 6
)

func (r *resolver) limits() {
	l := r.p.Limit
	r.step(enter.Step{Op: enter.Limit, A: rlimitCore, B: 0})
	if l.FileSize > 0 {
		r.step(enter.Step{Op: enter.Limit, A: rlimitFileSize, B: uint64(l.FileSize)})
	}
	if l.CPU > 0 {
		r.step(enter.Step{Op: enter.Limit, A: rlimitCPU, B: uint64(l.CPU)})
	}
	if r.boundsUser() {
		r.step(enter.Step{Op: enter.Limit, A: rlimitProcesses, B: uint64(l.Processes)})
	}
	r.step(enter.Step{Op: enter.OOMScore, Path: "500"})
	held := l
	if l.Processes > 0 && !r.boundsPIDs() && !r.boundsUser() {
		held.Processes = 0
		r.lack(Limits, "commands may have more than %d processes until the worker looks and kills them, because the kernel does not bound them (%s)",
			l.Processes, r.whyUnbounded())
	}
	if held != (Bounds{}) {
		r.have(Limits, "%s", held)
	}
}

// boundsPIDs reports whether the kernel can limit the number of process ids in the command's
// own namespace. Before Linux 6.14, that limit applies to the whole machine.
func (r *resolver) boundsPIDs() bool {
	return r.p.Limit.Processes > 0 && r.m.Namespaces.OwnPID && r.m.PIDBound
}

// boundsUser reports whether the kernel can limit the number of processes of the command's
// user. It does not limit root. Without a user namespace, the count would include processes of
// other commands and of the worker.
func (r *resolver) boundsUser() bool {
	return r.p.Limit.Processes > 0 && r.m.Namespaces.User && !r.m.Root
}

// whyUnbounded says why the kernel does not limit the number of processes.
func (r *resolver) whyUnbounded() string {
	switch {
	case !r.m.Namespaces.User && !r.m.Namespaces.OwnPID:
		return "there are no namespaces: " + r.m.WhyNot
	case !r.m.PIDBound:
		return "the worker is root, and that needs Linux 6.14"
	}
	return "the worker is root, and there is no namespace for process ids: " + r.m.WhyNot
}

// keptCaps returns the capabilities that a command of root keeps. With them it can read and
// change the files of other users, within the limits of Landlock. Programs that run as root
// expect that.
func (r *resolver) keptCaps() uint64 {
	const chown, dacOverride, fowner = 0, 1, 3
	if !r.m.Root {
		return 0
	}
	return 1<<chown | 1<<dacOverride | 1<<fowner
}

func (r *resolver) filter() {
	if !r.m.Seccomp {
		r.lack(Processes, "there is no seccomp, so commands may trace and use every system call")
		if r.p.Network != HostNetwork {
			r.lack(Network, "there is no seccomp, so commands may use %s", r.leftOfNetwork())
		}
	} else {
		r.step(enter.Step{Op: enter.Filter, Path: string(systemCallFilter(r.sockets(), r.m.Namespaces))})
		r.have(Processes, "a seccomp filter refuses tracing, mounts, setuid files, new namespaces, BPF, keys and io_uring")
	}
	r.network()
}

// sockets says which kinds of sockets commands may make.
type sockets byte

const (
	noSockets       sockets = iota
	tcpSockets              // streams of the internet protocols
	internetSockets         // sockets of the internet protocols
	allSockets
)

// wayOut returns the best way to the proxy that the machine has. OnePort needs seccomp,
// because otherwise a command could send UDP to any host.
func wayOut(p Policy, m Machine) Way {
	switch {
	case p.Network != SomeHosts && p.Network != AnyHost:
		return NoWay
	case m.Namespaces.Net:
		return OwnSpace
	case m.Landlock >= abiNet && m.Seccomp:
		return OnePort
	}
	return NoWay
}

// sockets returns which sockets commands may make.
func (r *resolver) sockets() sockets {
	switch {
	case r.p.Network == HostNetwork:
		return allSockets
	case r.plan.Way == OwnSpace:
		return internetSockets
	case r.plan.Way == OnePort:
		return tcpSockets
	}
	return noSockets
}

// network adds to the plan which mechanisms confine the network, and what they lack.
func (r *resolver) network() {
	switch {
	case r.p.Network == HostNetwork:
	case r.plan.Way == OwnSpace:
		r.have(Network, "%s: a network namespace, out of which only the worker's proxy leads", r.p.Network)
	case r.plan.Way == OnePort:
		r.have(Network, "%s: Landlock allows connections to the port of the worker's proxy, and a seccomp filter refuses all but TCP", r.p.Network)
		r.lack(Network, "commands may connect to the port of the worker's proxy on every machine, because there is no network namespace (%s)", r.m.WhyNot)
	default:
		if r.m.Seccomp {
			r.have(Network, "none: a seccomp filter refuses sockets")
		}
		if r.p.Network == SomeHosts || r.p.Network == AnyHost {
			r.lack(Network, "commands reach no host at all, because network: %s needs a network namespace (%s), or Landlock from ABI %d and seccomp", r.p.Network, r.m.WhyNot, abiNet)
		}
	}
}

func (r *resolver) leftOfNetwork() string {
	if r.plan.Way == OwnSpace {
		return "unix sockets of other programs"
	}
	if r.m.Landlock >= abiNet {
		return "every network but TCP"
	}
	return "the network"
}

func (b Bounds) String() string {
	var parts []string
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(b.Memory > 0, "memory %s", Size(b.Memory))
	add(b.Processes > 0, "%d processes", b.Processes)
	add(b.FileSize > 0, "files of %s", Size(b.FileSize))
	add(b.Disk > 0, "%s of files in state and temporary folders", Size(b.Disk))
	add(b.CPU > 0, "%d s of CPU for each process", b.CPU)
	return strings.Join(parts, ", ")
}

// Size formats a number of bytes as tools files write it.
func Size(n int64) string {
	for _, unit := range []struct {
		shift int
		name  string
	}{{30, "GB"}, {20, "MB"}, {10, "KB"}} {
		if n >= 1<<unit.shift && n%(1<<unit.shift) == 0 {
			return fmt.Sprintf("%d%s", n>>unit.shift, unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
