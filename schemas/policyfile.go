package schemas

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
	"github.com/toolfleet/toolfleet/messages"
)

// policyInFile is a policy file as it is written. Its own fields shadow those of the types that it
// embeds.
type policyInFile struct {
	Default string
	rulesInFile
	Groups []struct {
		Name    string
		Tenants []string
		Tools   []string
	}
	Approvers []struct {
		messages.Approver
		Groups  []string `json:"groups"`
		Expires string   `json:"expires"`
	}
	Hooks []struct {
		HookEntry
		Budget        string
		Priority      json.Number
		Before, After *hookTargetInFile
		Sandbox       *sandboxInFile
	}
	Sandbox *sandboxInFile
	Tests   []struct {
		PolicyTest
		Expect struct {
			Effect string
			Tier   messages.Tier
			Rule   string
		}
	}
}

type hookTargetInFile struct {
	Command []string
	HTTP    *struct {
		URL      string
		Headers  map[string]httpValueInFile
		Loopback bool
	}
	Program *struct {
		Command   []string
		Tool      string
		Processes int
		Tenants   string
	}
}

func (f *yamlFile) policy(in policyInFile) Policy {
	p := Policy{Default: in.Default, Rules: f.rules("", in.rulesInFile), Approvers: f.approvers(in), Hooks: f.hooks(in), Tests: f.tests(in)}
	if in.Sandbox != nil {
		bounds := f.sandbox("/sandbox", in.Sandbox)
		p.Sandbox = &bounds
	}
	return p
}

// approvers checks that each approver has a name and a key of its own. Errors never quote a key,
// because somebody may have pasted a seed by mistake.
func (f *yamlFile) approvers(in policyInFile) (all []messages.Approver) {
	scopes := f.scopes(in)
	names, keys := map[string]int{}, map[string]int{}
	for i, entry := range in.Approvers {
		a, p := entry.Approver, fmt.Sprintf("/approvers/%d", i)
		for n, group := range entry.Groups {
			scope, known := scopes[group]
			if !known {
				f.add(fmt.Sprintf("%s/groups/%d", p, n), "there is no group %q; groups stand in the list groups of this file", strictyaml.Clip(group))
			}
			a.Scopes = append(a.Scopes, scope)
		}
		a.Expires = f.time(p+"/expires", entry.Expires)
		f.unique(p+"/name", names, a.Name, "an approver")
		if a.Key != "" && !nkeys.IsValidPublicUserKey(a.Key) {
			f.add(p+"/key", "want the public key of a user: U and 55 characters")
		}
		if line, twice := keys[a.Key]; twice && a.Key != "" {
			f.add(p+"/key", "the key is there already, in line %d; two names of one key would be two people that are one", line)
		}
		keys[a.Key] = f.line(p + "/key")
		a.ActsAs = nonEmpty(a.ActsAs)
		all = append(all, a)
	}
	return all
}

// scopes returns, for each group of approvers by its name, the calls that the group may
// decide about.
func (f *yamlFile) scopes(in policyInFile) map[string]messages.Scope {
	names, all := map[string]int{}, map[string]messages.Scope{}
	for i, g := range in.Groups {
		p := fmt.Sprintf("/groups/%d", i)
		f.unique(p+"/name", names, g.Name, "a group")
		for n, pattern := range g.Tools {
			f.patterns(fmt.Sprintf("%s/tools/%d", p, n), pattern)
		}
		all[g.Name] = messages.Scope{Group: g.Name, Tenants: nonEmpty(g.Tenants), Tools: nonEmpty(g.Tools)}
	}
	return all
}

// time reads a point in time, or a day, which means its beginning in UTC. "" gives the zero
// time.
func (f *yamlFile) time(pointer, text string) (at time.Time) {
	if text == "" {
		return at
	}
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		at, err = time.Parse(time.RFC3339, text)
	}
	if err != nil {
		f.add(pointer, "want a day such as 2027-06-30, or a time such as 2027-06-30T18:00:00Z")
	}
	return at.UTC()
}

