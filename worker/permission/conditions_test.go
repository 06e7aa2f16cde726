package permission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

var refund = schemas.Tool{Name: "refund", Kind: messages.KindWrite, Pool: "payments"}

// A condition narrows its rule. If a condition cannot be evaluated, the stricter result holds,
// and the reason quotes no value of the call.
func TestConditions(t *testing.T) {
	for _, tt := range []struct {
		when, input        string
		matches, evaluated bool
	}{
		{`input.amount > 50`, `{"amount":50.01}`, true, true},
		{`input.amount > 50`, `{"amount":50}`, false, true},
		{`input.amount > 50`, `{}`, false, false},
		{`input.amount > 50`, `{"amount":"SECRET"}`, false, false},
		{`int(input.amount) > 50`, `{"amount":"SECRET"}`, false, false},
		{`true`, `{"amount":1e400}`, false, false},
		{`tool.name == "refund" && tool.kind == "write" && tool.pool == "payments"`, `{}`, true, true},
		{`session.id == "s" && principal.id == "acme"`, `{}`, true, true},
		{`principal.id == "other"`, `{}`, false, true},
	} {
		call := Call{Tool: refund, Input: json.RawMessage(tt.input), Session: "s", Tenant: "acme"}
		for _, effect := range []Effect{Deny, Ask, Allow} {
			rules := mustNew(t, Config{Layers: []Layer{{Source: "p", Rules: rulesOf(effect, schemas.RuleEntry{Name: "the-rule", Tool: "ref*", When: tt.when})}}})
			d := rules.Decide(call)
			want := tt.matches || !tt.evaluated && effect != Allow
			if d.Matched != want || want && d.Effect != effect {
				t.Errorf("%s when %s on %s: got %s, matched %v, want %v", effect, tt.when, tt.input, d.Effect, d.Matched, want)
			}
			reason := d.Weigh(Opinion{}).Reason
			if said := strings.Contains(reason, "the rule "+string(effect)+" the-rule (p) could not be evaluated"); said == tt.evaluated || strings.Contains(reason, "SECRET") {
				t.Errorf("%s when %s on %s: the reason is %q", effect, tt.when, tt.input, reason)
			}
			if denied, ok := rules.Denied(call); ok != (want && effect == Deny) || ok && denied.Reason() != d.Reason() {
				t.Errorf("%s when %s on %s: Denied = %v %q", effect, tt.when, tt.input, ok, denied.Reason())
			}
			if rules.Decide(Call{Tool: lookup, Input: call.Input}).Matched {
				t.Errorf("%s when %s: matches another tool", effect, tt.when)
			}
		}
	}
}

// A rule may have both an argument pattern and a condition; both have to match.
func TestConditionBesideArgument(t *testing.T) {
	rules := mustNew(t, Config{Layers: []Layer{{Source: "p", Rules: schemas.Rules{Deny: []schemas.RuleEntry{{Tool: "refund", Argument: "currency=EU*", When: "input.amount > 50"}}}}}})
	for input, want := range map[string]bool{
		`{"currency":"EUR","amount":51}`: true, `{"currency":"USD","amount":51}`: false, `{"currency":"EUR","amount":50}`: false, `{"currency":"USD"}`: false,
	} {
		if got := rules.Decide(Call{Tool: refund, Input: json.RawMessage(input)}).Matched; got != want {
			t.Errorf("%s: matches = %v, want %v", input, got, want)
		}
	}
}

