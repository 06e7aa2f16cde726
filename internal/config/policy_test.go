package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

const policyFile = `
deny: [Delete]
risk: [{tool: refund, when: input.cents > 100, tier: high}]
approvers: [{name: ann, key: UBYFDCVXF75FUEDKSAAXHARU2HIICMY5KXXSWV3NJF47EYJGS436KMWQ}]
hooks: [{name: fraud, match: refund, before: {command: [./fraud]}}]
`

// policed returns the policy that is made of a policy file, settings and the rules of a tools
// file.
func policed(t *testing.T, policy, settings string, tools schemas.Rules) *Policy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := load(t, sources(settings, []string{"TOOLFLEET_POLICY=" + file})).ReadPolicy("a/tools.yaml", tools)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLayersOfAPolicy(t *testing.T) {
	tools := schemas.Rules{Ask: []schemas.RuleEntry{{Name: "Send", Tool: "Send"}}}
	p := policed(t, policyFile, "permissions: {deny: [Bash]}\n", tools)
	rules, err := p.Permissions()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ tool, input, effect, layer string }{
		{"Delete", `{}`, "deny", "policy.yaml"},
		{"Bash", `{}`, "deny", FileName},
		{"Send", `{}`, "ask", "tools.yaml"},
		{"refund", `{"cents":101}`, "ask", "policy.yaml"},
		{"refund", `{"cents":100}`, "allow", ""},
	} {
		got := rules.Decide(permission.Call{Tool: schemas.Tool{Name: tc.tool, Kind: messages.KindWrite}, Input: json.RawMessage(tc.input)}).Weigh(permission.Opinion{})
		if got.Effect != tc.effect || got.Layer != tc.layer || got.Policy != p.Version() {
			t.Errorf("%s %s: got %+v, want %s by a rule of %q", tc.tool, tc.input, got.Permission, tc.effect, tc.layer)
		}
	}
	if a, err := p.approvers(); err != nil || a.Len() != 1 {
		t.Errorf("approvers: %d, %v", a.Len(), err)
	}
	if _, err := p.Hooks("1", worker.Place{}, nil); err != nil {
		t.Errorf("hooks: %v", err)
	}
}

func TestNeedsOfAPolicy(t *testing.T) {
	for policy, want := range map[string]int{
		"deny: [Bash]\nallow: [Read]": 0, "risk: [{tool: pay, tier: medium}]": 0,
		"default: ask": 1, "ask: [Bash]": 1, "risk: [{tool: pay, tier: high}]": 1,
		"risk: [{tool: pay, tier: critical}]": 2, "risk: [{tool: pay, tier: critical}, {tool: pay, tier: high}]\nask: [Bash]": 2,
	} {
		if got := policed(t, policy, "", schemas.Rules{}).Needs(); got != want {
			t.Errorf("%q: %d people, want %d", policy, got, want)
		}
	}
	if got := policed(t, "deny: [Rm]", "permissions: {ask: [Bash]}\n", schemas.Rules{}).Needs(); got != 1 {
		t.Errorf("asked by the settings: %d people, want 1", got)
	}
}

// The version of a policy changes with everything that affects decisions, wherever it is
// written, and with nothing else.
func TestVersionOfAPolicy(t *testing.T) {
	base := policed(t, policyFile, "", schemas.Rules{}).Version()
	for name, p := range map[string]*Policy{
		"a rule of the settings":   policed(t, policyFile, "permissions: {allow: [Read]}\n", schemas.Rules{}),
		"a rule of the tools file": policed(t, policyFile, "", schemas.Rules{Deny: []schemas.RuleEntry{{Name: "X", Tool: "X"}}}),
		"the default":              policed(t, policyFile, "permissions: {default: deny}\n", schemas.Rules{}),
		"a tier":                   policed(t, strings.Replace(policyFile, "high", "critical", 1), "", schemas.Rules{}),
		"a hook":                   policed(t, strings.Replace(policyFile, "./fraud", "./scam", 1), "", schemas.Rules{}),
	} {
		if p.Version() == base {
			t.Errorf("%s differs, and the version is the same", name)
		}
	}
	if got := policed(t, "# moved down\n\n"+policyFile, "slots: 3\n", schemas.Rules{}).Version(); got != base {
		t.Error("a comment changes the version")
	}
}

func TestDefaultOfAPolicy(t *testing.T) {
	for _, tc := range []struct{ policy, settings, want string }{
		{"", "", "allow"},
		{"default: ask\n", "", "ask"},
		{"default: allow\n", "permissions: {default: deny}\n", "deny"},
		{"default: deny\n", "permissions: {default: allow}\n", "deny"},
	} {
		if got := policed(t, tc.policy+"tests: []\n", tc.settings, schemas.Rules{}).Default; got != tc.want {
			t.Errorf("%q and %q: the default is %s, want %s", tc.policy, tc.settings, got, tc.want)
		}
	}
}

func TestApprovalTTL(t *testing.T) {
	if c := load(t, sources("batch_ttl: 10s\n", nil)); c.Workers.ApprovalTTL != c.Coordinators.BatchTTL {
		t.Errorf("approval_ttl is %v by itself, and batch_ttl %v", c.Workers.ApprovalTTL, c.Coordinators.BatchTTL)
	}
	if _, err := Load(sources("batch_ttl: 10s\napproval_ttl: 11s\n", nil)); err == nil {
		t.Error("an approval_ttl beyond batch_ttl is taken")
	}
	if _, err := Load(sources("approver: {name: \"a b\"}\n", nil)); err == nil {
		t.Error("an approver's name with a space in it is taken")
	}
}
