package schemas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	anasKey = "UBJS66RIKZMJ7THGX4BAAYZKFEDJ6IYNE5PRIQMQ6GE5KLQOOCD34X4A"
	bosKey  = "UBCIGSTT7F2AMGS2H7GZN5WCAMXEQYSQD56MXYGFHQPQPOMEP77TXRLJ"
)

func parsePolicy(t testing.TB, text string) Policy {
	t.Helper()
	p, err := ParsePolicy("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParsePolicy(t *testing.T) {
	got := parsePolicy(t, string(readFile(t, filepath.Join("testdata", "policy-full.yaml"))))
	if len(got.Version) != 64 {
		t.Errorf("version %q, want a digest", got.Version)
	}
	got.Version = ""
	want := Policy{
		Default: "ask",
		Rules: Rules{
			Deny: []RuleEntry{
				{Name: "Bash(rm:*)", Tool: "Bash", Argument: "rm:*", Line: 4},
				{Name: "refunds are for support", Tool: "refund", When: `principal.id != "support"`, Reason: "Ask the support desk.", Line: 5},
				{Name: `* when input.exists(k, k == "password") && tool.kind == "write"`, Tool: "*",
					When: `input.exists(k, k == "password") && tool.kind == "write"`, Line: 6},
			},
			Ask: []RuleEntry{
				{Name: "Bash(git push:*)", Tool: "Bash", Argument: "git push:*", Line: 9},
				{Name: "mcp__*", Tool: "mcp__*", Reason: "Not looked at yet.", Line: 9},
			},
			Allow: []RuleEntry{
				{Name: "Bash(git status:*)", Tool: "Bash", Argument: "git status:*", Line: 11},
				{Name: "scratch files", Tool: "Write", Argument: "/tmp/**", Line: 12},
			},
			Risk: []RiskEntry{
				{Name: "high: refund when input.amount > 50", Tool: "refund", When: "input.amount > 50", Tier: messages.TierHigh, Line: 15},
				{Name: `critical: refund when input.amount > 5000 || input.currency != "EUR"`, Tool: "refund",
					When: "input.amount > 5000 ||\ninput.currency != \"EUR\"\n", Reason: "Large, or foreign.", Tier: messages.TierCritical, Line: 16},
				{Name: "medium: *", Tool: "*", Tier: messages.TierMedium, Line: 22},
			},
		},
		Approvers: []messages.Approver{{Name: "ana", Key: anasKey, ActsAs: []string{"support"}, Expires: time.Date(2027, 6, 30, 0, 0, 0, 0, time.UTC),
			Scopes: []messages.Scope{{Group: "payments", Tenants: []string{"acme"}, Tools: []string{"refund", "bank_*"}}, {Group: "night", Tenants: []string{"acme", "globex"}}}}, {Name: "bo@example.com", Key: bosKey}},
		Hooks: []HookEntry{
			{Name: "fraud", Match: "refund|mcp__pay*", Priority: -1, Class: "gate", Budget: 2 * time.Second,
				Before: &HookTarget{Command: []string{"./fraud", "--strict"}}, Env: []string{"FRAUD_URL"}, Line: 31},
			{Name: "log", Class: "observe", Before: &HookTarget{Command: []string{"./log"}}, After: &HookTarget{Command: []string{"./log", "--done"}}, Line: 37},
			{Name: "service", Class: "gate", Line: 38,
				Before: &HookTarget{HTTP: &HookHTTP{URL: "https://hooks.internal/before", Headers: []HTTPValue{
					{Name: "Authorization", Secret: "hooks_token", Prefix: "Bearer "}, {Name: "X-Team", Template: "payments"}}}},
				After: &HookTarget{HTTP: &HookHTTP{URL: "http://127.0.0.1:8080/after?v=1", Loopback: true}}},
			{Name: "stays", Class: "gate", Env: []string{"FRAUD_URL"}, Line: 41,
				Before: &HookTarget{Program: &HookProgram{Command: []string{"python3", "hooks.py"}, Tool: "check", Processes: 2, Shared: true}}},
		},
		Tests: []PolicyTest{
			{Name: "small refund", Tool: "refund", Kind: messages.KindWrite, Input: []byte(`{"amount":20.50,"currency":"EUR"}`), Principal: "support",
				Hook: "none", Effect: "allow", Line: 43},
			{Name: "refund", Tool: "refund", Input: []byte(`{"amount":51}`), Session: "s-1", Principal: "support", Hook: "allow", Effect: "ask",
				Tier: messages.TierHigh, Rule: "high: refund when input.amount > 50", Line: 44},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The version of a policy depends only on what decides. A granted call runs under the policy
// that granted it, and a changed comment does not make another policy.
func TestVersionIsOfWhatDecides(t *testing.T) {
	base := "deny: [Bash]\nrisk: [{tier: high, tool: refund, when: input.amount > 50}]\n"
	version := parsePolicy(t, base).Version
	for _, same := range []string{
		"# why\n\n" + base,
		"deny:\n- Bash\nrisk:\n- tool: refund\n  when: 'input.amount > 50'\n  tier: high\n",
		base + "tests: [{tool: refund, expect: {effect: allow}}]\n",
	} {
		if got := parsePolicy(t, same).Version; got != version {
			t.Errorf("%q has another version", same)
		}
	}
	seen := map[string]string{version: base}
	for _, other := range []string{
		"{}", "default: deny\n" + base, base + "ask: [x]", base + "allow: [x]", strings.Replace(base, "high", "critical", 1), strings.Replace(base, "> 50", "> 51", 1),
		strings.Replace(base, "Bash", "Bash(rm:*)", 1), base + "approvers: [{name: ana, key: " + anasKey + "}]", base + "approvers: [{name: ana, key: " + bosKey + "}]",
		base + "approvers: [{name: ana, key: " + anasKey + ", acts_as: [x]}]", base + "hooks: [{name: a, before: {command: [./a]}}]",
		base + "hooks: [{name: a, before: {command: [./b]}}]", base + "hooks: [{name: a, after: {command: [./a]}}]",
		base + "hooks: [{name: a, after: {command: [./a]}, sandbox: {}}]", base + "hooks: [{name: a, after: {command: [./a]}, sandbox: {network: none}}]",
		base + "hooks: [{name: a, after: {http: {url: 'https://a'}}}]", base + "hooks: [{name: a, after: {http: {url: 'https://b'}}}]",
		base + "hooks: [{name: a, after: {http: {url: 'https://a', headers: {X: y}}}}]",
		base + "hooks: [{name: a, after: {program: {command: [./a]}}}]", base + "hooks: [{name: a, after: {program: {command: [./a], tool: b}}}]",
	} {
		got := parsePolicy(t, other).Version
		if before, twice := seen[got]; twice {
			t.Errorf("%q has the version of %q", other, before)
		}
		seen[got] = other
	}
}

func TestGoodPoliciesSatisfyTheSchema(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join("testdata", "policy-*.yaml"))
	examples, _ := filepath.Glob(filepath.Join("..", "examples", "*policy*.yaml"))
	s, err := For("policy-file")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range append(files, examples...) {
		body := readFile(t, path)
		if _, err := ParsePolicy(path, body); err != nil {
			t.Error(err)
			continue
		}
		if err := s.Validate(asJSON(t, body)); err != nil {
			t.Errorf("%s breaks policy-file.json: %v", path, err)
		}
	}
}

func checkPolicy(t *testing.T, tt mistakesCase) {
	tt.checkBy(t, "policy-file", func(data []byte) error { _, err := ParsePolicy("f", data); return err })
}

func TestParsePolicyNamesEveryMistake(t *testing.T) {
	const known = "; an expression reads input, labels, tool.name, tool.kind, tool.pool, session.id, principal.id, principal.user"
	hook := func(rest string) string { return "hooks:\n- {name: a, before: {command: [./a]}, " + rest + "}\n" }
	for _, tt := range []mistakesCase{
		{"empty", "", false, []string{
			"f: want a mapping with the keys default, deny, ask, allow, risk, groups, approvers, hooks, sandbox and tests, got nothing"}},
		{"a list", "- deny\n", false, []string{
			"f:1:1: want a mapping with the keys default, deny, ask, allow, risk, groups, approvers, hooks, sandbox and tests, got a list"}},
		{"unknown key", "denny: []\n", false, []string{`f:1:1: unknown key "denny"; did you mean deny?`}},
		{"default", "default: no\n", false, []string{`f:1:10: default: "no" is not one of allow, ask, deny`}},
		{"rules are text", "deny: Bash\n", false, []string{"f:1:7: deny: want a list, got text"}},
		{"a rule is a number", "ask: [7]\n", false, []string{
			`f:1:7: ask[0]: want a short form such as "Bash(git push:*)", or {tool: refund, when: input.amount > 50, name: ..., reason: ...}, got a number`}},
		{"a rule is nothing", "ask:\n-\n", false, []string{
			`f:2:3: ask[0]: want a short form such as "Bash(git push:*)", or {tool: refund, when: input.amount > 50, name: ..., reason: ...}, got nothing`}},
		{"short form", "allow: [Bash(]\n", false, []string{`f:1:9: allow[0]: "Bash(": want Tool or Tool(pattern)`}},
		{"short form of nothing", `allow: ["Bash( )"]`, true, []string{`f:1:9: allow[0]: "Bash( )": want Tool or Tool(pattern)`}},
		{"tool pattern", `deny: ["mcp__[", {tool: "a|b"}]`, true, []string{
			`f:1:8: deny[0]: "mcp__[" is no tool's name and no pattern such as mcp__*`,
			`f:1:25: deny[1].tool: "a|b": want Tool or Tool(pattern)`}},
		{"matches nothing", "deny: [{name: x}]\n", false, []string{
			`f:1:8: deny[0]: want a short form such as "Bash(git push:*)", or {tool: refund, when: input.amount > 50, name: ..., reason: ...}`}},
		{"both patterns", `deny: [{tool: "Bash(rm:*)", when: "true"}]`, true, []string{
			"f:1:8: deny[0]: a pattern in parentheses or when, not both; write the pattern into when"}},
		{"unknown key of a rule", "deny: [{tool: x, if: y}]\n", false, []string{`f:1:18: deny[0]: unknown key "if"; the keys here: name, reason, tool, when`}},
		{"when is a number", "deny: [{when: 1}]\n", false, []string{
			"f:1:15: deny[0].when: want an expression such as input.amount > 50, got a number"}},
		{"when is empty", "deny: [{when: ''}]\n", false, []string{"f:1:15: deny[0].when: want an expression such as input.amount > 50"}},
		{"when", "deny:\n- tool: refund\n  when: input.amount > 50 && inptu.x\n", true, []string{"f:3:30: deny[0].when: 'inptu' is not known" + known}},
		{"when in quotes", "deny: [{when: 'tool.name == \"it''s\" && session.user == 1'}]\n", true, []string{"f:1:47: deny[0].when: 'session.user' is not known" + known}},
		{"when in double quotes", `deny: [{when: "tool.name == \"x\" && nope"}]`, true, []string{"f:1:38: deny[0].when: 'nope' is not known" + known}},
		{"when as a block", "deny:\n- when: |\n    tool.name == \"é\" &&\n\n      nope(1)\n", true, []string{"f:5:7: deny[0].when: there is no function nope"}},
		{"when as a folded block", "deny:\n- when: >-\n    tool.name == \"x\" &&\n    nope &&\n    true\n", true, []string{"f:4:5: deny[0].when: 'nope' is not known" + known}},
		{"when over lines", "deny:\n- when: tool.name == \"x\"\n    && nope\n", true, []string{"f:3:8: deny[0].when: 'nope' is not known" + known}},
		{"when ends too soon", "deny:\n- when: input.amount >\n- when: true\n", true, []string{
			"f:2:23: deny[0].when: the expression ends too early",
			"f:3:9: deny[1].when: want an expression such as input.amount > 50, got true or false"}},
		{"when with blanks behind it", "deny:\n- when: input.amount >   \n\n  # more\n  tool: x\n- {tool: y, when:   nope   }\n- when:\n    (nope   \n", true, []string{
			"f:2:23: deny[0].when: the expression ends too early",
			"f:6:21: deny[1].when: 'nope' is not known" + known,
			"f:8:10: deny[2].when: the expression ends too early: ')' is missing"}},
		{"default with blanks behind it", "default:  no   \n", false, []string{`f:1:11: default: "no" is not one of allow, ask, deny`}},
		{"a function that is none", "deny:\n- when: input.reason.contain(\"x\")  \n", true, []string{"f:2:22: deny[0].when: there is no function contain; did you mean contains?"}},
		{"when is no condition", "deny: [{when: input.amount + 1}]\n", true, []string{"f:1:15: deny[0].when: results in int, want true or false"}},
		{"names", "deny: [Bash, {name: b, tool: x}]\nask: [Bash]\nrisk: [{name: b, tier: low, tool: x}]\n", true, []string{
			`f:2:7: ask[0]: a rule named "Bash" is there already, in line 1; give this one another name`,
			`f:3:8: risk[0]: a rule named "b" is there already, in line 1; give this one another name`}},
		{"label", "deny: [{tool: x, name: \"a\\nb\"}, {tool: x, name: ' '}]\n", true, []string{
			"f:1:24: deny[0].name: want one line of at most 100 bytes that can be printed",
			"f:1:49: deny[1].name: is empty"}},
		{"tier", "risk: [{tier: huge, tool: x}]\n", false, []string{`f:1:15: risk[0].tier: "huge" is not one of low, medium, high, critical`}},
		{"risk of nothing", "risk: [{tier: high}, {tool: x}, x]\n", false, []string{
			"f:1:8: risk[0]: want {tier: high, tool: refund, when: input.amount > 50, name: ..., reason: ...}, with tool or when",
			"f:1:22: risk[1]: tier is missing; want {tier: high, tool: refund, when: input.amount > 50, name: ..., reason: ...}, with tool or when",
			"f:1:33: risk[2]: want {tier: high, tool: refund, when: input.amount > 50, name: ..., reason: ...}, with tool or when, got text"}},
		{"risk of an argument", "risk: [{tier: high, tool: Bash(rm:*)}]\n", false, []string{
			`f:1:27: risk[0].tool: "Bash(rm:*)": want a tool's name or a pattern such as mcp__*`}},
		{"approver", "approvers: [{}, ana]\n", false, []string{
			"f:1:13: approvers[0]: name is missing; want {name: ana, key: U..., groups: [payments], expires: 2027-06-30, acts_as: [support]}",
			"f:1:13: approvers[0]: key is missing; want {name: ana, key: U..., groups: [payments], expires: 2027-06-30, acts_as: [support]}",
			"f:1:17: approvers[1]: want {name: ana, key: U..., groups: [payments], expires: 2027-06-30, acts_as: [support]}, got text"}},
		{"approver's name", "approvers: [{name: a b, key: " + anasKey + "}]\n", false, []string{`f:1:20: approvers[0].name: "a b": want 1 to 64 of [A-Za-z0-9_.@-]`}},
		{"approver's key", "approvers: [{name: a, key: " + anasKey[:55] + "B}]\n", true, []string{"f:1:28: approvers[0].key: want the public key of a user: U and 55 characters"}},
		{"account's key", "approvers: [{name: a, key: AD7T64HSGHGFR3AISEERJA32SBDJLOQMGWL33BHY7M4PMQC647WBPU4P}]\n", false, []string{
			"f:1:28: approvers[0].key: want the public key of a user: U and 55 characters; a key that begins with S is a seed, which is secret"}},
		{"a seed", "approvers: [{name: a, key: SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY}]\n", false, []string{
			"f:1:28: approvers[0].key: want the public key of a user: U and 55 characters; a key that begins with S is a seed, which is secret"}},
		{"approvers twice", "approvers:\n- {name: a, key: " + anasKey + "}\n- {name: a, key: " + bosKey + "}\n- {name: b, key: " + anasKey + "}\n", true, []string{
			`f:3:10: approvers[1].name: an approver named "a" is there already, in line 2; give this one another name`,
			"f:4:18: approvers[2].key: the key is there already, in line 2; two names of one key would be two people that are one"}},
		{"groups", "groups:\n- {name: g, tools: [\"a[\", \"b c\"]}\n- {name: g, tenants: [t]}\n- {name: h}\n- {name: i, tenants: []}\n", false, []string{
			`f:2:21: groups[0].tools[0]: "a[" is no tool's name and no pattern such as mcp__*`,
			`f:2:27: groups[0].tools[1]: "b c": want the name of a tool, or a pattern such as bank_*`,
			`f:3:10: groups[1].name: a group named "g" is there already, in line 2; give this one another name`,
			"f:4:3: groups[2]: want {name: payments, tenants: [acme], tools: [issue_refund]}",
			"f:5:22: groups[3].tenants: want a list of tenants such as [acme]"}},
		{"groups twice", "groups:\n- {name: g, tools: [\"a[\"]}\n- {name: g, tenants: [t]}\n", true, []string{
			`f:2:21: groups[0].tools[0]: "a[" is no tool's name and no pattern such as mcp__*`,
			`f:3:10: groups[1].name: a group named "g" is there already, in line 2; give this one another name`}},
		{"a group that is not there", "approvers: [{name: a, key: " + anasKey + ", groups: [g], expires: 2027-02-30}]\n", true, []string{
			`f:1:95: approvers[0].groups[0]: there is no group "g"; groups stand in the list groups of this file`,
			"f:1:108: approvers[0].expires: want a day such as 2027-06-30, or a time such as 2027-06-30T18:00:00Z"}},
		{"no group, no day", "approvers: [{name: a, key: " + anasKey + ", groups: [], expires: soon}]\n", false, []string{
			"f:1:94: approvers[0].groups: want a list of groups such as [payments]",
			`f:1:107: approvers[0].expires: "soon": want a day such as 2027-06-30, or a time such as 2027-06-30T18:00:00Z`}},
		{"acts_as", "approvers: [{name: a, key: " + anasKey + ", acts_as: [a.b, 1]}]\n", false, []string{
			`f:1:96: approvers[0].acts_as[0]: "a.b": want a principal: 1 to 64 of [A-Za-z0-9_-]`,
			"f:1:101: approvers[0].acts_as[1]: want a principal: 1 to 64 of [A-Za-z0-9_-], got a number"}},
		{"hook of nothing", "hooks: [{}]\n", false, []string{
			"f:1:9: hooks[0]: name is missing; want {name: fraud, match: refund, class: gate, budget: 5s, priority: 0, before: {command: [./fraud]}}, with before or after",
			"f:1:9: hooks[0]: want {name: fraud, match: refund, class: gate, budget: 5s, priority: 0, before: {command: [./fraud]}}, with before or after"}},
		{"hook is text", "hooks: [./a]\n", false, []string{
			"f:1:9: hooks[0]: want {name: fraud, match: refund, class: gate, budget: 5s, priority: 0, before: {command: [./fraud]}}, with before or after, got text"}},
		{"hook twice", "hooks:\n- {name: a, after: {command: [./a]}}\n- {name: a, after: {command: [./a]}}\n", true, []string{
			`f:3:10: hooks[1].name: a hook named "a" is there already, in line 2; give this one another name`}},
		{"hook's keys", hook("class: soft, budget: 0s, priority: high, match: a b, env: [TOOLFLEET_X]"), false, []string{
			`f:2:46: hooks[0].class: "soft" is not one of gate, observe`,
			"f:2:60: hooks[0].budget: want at least 1ms",
			"f:2:74: hooks[0].priority: want a whole number from -2147483648 to 2147483647, got text",
			`f:2:87: hooks[0].match: "a b": want tools such as Edit|Write|mcp__*`,
			"f:2:98: hooks[0].env[0]: names that begin with TOOLFLEET_ are set by toolfleet itself"}},
		{"priority with a point", hook("priority: 1.0"), true, []string{"f:2:49: hooks[0].priority: want a whole number, without a point"}},
		{"hook that matches nothing", hook("match: 'a||b'"), false, []string{`f:2:46: hooks[0].match: "a||b": want tools such as Edit|Write|mcp__*`}},
		{"hook's program", "hooks: [{name: a, before: ./a, after: {}}]\n", false, []string{
			"f:1:27: hooks[0].before: want {command: [./program, argument]}, {http: {url: \"https://...\"}} or {program: {command: [./program, argument]}}, one of them, got text",
			"f:1:39: hooks[0].after: want {command: [./program, argument]}, {http: {url: \"https://...\"}} or {program: {command: [./program, argument]}}, one of them"}},
		{"hook that is two", "hooks: [{name: a, before: {command: [./a], http: {url: 'https://a'}}}]\n", false, []string{
			"f:1:27: hooks[0].before: want {command: [./program, argument]}, {http: {url: \"https://...\"}} or {program: {command: [./program, argument]}}, one of them"}},
		{"hook without an address", "hooks: [{name: a, before: {http: {}}, after: {http: {url: 'https://a', method: GET}}}]\n", false, []string{
			"f:1:34: hooks[0].before.http: url is missing; want {url: \"https://example.com/hook\", headers: {Authorization: {secret: token}}}",
			`f:1:72: hooks[0].after.http: unknown key "method"; the keys here: headers, loopback, url`}},
		{"hook that stays in a sandbox", "hooks:\n- name: a\n  before: {program: {command: [./a]}}\n  sandbox: {network: none}\n", true, []string{
			"f:4:3: hooks[0].sandbox: this is for a command that is started for each call; a program that stays has no sandbox as a hook"}},
		{"service in a sandbox", "hooks:\n- name: a\n  before: {http: {url: 'https://a'}}\n  sandbox: {}\n", true, []string{
			"f:4:3: hooks[0].sandbox: this is for hooks with a command; a service runs elsewhere"}},
		{"hook at an address", "hooks:\n- name: a\n  env: [X]\n  after: {http: {url: 'https://u:p@a', headers: {Host: x, X-A: '{x}', x-a: {env: Y}}}}\n", true, []string{
			"f:3:3: hooks[0].env: this is for programs; a service gets headers",
			"f:4:23: hooks[0].after.http.url: a password is not written here; name its variable under headers",
			"f:4:50: hooks[0].after.http.headers.Host: toolfleet sets this header itself",
			"f:4:64: hooks[0].after.http.headers.X-A: {x} has no meaning here: there is no input",
			"f:4:71: hooks[0].after.http.headers.x-a: this header is there twice"}},
		{"hook that stays", "hooks: [{name: a, before: {program: {tool: a b, processes: 0, tenants: all}}}]\n", false, []string{
			"f:1:37: hooks[0].before.program: command is missing; want {command: [./program, argument]}",
			`f:1:44: hooks[0].before.program.tool: "a b": want the name of a tool: 1 to 64 of [a-zA-Z0-9_-]`,
			"f:1:60: hooks[0].before.program.processes: want a number from 1 to 64",
			`f:1:72: hooks[0].before.program.tenants: "all" is not one of shared`}},
		{"test of nothing", "tests: [{}]\n", false, []string{
			"f:1:9: tests[0]: tool is missing; want {tool: refund, input: {...}, expect: {effect: ask, tier: high, rule: ...}}",
			"f:1:9: tests[0]: expect is missing; want {tool: refund, input: {...}, expect: {effect: ask, tier: high, rule: ...}}"}},
		{"test's keys", "tests: [{tool: a*, kind: w, hook: maybe, input: [], session: '', expect: {tier: x, rule: ''}}]\n", false, []string{
			`f:1:16: tests[0].tool: "a*": want 1 to 64 of [a-zA-Z0-9_-]`,
			`f:1:26: tests[0].kind: "w" is not one of read, write, compute`,
			`f:1:35: tests[0].hook: "maybe" is not one of none, allow, ask, deny`,
			"f:1:49: tests[0].input: want a mapping, got a list",
			"f:1:62: tests[0].session: want text that is not empty",
			"f:1:74: tests[0].expect: effect is missing; want {effect: ask, tier: high, rule: ...}",
			`f:1:81: tests[0].expect.tier: "x" is not one of low, medium, high, critical`,
			"f:1:90: tests[0].expect.rule: want text that is not empty"}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkPolicy(t, tt) })
	}
}

// FuzzParsePolicy: no file makes the parser panic. An accepted file satisfies its schema and is the
// same when read again.
func FuzzParsePolicy(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("testdata", "policy-*.yaml"))
	for _, path := range files {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(body))
	}
	f.Add("deny: [' a ', \"b(\\n)\", {when: \"\\x41 &&\\\n b\"}]\n")
	f.Add("hooks: [{name: x, match: '', after: {command: [a]}, priority: -0}]\ntests: [{tool: x, input: {a: 1e3}, expect: {effect: deny}}]\n")
	s, err := For("policy-file")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data string) {
		p, err := ParsePolicy("f", []byte(data))
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		if err := s.Validate(asJSON(t, []byte(data))); err != nil {
			t.Errorf("accepted, but breaks policy-file.json: %v", err)
		}
		again, err := ParsePolicy("f", []byte(data))
		if diff := cmp.Diff(p, again); err != nil || diff != "" {
			t.Errorf("read again: %v\n%s", err, diff)
		}
	})
}
