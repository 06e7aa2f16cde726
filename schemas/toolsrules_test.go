package schemas

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

func TestParseConditionsAndRules(t *testing.T) {
	file := parseFile(t, "tools-rules.yaml")
	deploy, sh := file.Tools[0].Tool, file.Tools[1].Tool
	want := []SemanticRule{
		{Require: "input.from < input.to", Message: "from has to be before to.", Code: "bad_range"},
		{Require: "has(input.to) &&\ninput.to <= 100\n", Message: "At most 100."},
	}
	if diff := cmp.Diff(want, deploy.Semantic); diff != "" || deploy.SafeWhen != "input.dry_run" || deploy.ConcurrencySafe != nil || deploy.Risk != messages.TierHigh {
		t.Errorf("deploy: got %+v\n%s", deploy, diff)
	}
	if sh.SafeWhen != `!input.command.contains("cache")` || sh.Risk != messages.TierMedium || len(sh.Semantic) != 1 {
		t.Errorf("sh: got %+v", sh)
	}
	rules := Rules{
		Deny:  []RuleEntry{{Name: "deploy(to=prod*)", Tool: "deploy", Argument: "to=prod*", Line: 16}},
		Ask:   []RuleEntry{{Name: "deploy when input.to > 50", Tool: "deploy", When: "input.to > 50", Line: 17}},
		Allow: []RuleEntry{{Name: "sh(ls:*)", Tool: "sh", Argument: "ls:*", Line: 18}},
		Risk:  []RiskEntry{{Name: "critical: deploy when input.to > 90", Tool: "deploy", When: "input.to > 90", Tier: messages.TierCritical, Line: 19}},
	}
	if diff := cmp.Diff(rules, file.Rules); diff != "" {
		t.Error(diff)
	}
}

func TestConditionsNameEveryMistake(t *testing.T) {
	const known = "; an expression reads input, labels, tool.name, tool.kind, tool.pool, session.id, principal.id, principal.user"
	for _, tt := range []mistakesCase{
		{"concurrency_safe", toolWith("concurrency_safe: inptu.n > 1"), true, []string{"f:5:21: tools[0].concurrency_safe: 'inptu' is not known" + known}},
		{"concurrency_safe is another's word", toolWith("concurrency_safe: 'yes'"), true, []string{"f:5:22: tools[0].concurrency_safe: 'yes' is not known" + known}},
		{"concurrency_safe asks who", toolWith(`concurrency_safe: session.id == "a"`), true, []string{
			"f:5:21: tools[0].concurrency_safe: only tool and input are known here, neither session nor principal nor labels"}},
		{"semantic is text", toolWith("semantic: input.n > 1"), false, []string{
			`f:5:13: tools[0].semantic: want a list of {require: input.amount > 0, message: "the amount has to be positive", code: bad_amount}, got text`}},
		{"semantic of nothing", toolWith("semantic: [{}, x]"), false, []string{
			`f:5:14: tools[0].semantic[0]: require is missing; want {require: input.amount > 0, message: "the amount has to be positive", code: bad_amount}`,
			`f:5:14: tools[0].semantic[0]: message is missing; want {require: input.amount > 0, message: "the amount has to be positive", code: bad_amount}`,
			`f:5:18: tools[0].semantic[1]: want {require: input.amount > 0, message: "the amount has to be positive", code: bad_amount}, got text`}},
		{"semantic's keys", toolWith("semantic:", `- {require: input.n, message: "", code: Bad, why: x}`, `- {require: "1", message: a}`), false, []string{
			"f:6:33: tools[0].semantic[0].message: want text that is not empty",
			`f:6:43: tools[0].semantic[0].code: "Bad": want a code such as bad_amount`,
			`f:6:48: tools[0].semantic[0]: unknown key "why"; the keys here: code, message, require`,
			"f:7:16: tools[0].semantic[1].require: results in int, want true or false"}},
		{"risk", toolWith("risk: extreme"), false, []string{`f:5:9: tools[0].risk: "extreme" is not one of low, medium, high, critical`}},
		{"permissions are a list", toolWith() + "permissions: []\n", false, []string{
			"f:6:14: permissions: want {deny: [...], ask: [...], allow: [...], risk: [...]}, got a list"}},
		{"permissions' keys", toolWith() + "permissions: {default: deny, deny: [{when: x}]}\n", false, []string{
			`f:6:15: permissions: unknown key "default"; the keys here: allow, ask, deny, risk`,
			"f:6:44: permissions.deny[0].when: 'x' is not known" + known}},
		{"permissions' names", toolWith() + "permissions: {deny: [x], ask: [x]}\n", true, []string{
			`f:6:32: permissions.ask[0]: a rule named "x" is there already, in line 6; give this one another name`}},
	} {
		t.Run(tt.name, tt.check)
	}
}

func TestWithDefaultsChecksConditions(t *testing.T) {
	yes := true
	for want, tool := range map[string]Tool{
		"tool x: concurrency_safe and safe_when: want one of them":                        {ConcurrencySafe: &yes, SafeWhen: "true"},
		"tool x: safe_when: 1:7: the expression ends too early":                           {SafeWhen: "input."},
		"tool x: safe_when: only tool and input are known here, neither session nor prin": {SafeWhen: `principal.id == ""`},
		"tool x: semantic[1]: 1:1: results in string, want true or false":                 {Semantic: []SemanticRule{{Require: "true", Message: "a"}, {Require: `"a"`}}},
		"tool x: semantic[0]: message is empty":                                           {Semantic: []SemanticRule{{Require: "true"}}},
		`tool x: risk "huge": want low, medium, high or critical`:                         {Risk: "huge"},
	} {
		tool.Name = "x"
		if _, err := tool.WithDefaults(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestDigestOfTools: a tool without the newer keys keeps the digest that older workers announced,
// and every newer key changes the digest.
func TestDigestOfTools(t *testing.T) {
	plain := Tool{Name: "lookup", Kind: messages.KindRead, ShellCommand: "c", MaxOutput: 10}
	seen := map[string]bool{}
	safe, semantic, code, risk := plain, plain, plain, plain
	safe.SafeWhen = "true"
	semantic.Semantic = []SemanticRule{{Require: "true", Message: "a"}}
	code.Semantic = []SemanticRule{{Require: "true", Message: "a", Code: "b"}}
	risk.Risk = messages.TierLow
	for _, tool := range []Tool{plain, safe, semantic, code, risk} {
		tool, err := tool.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if seen[tool.Digest] {
			t.Errorf("%+v has the digest of another", tool)
		}
		seen[tool.Digest] = true
	}
	if !seen["4dccbcc626408e0243d2a567daecf9ec3093ce9e19800073fe24457ff8ca6f98"] {
		t.Errorf("the digest of %+v has changed: %v", plain, seen)
	}
}