func TestTiers(t *testing.T) {
	layers := []Layer{
		{Source: "policy.yaml", Rules: schemas.Rules{Risk: []schemas.RiskEntry{
			{Name: "writes", Tool: "*", When: `tool.kind == "write"`, Tier: messages.TierMedium},
			{Name: "over-50", Tool: "refund", When: `input.amount > 50`, Tier: messages.TierHigh, Reason: "More than 50."},
			{Name: "harmless", Tool: "refund", Tier: messages.TierLow},
		}}},
		{Source: "tools.yaml", Rules: schemas.Rules{Risk: []schemas.RiskEntry{
			{Name: "over-5000", Tool: "refund", When: `input.amount > 5000`, Tier: messages.TierCritical},
			{Name: "over-60", Tool: "refund", When: `input.amount > 60`, Tier: messages.TierHigh},
		}}},
	}
	rules := mustNew(t, Config{Layers: layers, Version: "v7"})
	risky := func(own messages.Tier) schemas.Tool {
		tool := refund
		tool.Risk = own
		return tool
	}
	for _, tt := range []struct {
		tool   schemas.Tool
		input  string
		tier   messages.Tier
		rule   string
		people int
		reason string
	}{
		{lookup, `{}`, messages.TierLow, "", 0, ""},
		{refund, `{"amount":50}`, messages.TierMedium, "writes", 0, ""},
		{refund, `{"amount":50.01}`, messages.TierHigh, "over-50", 1, "the tier is high, by over-50 (policy.yaml): More than 50"},
		{refund, `{"amount":61}`, messages.TierHigh, "over-50", 1, ""},
		{refund, `{"amount":5001}`, messages.TierCritical, "over-5000", 2, "the tier is critical, by over-5000 (tools.yaml)"},
		{refund, `{"amount":"x"}`, messages.TierCritical, "over-5000", 2, "the tier is critical, because over-5000 (tools.yaml) could not be evaluated: a value is of a type that it cannot work with"},
		{risky(messages.TierHigh), `{"amount":1}`, messages.TierHigh, "tool risk", 1, "the tier is high, by tool risk (tools file)"},
		{risky(messages.TierHigh), `{"amount":5001}`, messages.TierCritical, "over-5000", 2, ""},
		{risky(messages.TierCritical), `{"amount":1}`, messages.TierCritical, "tool risk", 2, ""},
		{risky(messages.TierLow), `{"amount":1}`, messages.TierMedium, "writes", 0, ""},
	} {
		d := rules.Decide(Call{Tool: tt.tool, Input: json.RawMessage(tt.input)})
		r := d.Weigh(Opinion{Opinion: "allow", By: "h"})
		if d.Tier != tt.tier || d.Risk.Name != tt.rule || r.Approvers != tt.people || r.Ticket != (tt.people == 2) || (r.Effect == "ask") != (tt.people > 0) {
			t.Errorf("%s %s: got tier %s by %q, %s by %d people, want %s by %q, %d people", tt.tool.Name, tt.input, d.Tier, d.Risk.Name, r.Effect, r.Approvers, tt.tier, tt.rule, tt.people)
		}
		if tt.reason != "" && r.Reason != tt.reason {
			t.Errorf("%s %s: the reason is %q, want %q", tt.tool.Name, tt.input, r.Reason, tt.reason)
		}
		if r.Policy != "v7" || r.Tier != tt.tier {
			t.Errorf("%s %s: the ruling says policy %q and tier %q", tt.tool.Name, tt.input, r.Policy, r.Tier)
		}
	}
	if d := (Rules{}).Decide(Call{Tool: risky(messages.TierCritical)}); d.Weigh(Opinion{}).Approvers != 2 {
		t.Error("without a policy the tool's own tier does not count")
	}
	if rules.Version() != "v7" {
		t.Errorf("version %q", rules.Version())
	}
}

// A tool need not be offered to a model only if every call of it is denied.
func TestDeniesTool(t *testing.T) {
	for _, tt := range []struct {
		rules schemas.Rules
		want  bool
	}{
		{schemas.Rules{Deny: []schemas.RuleEntry{{Tool: "ref*"}}}, true},
		{schemas.Rules{Deny: []schemas.RuleEntry{{Tool: "refund", Argument: "*"}}}, false},
		{schemas.Rules{Deny: []schemas.RuleEntry{{Tool: "refund", When: "true"}}}, false},
		{schemas.Rules{Ask: []schemas.RuleEntry{{Tool: "refund"}}}, false},
		{schemas.Rules{Risk: []schemas.RiskEntry{{Tool: "refund", Tier: messages.TierCritical}}}, false},
	} {
		if got := mustNew(t, Config{Layers: []Layer{{Source: "p", Rules: tt.rules}}}).DeniesTool("refund"); got != tt.want {
			t.Errorf("%+v: got %v, want %v", tt.rules, got, tt.want)
		}
	}
}

