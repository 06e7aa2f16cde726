// Package sandbox confines the commands that a worker runs.
//
//	Policy (what a command may touch) + Machine (what this kernel can do)
//	   --Resolve--> Plan: the steps of the helper, the layers, and what is missing
//	   --New--> Box --Wrap--> an exec.Cmd that enters the sandbox before it becomes the command
//
// A policy is described by properties: files, processes, network and limits. Each property has the
// mechanisms that give it. [Resolve], a pure function, picks them. Nothing that a machine cannot do
// is left out silently: the plan names it, and doctor and status show it. If a policy requires a
// property that the machine lacks, nothing runs.
//
//	files      Landlock; a mount namespace protects paths inside of writable folders and hides keys
//	processes  no_new_privs, no capabilities, a seccomp filter, Landlock against tracing and
//	           signals, namespaces for users and process ids
//	network    none: the seccomp filter refuses every socket, and Landlock refuses TCP.
//	           hosts and any: a network namespace, out of which only a proxy of the worker leads
//	limits     rlimits here; package process watches memory and the number of processes
//
// The helper is package enter. The children of a command inherit all of this. Nothing here needs
// privileges.
package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// Property is one aspect of a sandbox. A policy can require it.
type Property string

// The properties.
const (
	Files     Property = "files"
	Processes Property = "processes"
	Network   Property = "network"
	Limits    Property = "limits"
)

// Reach says what a command may connect to.
type Reach string

// The reaches.
const (
	NoNetwork   Reach = "none"
	SomeHosts   Reach = "hosts" // those of Policy.Hosts, through a proxy of the worker
	AnyHost     Reach = "any"   // all that the proxy of the worker connects to
	HostNetwork Reach = "host"  // as the worker itself
)

// Policy says what a command may touch. All paths are absolute.
type Policy struct {
	Read  []string `json:"read,omitempty"`  // may be read and executed, besides [SystemPaths]
	Write []string `json:"write,omitempty"` // folders that may be read, executed and changed
	// Loose are folders that other commands may change. Links in Loose or below Write are not
	// followed.
	Loose []string `json:"loose,omitempty"`
	// Temp is the folder for temporary files, which may be changed too. It is the command's TMPDIR.
	Temp string `json:"temp,omitempty"`
	// Measured are folders of Write whose growth counts for Limit.Disk.
	Measured []string `json:"measured,omitempty"`
	// Protect are paths below Write that a command cannot change.
	Protect []string `json:"protect,omitempty"`
	// Replaceable are members of Protect that a command may replace: links, and paths behind such
	// links.
	Replaceable []string `json:"replaceable,omitempty"`
	// Hide are files and folders that a command cannot read, even below Read: the worker's keys.
	Hide    []string `json:"hide,omitempty"`
	Network Reach    `json:"network,omitempty"` // "": none
	// Hosts are what SomeHosts means. The proxy reads them.
	Hosts []string `json:"hosts,omitempty"`
	// Port is where the proxy listens on this machine, for [OnePort]. [NewOn] sets it.
	Port     int        `json:"-"`
	Limit    Bounds     `json:"limit,omitzero"`
	Required []Property `json:"required,omitempty"` // nothing runs without these
}

// Bounds are the limits of one command and all its processes. Zero: no limit.
type Bounds struct {
	Memory    int64 `json:"memory,omitempty"` // bytes that all its processes together have in memory
	Processes int   // at once
	FileSize  int64 `json:"file_size,omitempty"` // bytes of one file that it writes
	CPU       int   // seconds of one process
	// Disk is how many bytes the folder for temporary files may hold, and by how many the folders of
	// Measured may grow during one command.
	Disk int64 `json:"disk,omitempty"`
}

// Layer is a mechanism that is in effect.
type Layer struct {
	Property Property `json:"property"`
	What     string   `json:"what"`
}

// Missing is a part of a policy that this machine cannot enforce.
type Missing struct {
	Property Property `json:"property"`
	What     string   `json:"what"` // what the command can do because of that, and why
}

func (m Missing) String() string { return string(m.Property) + ": " + m.What }

// Lacking returns the properties that commands in a sandbox do not have in full, in order.
func (b *Box) Lacking() (properties []string) {
	if b == nil {
		return nil
	}
	for _, m := range b.Plan.Missing {
		if p := string(m.Property); !slices.Contains(properties, p) {
			properties = append(properties, p)
		}
	}
	return properties
}

// Lacks returns an error that names the required properties that a plan lacks, or nil.
func (p Plan) Lacks(required []Property) error {
	var lines []string
	for _, m := range p.Missing {
		if slices.Contains(required, m.Property) {
			lines = append(lines, m.String())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("the sandbox requires what this machine cannot do: %s. Run the worker on another machine, or take the property out of required", strings.Join(lines, "; "))
}
