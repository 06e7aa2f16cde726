package worker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool/egress"
)

// reaches lists how far a network can reach, the narrowest first.
var reaches = []sandbox.Reach{sandbox.NoNetwork, sandbox.SomeHosts, sandbox.AnyHost, sandbox.HostNetwork}

// tightened returns the sandbox of the commands within the limits of the platform's policy.
// The policy can only take rights away. If the entry turns its sandbox off, the policy turns
// it on again, with the standard values.
func (p Place) tightened(c Commands) schemas.Sandbox {
	s := c.Sandbox
	standard := sandbox.HostNetwork
	if c.shell {
		standard = sandbox.NoNetwork
	}
	s.Network = cmp.Or(s.Network, string(standard))
	s.Limits.Memory = cmp.Or(s.Limits.Memory, sandbox.MachineMemory()/2&^(1<<20-1))
	s.Limits.Processes = cmp.Or(s.Limits.Processes, standardProcesses)
	s.Limits.FileSize = cmp.Or(s.Limits.FileSize, standardFileSize)
	s.Limits.Disk = cmp.Or(s.Limits.Disk, standardDisk)
	bound := p.Tighten
	if bound == nil {
		return s
	}
	s.Off = false
	wanted, most := slices.Index(reaches, sandbox.Reach(s.Network)), slices.Index(reaches, sandbox.Reach(bound.Network))
	switch {
	case bound.Network == "" || wanted < most:
	case wanted > most:
		s.Network, s.Hosts, s.Loopback = bound.Network, bound.Hosts, bound.Loopback
	case s.Network == string(sandbox.SomeHosts):
		s.Hosts = slices.DeleteFunc(slices.Clone(s.Hosts), func(host string) bool { return !covered(host, bound.Hosts) })
		s.Loopback = s.Loopback && bound.Loopback
		if len(s.Hosts) == 0 {
			s.Network = string(sandbox.NoNetwork)
		}
	}
	s.Required = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.Required, bound.Required))))
	l, b := &s.Limits, bound.Limits
	l.Memory, l.Processes, l.FileSize = lower(l.Memory, b.Memory), lower(l.Processes, b.Processes), lower(l.FileSize, b.FileSize)
	l.Disk = lower(l.Disk, b.Disk)
	if !c.stays { // such a limit would kill a long-lived program in the middle of a call
		l.CPU = lower(l.CPU, b.CPU)
	}
	return s
}

// covered reports whether a list of hosts allows everything that one entry of another list
// allows.
func covered(host string, list []string) bool {
	if slices.Contains(list, host) {
		return true
	}
	name, below := strings.CutPrefix(host, "*.")
	if !strings.Contains(name, ":") || strings.HasSuffix(name, "]") {
		return covered(host+":80", list) && covered(host+":443", list)
	}
	if below {
		name = "any." + name // a pattern that matches one name below it matches all
		list = slices.DeleteFunc(slices.Clone(list), func(p string) bool { return !strings.HasPrefix(p, "*.") })
	}
	return slices.ContainsFunc(list, func(pattern string) bool { return egress.Match(pattern, strings.ToLower(name)) })
}

// lower returns the lower of two limits. Zero means no limit.
func lower[T int | int64 | time.Duration](a, b T) T {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