func TestReasons(t *testing.T) {
	rules := mustNew(t, Config{Default: Ask, Layers: []Layer{{Source: "p", Rules: schemas.Rules{
		Deny:  []schemas.RuleEntry{{Name: "none-at-night", Tool: "refund", When: `principal.id == "night"`, Reason: "Refunds are made by day.\n"}},
		Allow: []schemas.RuleEntry{{Name: "small", Tool: "refund", When: `input.amount < 5`}},
	}}}})
	for _, tt := range []struct {
		principal, input string
		hook             Opinion
		want             string
	}{
		{"night", `{}`, Opinion{}, "the rule: deny none-at-night (p): Refunds are made by day"},
		{"day", `{"amount":1}`, Opinion{}, "the rule: allow small (p)"},
		{"day", `{"amount":9}`, Opinion{}, "no rule matches, and the default is ask"},
		{"day", `{}`, Opinion{}, "no rule matches, and the default is ask; the rule allow small (p) could not be evaluated: a member that it reads is not there"},
		{"day", `{"amount":1}`, Opinion{Opinion: "ask", By: "fraud", Reason: "It looks odd."}, "the hook fraud asks: It looks odd"},
		{"day", `{"amount":1}`, Opinion{Opinion: "deny", By: "fraud", Reason: ""}, "the hook fraud denies"},
		{"day", `{"amount":9}`, Opinion{Opinion: "allow", By: "fraud", Reason: "known customer"}, "the hook fraud allows: known customer"},
		{"day", `{"amount":9}`, Opinion{Opinion: "perhaps", By: "fraud", Reason: ""}, "the hook fraud denies"},
	} {
		if got := rules.Decide(Call{Tool: refund, Input: json.RawMessage(tt.input), Session: "s", Tenant: messages.TenantID(tt.principal)}).Weigh(tt.hook).Reason; got != tt.want {
			t.Errorf("%s %s %+v: got %q, want %q", tt.principal, tt.input, tt.hook, got, tt.want)
		}
	}
}

// Rules without a condition do not parse the input, however large or strange it is.
func TestDecideReadsNothingThatNobodyAsksFor(t *testing.T) {
	rules := mustNew(t, Config{Layers: []Layer{{Source: "p", Rules: schemas.Rules{
		Deny: short(t, "mcp__*", "Bash(rm:*)"), Allow: short(t, "refund"), Risk: []schemas.RiskEntry{{Tool: "refund", Tier: messages.TierMedium}},
	}}}})
	call := Call{Tool: refund, Input: json.RawMessage(strings.Repeat("[", 1<<20))}
	if n := testing.AllocsPerRun(100, func() { rules.Decide(call); rules.Denied(call) }); n > 0 {
		t.Errorf("%v allocations by rules without conditions, want none", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	input := rawjson.MustMarshal(map[string]any{"amount": 20, "order": "A-1001", "note": strings.Repeat("text ", 200)})
	call := Call{Tool: refund, Input: input, Session: "s", Tenant: "acme"}
	many := func(when string) (entries []schemas.RuleEntry) {
		for i := range 100 {
			entries = append(entries, schemas.RuleEntry{Name: fmt.Sprint(i), Tool: "refund", When: when})
		}
		return entries
	}
	other := many("")
	for i := range other {
		other[i].Tool = fmt.Sprintf("tool_%d", i)
	}
	for name, entries := range map[string][]schemas.RuleEntry{
		"no rules": nil, "100 rules of other tools": other, "1 condition": many(`input.amount > 50`)[:1],
		"100 conditions": many(`input.amount > 50 && input.order.startsWith("B-")`),
	} {
		rules := mustNew(b, Config{Layers: []Layer{{Source: "p", Rules: schemas.Rules{Deny: entries}}}})
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if rules.Decide(call).Effect != Allow {
					b.Fatal("denied")
				}
			}
		})
	}
}