func (f *yamlFile) hooks(in policyInFile) (all []HookEntry) {
	names := map[string]int{}
	for i, h := range in.Hooks {
		p := fmt.Sprintf("/hooks/%d", i)
		hook := h.HookEntry
		f.label(p+"/name", hook.Name)
		f.unique(p+"/name", names, hook.Name, "a hook")
		// Refuse a pattern that matches no tool, because its gate would let every call pass.
		f.patterns(p+"/match", hook.Match)
		hook.Class, hook.Env, hook.Line = cmp.Or(hook.Class, "gate"), nonEmpty(hook.Env), f.line(p)
		hook.Budget = f.duration(p+"/budget", h.Budget)
		hook.Priority = f.wholeNumber(p+"/priority", h.Priority)
		hook.Before, hook.After = f.hookTarget(p+"/before", h.Before), f.hookTarget(p+"/after", h.After)
		if len(hook.Env) > 0 && !hook.Before.runs() && !hook.After.runs() {
			f.addKey(p+"/env", "this is for programs; a service gets headers")
		}
		hook.Sandbox = f.hookSandbox(p+"/sandbox", h.Sandbox, hook)
		all = append(all, hook)
	}
	return all
}

// hookSandbox reads the sandbox of a hook at p. Nil: it has none.
func (f *yamlFile) hookSandbox(p string, in *sandboxInFile, hook HookEntry) *Sandbox {
	if in == nil {
		return nil
	}
	commands := false
	for _, target := range []*HookTarget{hook.Before, hook.After} {
		if target != nil && target.Program != nil {
			f.addKey(p, "this is for a command that is started for each call; a program that stays has no sandbox as a hook")
		}
		commands = commands || target != nil && len(target.Command) > 0
	}
	if !commands && !f.faulty[p] {
		f.addKey(p, "this is for hooks with a command; a service runs elsewhere")
	}
	if s := f.sandbox(p, in); !s.Off {
		return &s
	}
	return nil
}

func (f *yamlFile) hookTarget(p string, in *hookTargetInFile) *HookTarget {
	switch {
	case in == nil:
		return nil
	case in.HTTP != nil:
		service := HookHTTP{URL: in.HTTP.URL, Loopback: in.HTTP.Loopback}
		f.url(p+"/http/url", service.URL)
		service.Headers = f.httpValues(p+"/http/headers", in.HTTP.Headers, httpMembers{})
		f.settable(p+"/http/headers", service.Headers)
		return &HookTarget{HTTP: &service}
	case in.Program != nil:
		program := HookProgram{
			Command: in.Program.Command, Tool: cmp.Or(in.Program.Tool, DefaultHookTool),
			Processes: max(in.Program.Processes, 1), Shared: in.Program.Tenants == "shared",
		}
		if program.Processes > maxProcesses {
			f.add(p+"/program/processes", "want at most %d", maxProcesses)
		}
		return &HookTarget{Program: &program}
	}
	return &HookTarget{Command: in.Command}
}

// runs reports whether the target is a program.
func (t *HookTarget) runs() bool { return t != nil && t.HTTP == nil }

func (f *yamlFile) tests(in policyInFile) (all []PolicyTest) {
	for i, t := range in.Tests {
		p := fmt.Sprintf("/tests/%d", i)
		test := t.PolicyTest
		f.label(p+"/name", test.Name)
		f.words(p+"/session", test.Session)
		f.words(p+"/principal", test.Principal)
		f.words(p+"/user", test.User)
		f.words(p+"/expect/rule", t.Expect.Rule)
		test.Effect, test.Tier, test.Rule, test.Line = t.Expect.Effect, t.Expect.Tier, t.Expect.Rule, f.line(p)
		test.Name, test.Hook = cmp.Or(test.Name, test.Tool), cmp.Or(test.Hook, "none")
		if test.Input == nil {
			test.Input = json.RawMessage(`{}`)
		}
		all = append(all, test)
	}
	return all
}
