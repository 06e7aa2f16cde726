package schemas

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Policy is a policy file: the layer of rules above all tools files. policy-file.json is its schema.
type Policy struct {
	// Default decides the calls that no rule matches: allow, ask or deny; "" when the file leaves it open.
	Default string
	Rules
	Approvers []messages.Approver
	Hooks     []HookEntry
	Tests     []PolicyTest
	// Version is a digest of what decides: everything but the tests, and what only a reader sees. Two spellings
	// of one policy have one version.
	Version string
}

// HookEntry is a hook that is a program. At least one of Before and After is set.
type HookEntry struct {
	Name     string
	Match    string // a tool's name, or a pattern of path.Match; "" matches every tool
	Priority int
	Class    string        // gate or observe; default gate
	Budget   time.Duration // of one run; 0 is the default of hooks
	Before   *Exec
	After    *Exec
	Env      []string // names of environment variables that its programs get to see
	Line     int
}

// PolicyTest is a call, and what the policy has to say about it.
type PolicyTest struct {
	Name, Tool         string
	Kind               messages.Kind // "" is write
	Input              json.RawMessage
	Session, Principal string
	Hook               string        // what the hooks say: none, allow, ask or deny; default none
	Effect             string        // expected: allow, ask or deny
	Tier               messages.Tier // expected; "" is any
	Rule               string        // expected name of what decides; "" is any
	Line               int
}

// ParsePolicy reads a policy file (YAML). name stands in the errors, which tell every mistake at once, one
// [FileError] each, joined.
func ParsePolicy(name string, data []byte) (Policy, error) {
	return Policy{}, errors.New("not yet")
}
