package sandbox

import (
	"encoding/binary"

	"github.com/toolfleet/toolfleet/internal/sandbox/enter"
)

// Access rights of Landlock, in the order of the kernel's header landlock.h.
const (
	llExecute uint64 = 1 << iota
	llWriteFile
	llReadFile
	llReadDir
	llRemoveDir
	llRemoveFile
	llMakeChar
	llMakeDir
	llMakeReg
	llMakeSock
	llMakeFifo
	llMakeBlock
	llMakeSym
	llRefer       // from ABI 2
	llTruncate    // from ABI 3
	llIoctlDev    // from ABI 5
	llResolveUnix // from ABI 9
)

// Versions of Landlock (ABI) that added something, and the rights and scopes of a ruleset.
const (
	abiRefer, abiTruncate, abiNet, abiIoctl, abiScopes, abiUnix, abiUDP = 2, 3, 4, 5, 6, 9, 10

	llConnectTCP        = 1 << 1
	llTCP               = 1<<0 | llConnectTCP // bind and connect
	llUDP               = 1<<2 | 1<<3         // bind, and connect or send
	llScopeAbstractUnix = 1 << 0
	llScopeSignal       = 1 << 1
	llFileRights        = llExecute | llWriteFile | llReadFile | llTruncate | llIoctlDev | llResolveUnix
	llRead              = llExecute | llReadFile | llReadDir
	llReadWriteDevice   = llReadFile | llWriteFile | llTruncate | llIoctlDev
	llChange            = llRead | llWriteFile | llRemoveDir | llRemoveFile | llMakeDir | llMakeReg | llMakeSock | llMakeFifo | llMakeSym | llRefer | llTruncate | llResolveUnix
	llFirst             = llMakeSym<<1 - 1
)

// landlockRights returns the access rights that a version of Landlock knows.
func landlockRights(abi int) uint64 {
	rights := llFirst
	for _, later := range []struct {
		abi   int
		right uint64
	}{{abiRefer, llRefer}, {abiTruncate, llTruncate}, {abiIoctl, llIoctlDev}, {abiUnix, llResolveUnix}} {
		if abi >= later.abi {
			rights |= later.right
		}
	}
	return rights
}

// landlock adds the Landlock ruleset to the plan. The ruleset refuses everything that it does
// not allow.
func (r *resolver) landlock() {
	abi := r.m.Landlock
	if abi == 0 {
		if r.m.Namespaces.Mount {
			r.lack(Files, "there is no Landlock, so commands may read every file that the worker's user may")
		} else {
			r.lack(Files, "there is no Landlock, so commands may read and change every file that the worker's user may")
		}
		if !r.m.Namespaces.OwnPID {
			r.lack(Processes, "there is neither Landlock nor a namespace for process ids, so commands may read the environment of others and kill them")
		}
		return
	}
	rights := landlockRights(abi)
	r.step(enter.Step{Op: enter.Ruleset, Path: r.attributes(rights)})
	allow := func(granted uint64, paths ...string) {
		for _, p := range paths {
			r.step(enter.Step{Op: enter.Allow, Path: p, A: granted & rights, B: llFileRights & rights})
		}
	}
	for _, p := range r.p.Read {
		// A path inside a writable folder gets no rule: a command may have put a link there.
		// The rule of the folder includes reading.
		if !insideAny(p, r.writable()) {
			allow(llRead, p)
		}
	}
	allow(llChange, r.writable()...)
	allow(llReadWriteDevice, devices...)
	if r.m.Namespaces.OwnPID {
		allow(llRead, "/proc")
	} else {
		for _, p := range procFiles {
			r.step(enter.Step{Op: enter.Follow, Path: p, A: llRead & rights, B: llFileRights & rights})
		}
	}
	if r.m.Namespaces.Mount {
		allow(llChange, "/dev/shm")
	}
	if r.plan.Way == OnePort {
		r.step(enter.Step{Op: enter.AllowPort, A: llConnectTCP, B: uint64(r.p.Port)})
	}
	r.step(enter.Step{Op: enter.Restrict})
	r.have(Files, "Landlock (ABI %d): reads and writes by a list", abi)
	r.have(Processes, "Landlock refuses the environment and memory of other processes")
	if abi < abiTruncate {
		r.lack(Files, "commands may empty files elsewhere, because Landlock has ABI %d and refuses that from ABI %d", abi, abiTruncate)
	}
	switch {
	case abi >= abiScopes:
		r.have(Processes, "Landlock refuses signals to other processes")
	case !r.m.Namespaces.PID:
		r.lack(Processes, "commands may kill other processes of the same user, because Landlock has ABI %d and refuses that from ABI %d", abi, abiScopes)
	}
	if r.handlesTCP() && r.plan.Way == NoWay {
		r.have(Network, "none: Landlock refuses TCP")
	}
}

// handlesTCP reports whether Landlock has to refuse TCP. In a network namespace
// of its own, a command reaches nothing outside, and its processes are allowed to connect to each
// other, so Landlock refuses nothing there.
func (r *resolver) handlesTCP() bool {
	return r.p.Network != HostNetwork && r.plan.Way != OwnSpace && r.m.Landlock >= abiNet
}

// attributes returns a struct landlock_ruleset_attr with the fields that the machine's version
// of Landlock has.
func (r *resolver) attributes(rights uint64) string {
	abi := r.m.Landlock
	var net uint64
	if r.handlesTCP() {
		net = llTCP
		if abi >= abiUDP {
			net |= llUDP
		}
	}
	fields := []uint64{rights}
	if abi >= abiNet {
		fields = append(fields, net)
	}
	if abi >= abiScopes {
		fields = append(fields, llScopeAbstractUnix|llScopeSignal)
	}
	var b []byte
	for _, f := range fields {
		b = binary.NativeEndian.AppendUint64(b, f)
	}
	return string(b)
}
