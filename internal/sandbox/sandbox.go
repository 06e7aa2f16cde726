// Package sandbox confines the commands that a worker runs.
//
//	Policy (what a command may touch) + Machine (what this kernel can do)
//	   --Resolve--> Plan: the steps of the helper, the layers, and what is missing
//	   --New--> Box --Wrap--> an exec.Cmd that enters the sandbox before it becomes the command
//
// A policy is described by properties: files, processes, network and limits. [Resolve], a pure
// function, picks the mechanisms that give each property. If a machine cannot enforce a part of
// the policy, the plan names that part, and doctor and status show it. If a policy requires a
// property that the machine lacks, nothing runs.
//
//	files      Landlock; a mount namespace protects paths inside of writable folders and hides keys
//	processes  no_new_privs, no capabilities, a seccomp filter, Landlock against tracing and
//	           signals, namespaces for users and process ids
//	network    none: the seccomp filter refuses every socket, and Landlock refuses TCP.
//	           hosts and any: a network namespace, out of which only a proxy of the worker leads
//	limits     rlimits here; package process watches memory and the number of processes
//
// The helper is package enter. The children of a command are confined in the same way. Nothing
// here needs privileges.
package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// Property is one aspect of a sandbox, which a policy can require.
type Property string

// The properties.
const (
	Files     Property = "files"
	Processes Property = "processes"
	Network   Property = "network"
	Limits    Property = "limits"
)

// Reach says to which hosts a command may connect.
type Reach string

// The reaches.
const (
	NoNetwork   Reach = "none"
	SomeHosts   Reach = "hosts" // the hosts of Policy.Hosts, through a proxy of the worker
	AnyHost     Reach = "any"   // every host to which the proxy of the worker connects
	HostNetwork Reach = "host"  // the hosts that the worker itself reaches
)

// Policy says what a command may touch. All paths are absolute.
type Policy struct {
	Read  []string `json:"read,omitempty"`  // may be read and executed, besides [SystemPaths]
	Write []string `json:"write,omitempty"` // folders that may be read, executed and changed
	// Loose lists folders that commands of other sandboxes may change. Links in Loose or below
	// Write are not followed.
	Loose []string `json:"loose,omitempty"`
	// Temp is the folder for temporary files, the command's TMPDIR. The command may change it.
	Temp string `json:"temp,omitempty"`
	// Measured lists folders of Write whose growth counts for Limit.Disk.
	Measured []string `json:"measured,omitempty"`
	// Protect lists paths below Write that a command cannot change.
	Protect []string `json:"protect,omitempty"`
	// Replaceable lists paths of Protect that a command may replace: links, and paths behind
	// links.
	Replaceable []string `json:"replaceable,omitempty"`
	// Hide lists files and folders that a command cannot read, even below Read: the worker's
	// keys.
	Hide    []string `json:"hide,omitempty"`
	Network Reach    `json:"network,omitempty"` // "": none
	// Hosts lists the hosts that SomeHosts allows. The proxy reads the list.
	Hosts []string `json:"hosts,omitempty"`
	// Port is the port of the proxy on this machine, for [OnePort]. [NewOn] sets it.
	Port     int        `json:"-"`
	Limit    Bounds     `json:"limit,omitzero"`
	Required []Property `json:"required,omitempty"` // properties without which nothing runs
}

// Bounds are the limits of one command and all its processes. Zero: no limit.
type Bounds struct {
	Memory    int64 `json:"memory,omitempty"` // bytes of memory of all processes together
	Processes int   // processes at the same time
	FileSize  int64 `json:"file_size,omitempty"` // bytes of one file that the command writes
	CPU       int   // CPU seconds of one process
	// Disk is how many bytes the folder for temporary files may hold. It also limits by how
	// many bytes the folders of Measured may grow during one command.
	Disk int64 `json:"disk,omitempty"`
}

// Layer is a mechanism that enforces a part of the policy.
type Layer struct {
	Property Property `json:"property"`
	What     string   `json:"what"`
}

// Missing is a part of a policy that this machine cannot enforce.
type Missing struct {
	Property Property `json:"property"`
	What     string   `json:"what"` // what the command can do because of the gap, and why
}

func (m Missing) String() string { return string(m.Property) + ": " + m.What }

// Lacking returns the properties that this sandbox does not enforce completely, in order.
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
