// Package policy is "toolfleet policy": it runs the tests of a policy file and explains what the
// policy decides about a call.
package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/approvals"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// Cmd is "toolfleet policy".
type Cmd struct {
	Test    testCmd    `cmd:"" help:"Run the tests of a policy file."`
	Explain explainCmd `cmd:"" help:"Say what the policy decides about a call, and why."`
}

// judge is a policy and the tools that it applies to.
type judge struct {
	policy *config.Policy
	rules  permission.Rules
	tools  map[string]schemas.Tool
}

// newJudge reads the policy of the settings. It includes the rules and tiers of the tools file if
// there is one.
func newJudge(a *command.App, cfg *config.Config) (*judge, error) {
	tools, rules, err := localtools.Promises(a.Ctx, cfg, localtools.Here)
	if err != nil {
		return nil, err
	}
	j := &judge{tools: map[string]schemas.Tool{}}
	if j.policy, err = localtools.Policy(cfg, rules); err != nil {
		return nil, err
	}
	if j.rules, err = j.policy.Permissions(); err != nil {
		return nil, command.Usage(err)
	}
	for _, t := range tools {
		j.tools[t.Name] = t
	}
	return j, err
}

// decide returns the ruling on a call. opinion is the opinion of its hooks; "": no hook has
// one.
func (j *judge) decide(c permission.Call, opinion string) permission.Ruling {
	return j.rules.Decide(c).Weigh(permission.Opinion{Opinion: opinion, By: "a hook"})
}

// TooFewApprovers returns a warning if a call would be refused because the policy names too few
// approvers, else "".
func TooFewApprovers(p *config.Policy, r permission.Ruling) string {
	people := len(p.Approvers)
	if r.Effect != string(permission.Ask) || people >= r.Approvers {
		return ""
	}
	text := "needs " + approvals.Needs(messages.Pending{Approvers: r.Approvers, Ticket: r.Ticket})
	switch {
	case people > 0:
		return fmt.Sprintf("%s; the policy names %s, so it would be refused", text, terminal.Count(people, "approver"))
	case r.Approvers > 1:
		return text + "; the policy names no approvers, so it would be refused"
	}
	return text + "; the policy names no approver, so it would be refused, except by `dev`, and by `run` at a terminal, which ask whoever started them"
}

// tool returns the definition of a tool. An unknown tool has the kind that the test gives, by
// default write.
func (j *judge) tool(name string, kind messages.Kind) schemas.Tool {
	if t, known := j.tools[name]; known {
		return t
	}
	return schemas.Tool{Name: name, Kind: cmp.Or(kind, messages.KindWrite)}
}

type testCmd struct {
	daemon.General
	command.ToolFlags
	daemon.Governed
	command.OutputFlags
	File string `arg:"" optional:"" help:"The policy file. Default: that of the settings."`
}

// Help returns the text that --help shows below the command's usage.
func (testCmd) Help() string {
	return `A test names a call and the decision that the policy should make about it. Rules and tiers of the tools file and of
toolfleet.yaml count too. The exit status is 1 if a test fails.`
}

// tested is the result of one test, as -o json prints it.
type tested struct {
	Name string              `json:"name"`
	Line int                 `json:"line"`
	OK   bool                `json:"ok"`
	Want wanted              `json:"want"`
	Got  messages.Permission `json:"got"`
	// Warning says what may be wrong, even if the decision is as expected.
	Warning string `json:"warning,omitempty"`
}

type wanted struct {
	Effect string        `json:"effect"`
	Tier   messages.Tier `json:"tier,omitempty"`
	Rule   string        `json:"rule,omitempty"`
}

func (c testCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	if c.File != "" {
		cfg.Policy = config.Path(c.File)
	}
	if cfg.Policy == "" {
		return command.Usagef("there is no policy file: name one")
	}
	j, err := newJudge(a, cfg)
	if err != nil {
		return err
	}
	all, failures := []tested{}, 0
	for _, t := range j.policy.Tests {
		t.Principal = cmp.Or(t.Principal, cfg.Tenant)
		result := j.try(t)
		if all = append(all, result); !result.OK {
			failures++
		}
	}
	if c.JSON() {
		err = a.Print(map[string]any{"tests": all})
	} else {
		err = printTests(a, string(cfg.Policy), all, failures)
	}
	printWarnings(a, all)
	if err == nil && failures > 0 {
		err = command.ErrPrinted
	}
	return err
}

// try runs one test of the policy file.
func (j *judge) try(t schemas.PolicyTest) tested {
	want := wanted{t.Effect, t.Tier, t.Rule}
	input := t.Input
	if input == nil {
		input = json.RawMessage("{}")
	}
	got := j.decide(permission.Call{
		Tool: j.tool(t.Tool, t.Kind), Input: input, Session: messages.SessionID(t.Session),
		Tenant: messages.TenantID(t.Principal), User: t.User, Labels: t.Labels,
	}, strings.TrimPrefix(t.Hook, "none"))
	ok := got.Effect == t.Effect && (t.Tier == "" || t.Tier == got.Tier) && (t.Rule == "" || t.Rule == got.Rule)
	return tested{t.Name, t.Line, ok, want, got.Permission, TooFewApprovers(j.policy, got)}
}

