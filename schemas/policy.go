package schemas

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Policy is a policy file. Its rules stand above those of all tools files. Its schema is
// policy-file.json.
type Policy struct {
	// Default decides calls that no rule matches: allow, ask or deny; "": the file does not say.
	Default string
	Rules
	Approvers []messages.Approver
	Hooks     []HookEntry
	// Sandbox limits the sandboxes of all tools: its Network, Hosts, Loopback, Limits and
	// Required. Nil: the sandboxes are as the tools file has them.
	Sandbox *Sandbox `json:",omitempty"` // omitempty keeps the version of older builds
	Tests   []PolicyTest
	// Version is the digest of the whole policy: see [Policy.Digest].
	Version string
}

// HookEntry is a hook of a policy file. At least one of Before and After is set.
type HookEntry struct {
	Name string
	// Match selects the tools of the hook: names or patterns of path.Match, separated by |. ""
	// matches every tool.
	Match    string
	Priority int
	Class    string        // gate or observe; default gate
	Budget   time.Duration // of one run; 0 means the default budget of hooks
	Before   *HookTarget
	After    *HookTarget
	Env      []string // names of environment variables that its programs get
	// Sandbox is the sandbox of its commands. Nil: the commands may do what the worker may.
	// With omitempty, a hook without a sandbox leaves the policy's version as older builds
	// compute it.
	Sandbox *Sandbox `json:",omitempty"`
	Line    int
}

// Runs reports whether the hook runs a program on the worker's machine.
func (h HookEntry) Runs() bool { return h.Before.runs() || h.After.runs() }

// HookTarget is what a hook runs or calls: exactly one of Command, HTTP and Program is set.
// With omitempty, a policy without HTTP and Program has the same version as in older builds.
type HookTarget struct {
	Command []string     // a program that is started for each call; no shell
	HTTP    *HookHTTP    `json:",omitempty"`
	Program *HookProgram `json:",omitempty"`
}

// HookHTTP is a service that gets a POST for each call.
type HookHTTP struct {
	URL     string
	Headers []HTTPValue
	// Loopback allows a URL on this machine.
	Loopback bool
}

// HookProgram is a program that keeps running and speaks MCP.
type HookProgram struct {
	Command   []string
	Tool      string // that is called; default [DefaultHookTool]
	Processes int    // for each worker
	// Shared allows calls of several tenants in one process at a time.
	Shared bool
}

// DefaultHookTool is the tool of a program that a hook calls.
const DefaultHookTool = "hook"

// PolicyTest is a call with the decision that the policy should make about it.
type PolicyTest struct {
	Name, Tool         string
	Kind               messages.Kind // "" is write
	Input              json.RawMessage
	Session, Principal string
	User               string // the user for whom the principal asks; "": not known
	Labels             map[string]string
	Hook               string        // opinion of the hooks: none, allow, ask or deny; default none
	Effect             string        // expected: allow, ask or deny
	Tier               messages.Tier // expected; "" accepts any
	Rule               string        // expected name of the deciding rule; "" accepts any
	Line               int
}

// ParsePolicy reads a policy file (YAML). name appears in the error, which joins one [FileError]
// for every mistake in the file.
func ParsePolicy(name string, data []byte) (Policy, error) {
	var in policyInFile
	f := readYAML(name, "policy-file", data, &in)
	p := f.policy(in)
	if err := f.Err(); err != nil {
		return Policy{}, err
	}
	p.Version = p.Digest()
	return p, nil
}

// Digest returns the version of a policy with these contents. It covers everything except
// the tests and the line numbers.
func (p Policy) Digest() string {
	p.Tests, p.Version = nil, ""
	p.Rules = p.Rules.placeless()
	p.Hooks = slices.Clone(p.Hooks)
	for i := range p.Hooks {
		p.Hooks[i].Line = 0
	}
	return messages.Digest(rawjson.MustMarshal(p))
}

func (r Rules) placeless() Rules {
	for _, list := range []*[]RuleEntry{&r.Deny, &r.Ask, &r.Allow} {
		*list = slices.Clone(*list)
		for i := range *list {
			(*list)[i].Line = 0
		}
	}
	r.Risk = slices.Clone(r.Risk)
	for i := range r.Risk {
		r.Risk[i].Line = 0
	}
	return r
}
