package schemas

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sandbox is the sandbox of an entry's commands. The zero value is the standard sandbox.
type Sandbox struct {
	Off bool // the commands may do what the worker may
	// Network is none, hosts, any or host; "": means none for Bash, and host for a program of
	// the file.
	Network string
	// Hosts lists the allowed hosts if Network is hosts. Loopback allows this machine as one
	// of them.
	Hosts    []string
	Loopback bool
	State    []string // folders that the commands may change; relative to the tools file
	Read     []string // further files and folders that the commands may read
	Limits   SandboxLimits
	Required []string // properties without which the command does not run
}

// SandboxLimits are bounds on one command with all its processes. Zero: the standard limit.
type SandboxLimits struct {
	Memory    int64 // bytes
	Processes int
	FileSize  int64 // bytes
	Disk      int64 // bytes
	CPU       time.Duration
}

// sandboxInFile is a sandbox as the file has it.
type sandboxInFile struct {
	Off                   bool
	Network               json.RawMessage
	State, Read, Required []string
	Limits                struct {
		Memory    json.RawMessage
		FileSize  json.RawMessage `json:"file_size"`
		Disk      json.RawMessage
		Processes json.Number
		CPU       string
	}
}

// sandbox reads a sandbox at p.
func (f *yamlFile) sandbox(p string, in *sandboxInFile) Sandbox {
	if in == nil {
		return Sandbox{}
	}
	if in.Off && (len(in.State)+len(in.Read)+len(in.Required) > 0 || len(in.Network) > 0 || f.has(p+"/limits")) {
		f.addKey(p+"/off", "a sandbox that is off has no other keys")
	}
	s := Sandbox{
		Off: in.Off, State: nonEmpty(in.State), Read: nonEmpty(in.Read), Required: nonEmpty(in.Required),
		Limits: SandboxLimits{
			Memory: f.bytes(p+"/limits/memory", in.Limits.Memory), FileSize: f.bytes(p+"/limits/file_size", in.Limits.FileSize),
			Disk:      f.bytes(p+"/limits/disk", in.Limits.Disk),
			Processes: f.wholeNumber(p+"/limits/processes", in.Limits.Processes), CPU: f.duration(p+"/limits/cpu", in.Limits.CPU),
		},
	}
	s.Network, s.Hosts, s.Loopback = network(in.Network)
	for key, folders := range map[string][]string{"state": s.State, "read": s.Read} {
		for i, folder := range folders {
			if path.Clean(folder) == "/" {
				f.add(p+"/"+key+"/"+strconv.Itoa(i), "the whole machine is no folder for a tool; off: true switches the sandbox off")
			}
		}
	}
	return s
}

// network reads a network that is valid by the schema.
func network(raw json.RawMessage) (reach string, hosts []string, loopback bool) {
	if json.Unmarshal(raw, &reach) == nil || len(raw) == 0 {
		return reach, nil, false
	}
	var list struct {
		Hosts    []string
		Loopback bool
	}
	if json.Unmarshal(raw, &list) != nil {
		return "none", nil, false // the file has an error already
	}
	return "hosts", list.Hosts, list.Loopback
}

// toolSandbox reads the sandbox of the entry at p.
func (f *yamlFile) toolSandbox(p string, in *sandboxInFile, e Entry) Sandbox {
	if in != nil && !e.RunsCommands() && !f.faulty[p+"/sandbox"] {
		f.addKey(p+"/sandbox", "this is for tools that run commands: exec, Bash, and a check with a command")
	}
	return f.sandbox(p+"/sandbox", in)
}

// serverSandbox reads the sandbox of the server at p.
func (f *yamlFile) serverSandbox(p string, in serverInFile) Sandbox {
	if in.Sandbox != nil && in.URL != "" {
		f.addKey(p+"/sandbox", "this is for command; a server at a url runs elsewhere")
	}
	s := f.sandbox(p+"/sandbox", in.Sandbox)
	if s.Limits.CPU > 0 {
		f.addKey(p+"/sandbox/limits/cpu", "a program that stays would be killed by this sooner or later; the time of a call is bounded by its timeout")
	}
	return s
}

// bytes reads a size such as 512MB or 2GB.
func (f *yamlFile) bytes(p string, value json.RawMessage) int64 {
	text := strings.Trim(string(value), `"`)
	if text == "" {
		return 0
	}
	digits := strings.TrimRight(text, " KMGiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	shift := slices.Index([]string{"KB", "MB", "GB"}, strings.ReplaceAll(strings.TrimSpace(text[len(digits):]), "i", ""))
	if err != nil || n < 1 || n > 1<<20 || shift < 0 {
		f.add(p, "want a size such as 512MB or 2GB")
		return 0
	}
	return n << (10 * (shift + 1))
}