// printWarnings prints each distinct warning once, with the names of at most three tests that have
// it.
func printWarnings(a *command.App, all []tested) {
	var warnings []string
	about := map[string][]string{}
	for _, t := range all {
		if t.Warning == "" {
			continue
		}
		if about[t.Warning] == nil {
			warnings = append(warnings, t.Warning)
		}
		about[t.Warning] = append(about[t.Warning], terminal.Clean(t.Name, 120))
	}
	for _, warning := range warnings {
		names := about[warning]
		if more := len(names) - 3; more > 0 {
			names = append(names[:3], fmt.Sprintf("%d more", more))
		}
		a.Say("warning: %s: %s", strings.Join(names, ", "), warning)
	}
}

func printTests(a *command.App, file string, all []tested, failures int) error {
	for _, t := range all {
		line := fmt.Sprintf("ok    %s: %s", terminal.Clean(t.Name, 120), verdict(t.Got))
		if !t.OK {
			line = fmt.Sprintf("FAIL  %s: want %s, got %s (%s:%d)", terminal.Clean(t.Name, 120), t.Want, verdict(t.Got), file, t.Line)
		}
		if _, err := fmt.Fprintln(a.Stdout, line); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		a.Say("%s has no tests. Its list `tests` holds them, for example {name: small, tool: refund, input: {amount: 1}, expect: {effect: allow}}", file)
		return nil
	}
	a.Say("%s, %d failed", terminal.Count(len(all), "test"), failures)
	return nil
}

func (w wanted) String() string {
	text := w.Effect
	if w.Tier != "" {
		text += ", tier " + string(w.Tier)
	}
	if w.Rule != "" {
		text += ", by " + w.Rule
	}
	return text
}

// verdict describes a decision and its source in a few words.
func verdict(p messages.Permission) string {
	text := p.Effect
	if p.Tier != "" {
		text += ", tier " + string(p.Tier)
	}
	switch {
	case p.Rule != "" && p.Layer != "":
		text += fmt.Sprintf(", by %s %q of %s", p.Source, p.Rule, p.Layer)
	case p.Rule != "":
		text += fmt.Sprintf(", by %s %q", p.Source, p.Rule)
	default:
		text += ", by the " + p.Source
	}
	return text
}

type explainCmd struct {
	daemon.General
	command.ToolFlags
	daemon.Governed
	command.OutputFlags
	Tool      string            `arg:"" help:"Name of the tool."`
	Input     string            `arg:"" help:"The call's arguments, as JSON."`
	Session   string            `placeholder:"ID" help:"Session of the call."`
	Principal string            `placeholder:"TOKEN" help:"Who asks: the tenant token of the agent. Default: the tenant of the settings."`
	User      string            `placeholder:"NAME" help:"User who asks for the tenant. Default: not known."`
	Label     map[string]string `placeholder:"NAME=VALUE" help:"A label of the batch. May be given more than once."`
	Hook      string            `enum:"none,allow,ask,deny" default:"none" placeholder:"none|allow|ask|deny" help:"What the hooks are to think of the call."`
}

// explained is the decision about one call, as -o json prints it.
type explained struct {
	Permission messages.Permission `json:"permission"`
	Reason     string              `json:"reason,omitempty"`
	Approvers  int                 `json:"approvers,omitempty"`
	Ticket     bool                `json:"ticket,omitempty"`
	Gates      []string            `json:"gates"`
}

func (c explainCmd) Run(a *command.App) error {
	if err := rawjson.Check([]byte(c.Input)); err != nil {
		return command.Usagef("INPUT is no JSON: %w", err)
	}
	if _, err := rawjson.Object([]byte(c.Input)); err != nil {
		return command.Usagef("INPUT: %w", err)
	}
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	j, err := newJudge(a, cfg)
	if err != nil {
		return err
	}
	ruling := j.decide(permission.Call{
		Tool: j.tool(c.Tool, ""), Input: json.RawMessage(c.Input), Session: messages.SessionID(c.Session),
		Tenant: messages.TenantID(cmp.Or(c.Principal, cfg.Tenant)), User: c.User, Labels: c.Label,
	}, strings.TrimPrefix(c.Hook, "none"))
	if c.JSON() {
		return a.Print(explained{ruling.Permission, ruling.Reason, ruling.Approvers, ruling.Ticket, gates(ruling)})
	}
	p := ruling.Permission
	rows := [][]string{{"effect", p.Effect}, {"by", p.Source}}
	for _, fact := range [][]string{{"rule", p.Rule}, {"of", p.Layer}, {"reason", terminal.Clean(ruling.Reason, 400)}, {"tier", string(p.Tier)}} {
		if fact[1] != "" {
			rows = append(rows, fact)
		}
	}
	rows = append(rows, []string{"gates", strings.Join(gates(ruling), ", ")})
	if cfg.Policy == "" {
		a.Say("no policy file is loaded: --policy names one")
	}
	if lacks := TooFewApprovers(j.policy, ruling); lacks != "" {
		a.Say("warning: the call %s", lacks)
	}
	if _, known := j.tools[c.Tool]; !known {
		a.Say("no tool %s is known here: it is taken for a write without a tier; --tools names the file that has it", terminal.Clean(c.Tool, 80))
	}
	return a.Table(rows)
}

// gates lists what a call needs before it runs.
func gates(r permission.Ruling) []string {
	list := []string{}
	switch {
	case r.Permission.Effect == string(permission.Deny):
		return append(list, "it does not run")
	case r.Permission.Effect == string(permission.Ask):
		list = append(list, approvals.Needs(messages.Pending{Approvers: max(1, r.Approvers), Ticket: r.Ticket}))
	}
	if t := r.Permission.Tier; t != "" && t != messages.TierLow {
		list = append(list, "a line in the audit log")
	}
	if len(list) == 0 {
		list = append(list, "nothing")
	}
	return list
}
