package permission

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas"
)

var (
	bash   = schemas.Tool{Name: "Bash", ShellCommand: "command"}
	read   = schemas.Tool{Name: "Read", InputSchema: json.RawMessage(`{"type":"object","properties":{"file_path":{"type":"string"}}}`)}
	grep   = schemas.Tool{Name: "Grep", InputSchema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}}}`)}
	lookup = schemas.Tool{Name: "lookup_order"}
)

func shellInput(line string) json.RawMessage {
	return rawjson.MustMarshal(map[string]string{"command": line})
}

func mustNew(t testing.TB, cfg Config) Rules {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// short returns rules that are written in the short form.
func short(t testing.TB, forms ...string) (rules []schemas.RuleEntry) {
	t.Helper()
	for _, form := range forms {
		rule, err := schemas.ParseRule(form)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}

// rulesOf returns rules of one effect.
func rulesOf(effect Effect, entries ...schemas.RuleEntry) schemas.Rules {
	switch effect {
	case Deny:
		return schemas.Rules{Deny: entries}
	case Ask:
		return schemas.Rules{Ask: entries}
	}
	return schemas.Rules{Allow: entries}
}

// holds reports whether a rule of this effect, alone, decides the call.
func holds(t testing.TB, effect Effect, form string, tool schemas.Tool, input json.RawMessage) bool {
	t.Helper()
	layer := Layer{Rules: rulesOf(effect, short(t, form)...)}
	return mustNew(t, Config{Layers: []Layer{layer}, Roots: []string{"/srv/app", "/home/link"}}).Decide(Call{Tool: tool, Input: input}).Matched
}

func TestShell(t *testing.T) {
	for _, tt := range []struct {
		pattern, line string
		allow, deny   bool
	}{
		{"git status:*", "git status", true, true},
		{"git status:*", "git status --short", true, true},
		{"git status:*", "git statusx", false, false},
		{"git status:*", "git  'status'", true, true},
		{"git status:*", "git status && rm -rf x", false, true},
		{"git status:*", "git status; git status -s | git status", true, true},
		{"git status:*", "git status $(rm x)", false, true},
		{"git status:*", "git status $X", true, true},
		{"git status:*", "git status > out", false, true},
		{"git status:*", "git status >/dev/null 2>&1", true, true},
		{"git status:*", "git status < in", true, true},
		{"git status:*", "LD_PRELOAD=x git status", false, true},
		{"git status:*", "export PATH=/evil; git status", false, true},
		{"git status:*", "for PATH in /evil; do git status; done", false, true},
		{"git status:*", `"git status" -x`, false, false},
		{"git status:*", "/evil/git status", false, true},
		{"git status", "git status -s", false, false},
		{"git status", "git status", true, true},
		{"git * main", "git push origin main", true, true},
		{"git * main", "git push origin dev", false, false},
		{"npm run test-*", "npm run test-unit", true, true},
		{"npm run test-*", "npm run test-unit --all", false, false},
		{"rm:*", "ls", false, false},
		{"rm:*", "ls && rm x", false, true},
		{"rm:*", "echo `rm x`", false, true},
		{"rm:*", "f() { rm x; }; f", false, true},
		{"rm:*", "if true; then (rm x); fi", false, true},
		{"rm:*", "cat <(rm x)", false, true},
		{"rm:*", "cat <<E\n$(rm x)\nE", false, true},
		{"rm:*", "sudo -u root rm x", false, true},
		{"rm:*", "find . -exec rm {} +", false, true},
		{"rm:*", "ls | xargs rm", false, true},
		{"rm:*", "sh -c 'rm x'", false, true},
		{"rm:*", "sudo sh -ec 'cd /; rm x'", false, true},
		{"rm:*", "eval rm x", false, true},
		{"rm:*", "trap 'rm x' EXIT", false, true},
		{"rm:*", "curl x | sh", false, true},
		{"rm:*", "sh script.sh", false, false},
		{"rm:*", `r\m x`, true, true},
		{"rm:*", `"r"'m' x`, true, true},
		{"rm:*", `$'\x72m' x`, false, true},
		{"rm:*", "$CMD x", false, true},
		{"rm:*", "{rm,-rf,x}", false, true},
		{"rm:*", `{"rm",-rf,x}`, false, true},
		{"rm:*", "grep rm file", false, false},
		{"rm:*", "echo 'rm x'", false, false},
		{"rm:*", "ls $HOME *.go", false, false},
		{"rm:*", "[ -f x ] && ls", false, false},
		{"rm:*", "ls 'unclosed", false, true},
		{"rm -rf:*", "rm $FLAGS x", false, true},
		{"ls:*", strings.Repeat("ls;", 30000), false, true},
		{"ls:*", strings.Repeat("env eval ", 7000), false, true},
		{"*", "anything $X > y", true, true},
		{":*", "anything $X > y", true, true},
		{"git:*", "", false, false},
		{"git:*", "X=1", false, false},
	} {
		form := "Bash(" + tt.pattern + ")"
		if got := holds(t, Allow, form, bash, shellInput(tt.line)); got != tt.allow {
			t.Errorf("allow %s on %.60q: matches = %v, want %v", form, tt.line, got, tt.allow)
		}
		if got := holds(t, Deny, form, bash, shellInput(tt.line)); got != tt.deny {
			t.Errorf("deny %s on %.60q: matches = %v, want %v", form, tt.line, got, tt.deny)
		}
	}
}

// Each line runs touch in a way that the syntax tree does not show: no allow rule but "*"
// matches it, and every deny rule does. If bash is installed, the test logs the lines that do
// not run touch there.
func TestShellThatHides(t *testing.T) {
	shell, _ := exec.LookPath("bash")
	for _, line := range []string{
		"ls # a \\\ntouch f",
		"ls; [[ -v 'a[$(touch f)]' ]]",
		"ls; [[ 'a[$(touch f)]' -eq 1 ]]",
		"ls ${v:='a[$(touch f)]'} $((v))",
		"ls ${v:='$(touch f)'} ${v@P}",
		"x='a[$(touch f)]'; ls $((x))",
		"x='a[$(touch f)]'; ls; ((x))",
		"x='a[$(touch f)]'; ls; let x",
		"x='a[$(touch f)]'; for ((x;0;)); do ls; done",
		"x='a[$(touch f)]'; ls ${y[x]}",
		"x='a[$(touch f)]'; y=abc; ls ${y:x}",
		"x='a[$(touch f)]'; ls ${!x}",
		"x='a[$(touch f)]'; y[x]=1; ls",
		"x='a[$(touch f)]'; y=([x]=1); ls",
		"declare -i x='a[$(touch f)]'; ls",
		"declare 'x[$(touch f)]=1'; ls",
		"ls; read 'a[$(touch f)]' <<< x",
		"ls; printf -v 'a[$(touch f)]' x",
		"ls; printf %n 'a[$(touch f)]'",
		"a=1; ls; unset 'a[$(touch f)]'",
		"ls; test -v 'a[$(touch f)]'",
		"ls; [ -v 'a[$(touch f)]' ]",
		"ls \"${v:-'$(touch f)'}\"",
		"ls `echo \"\\$(touch f)\"`",
		"ls <<E\n \\\nE\nls <<'X'\nE\ntouch f\nX\n",
		"ls; env -S 'touch f'",
		"ls; env -iS 'PATH=/bin:/usr/bin touch' f",
		"ls; env --split-string='touch f'",
		"ls; env '-Stouch\\_f'",
		"ls; sudo env -S 'touch f'",
		"ls; flock l -c 'touch f'",
		"ls; flock l --command 'touch f'",
		"ls; watch -n 5 'touch f'",
		"ls; su -c 'touch f' nobody",
	} {
		if holds(t, Allow, "Bash(ls:*)", bash, shellInput(line)) {
			t.Errorf("Bash(ls:*) allows %q", line)
		}
		if !holds(t, Deny, "Bash(touch:*)", bash, shellInput(line)) {
			t.Errorf("Bash(touch:*) does not deny %q", line)
		}
		if shell == "" || strings.Contains(line, "sudo") || strings.Contains(line, "watch") || strings.Contains(line, "su -c") {
			continue
		}
		cmd := exec.Command(shell, "-c", line)
		cmd.Dir = t.TempDir()
		_ = cmd.Run()
		if _, err := os.Stat(filepath.Join(cmd.Dir, "f")); err != nil {
			t.Logf("this bash does not run it: %q", line)
		}
	}
	for _, line := range []string{"f() { :; }; ls", "ls() { :; }; ls", "printf %n PATH", "printf \"$x\" PATH", "printf -v PATH x"} {
		if holds(t, Allow, "Bash(ls:*)", bash, shellInput(line)) || holds(t, Allow, "Bash(printf:*)", bash, shellInput(line)) {
			t.Errorf("%q is allowed", line)
		}
	}
}

// Harmless constructs that many commands contain do not make a script count as unclear.
func TestShellThatIsClear(t *testing.T) {
	for _, line := range []string{
		"ls # all of it", "# first\nls", "ls \\\n  -l", "ls $((1 + 2 * 3)) $(($# - 1))", "ls ${x:-y} ${x#a} ${#x} ${a[0]} \"${a[@]}\" ${x:0:3} ${x//a/b}",
		"[[ $? -eq 0 && -n $x && $# -lt 2 ]] && ls", "[[ $x =~ ^(a|b)$ ]] && ls", "ls <<E\ntext $(ls)\nE", "ls <<'E'\ntext \\\n $(touch f)\nE",
		"[ -f x ] && ls", "read -r x <<< y; ls", "printf '%s %5.2f%%\\n' a 1", "ls `pwd`", "env -i A=b ls", "env -u SHELL ls", "flock l ls", "watch ls", "declare -r x=1; export y; ls",
		"ls \"${x:-$(echo 'a')}\"",
	} {
		if holds(t, Deny, "Bash(touch:*)", bash, shellInput(line)) {
			t.Errorf("Bash(touch:*) denies %q", line)
		}
	}
	for _, line := range []string{"ls # all of it", "ls \\\n  -l", "ls $((1 + 2 * 3))", "ls ${x:-y} \"${a[@]}\" ${x:0:3}", "ls <<'E'\ntext\nE", "[[ -n $x && $# -lt 2 ]] && ls"} {
		if !holds(t, Allow, "Bash(ls:*)", bash, shellInput(line)) {
			t.Errorf("Bash(ls:*) does not allow %q", line)
		}
	}
	if !holds(t, Allow, "Bash(printf:*)", bash, shellInput("printf '%s\\n' x")) {
		t.Error("Bash(printf:*) does not allow a plain printf")
	}
}

func TestPaths(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		allow, deny   bool
	}{
		{"/etc/**", "/etc/passwd", true, true},
		{"/etc/**", "/etc/../srv/app/x", false, false},
		{"/etc/**", "../../etc/passwd", true, true},
		{"/etc/**", "etc/passwd", false, false},
		{"secrets/**", "secrets/a/b", true, true},
		{"secrets/**", "./x/../secrets//a", true, true},
		{"secrets/**", "/srv/app/secrets/a", true, true},
		{"secrets/**", "/home/link/secrets/a", true, true},
		{"/srv/app/secrets/**", "/home/link/secrets/a", true, true},
		{"/srv/app/secrets/**", "secrets/a", true, true},
		{"secrets/**", "secretsx/a", false, false},
		{"secrets/**", "/srv/app2/secrets/a", false, false},
		{"secrets/**", "secrets", true, true},
		{"secrets/**", ".", false, true},
		{"secrets/**", "", false, true},
		{"src/secrets/**", "src", false, true},
		{"src/secrets/**", "src/other", false, false},
		{"**", "../x", false, true},
		{"**/*.go", "a/b/c.go", true, true},
		{"**/*.go", "a/b", false, false},
		{"*.go", "a/c.go", false, false},
		{"{a,b}/*", "b/x", true, true},
		{"./a=b/*", "a=b/x", true, true},
		{"[", "x", false, true},
		{"file_path=*.go", "a/c.go", true, true},
	} {
		input := rawjson.MustMarshal(map[string]string{"file_path": tt.path})
		if got := holds(t, Allow, "Read("+tt.pattern+")", read, input); got != tt.allow {
			t.Errorf("allow Read(%s) on %q: matches = %v, want %v", tt.pattern, tt.path, got, tt.allow)
		}
		if got := holds(t, Deny, "Read("+tt.pattern+")", read, input); got != tt.deny {
			t.Errorf("deny Read(%s) on %q: matches = %v, want %v", tt.pattern, tt.path, got, tt.deny)
		}
	}
	for _, input := range []string{`{}`, `{"path":null}`, `{"path":7}`} {
		if !holds(t, Deny, "Grep(secrets/**)", grep, json.RawMessage(input)) {
			t.Errorf("deny Grep(secrets/**) does not match %s, which searches the whole root", input)
		}
	}
}

func TestPathsWithoutRoot(t *testing.T) {
	rules := mustNew(t, Config{Layers: []Layer{{Rules: rulesOf(Deny, short(t, "Read(/etc/**)")...)}}})
	for name, denied := range map[string]bool{"/etc/passwd": true, "/usr/x": false, "x": true, "../x": true} {
		if d := rules.Decide(Call{Tool: read, Input: rawjson.MustMarshal(map[string]string{"file_path": name})}); d.Matched != denied {
			t.Errorf("deny Read(/etc/**) on %q with no root: matches = %v, want %v", name, d.Matched, denied)
		}
	}
}

func TestOtherArguments(t *testing.T) {
	for _, tt := range []struct {
		pattern, input string
		want           bool
	}{
		{"id=ORD-*", `{"id":"ORD-7"}`, true},
		{"id=ORD-*", `{"id":"X-7"}`, false},
		{"id=ORD-*", `{"ID":"ORD-7"}`, false},
		{"id=7", `{"id":7}`, true},
		{"id=*", `{}`, false},
		{`where={"a":1,"b":*}`, `{"where":{"b":[2],"a":1}}`, true},
		{`{"id":*}`, `{ "id" : 9007199254740993 }`, true},
		{`{"id":9007199254740993}`, `{"id":9007199254740993}`, true},
		{`*<&>*`, `{"x":"a<&>b"}`, true},
		{`(x)=1`, `{"x":1}`, false},
	} {
		for _, effect := range []Effect{Allow, Deny} {
			if got := holds(t, effect, "lookup_order("+tt.pattern+")", lookup, json.RawMessage(tt.input)); got != tt.want {
				t.Errorf("%s lookup_order(%s) on %s: matches = %v, want %v", effect, tt.pattern, tt.input, got, tt.want)
			}
		}
	}
}

func TestNewNamesEveryProblem(t *testing.T) {
	_, err := New(Config{Default: "maybe", Roots: []string{"x"}, Layers: []Layer{{Source: "p.yaml", Rules: schemas.Rules{
		Deny:  []schemas.RuleEntry{{Tool: "["}, {Name: "typo", Tool: "x", When: "inptu.a == 1"}},
		Allow: []schemas.RuleEntry{{Name: "text", Tool: "x", When: `"a"`}, {Name: "nothing"}},
		Risk:  []schemas.RiskEntry{{Name: "danger", Tool: "x", Tier: "huge"}},
	}}}})
	for _, want := range []string{
		"permissions.default", `root "x"`, `rule "deny [ (p.yaml)": tool pattern`, `rule "deny typo (p.yaml)": when: 1:1: 'inptu'`,
		`rule "allow text (p.yaml)": when: 1:1: results in`, `rule "allow nothing (p.yaml)": tool pattern`, `tier "huge"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %s", err, want)
		}
	}
}

// An allow rule of a layer below the platform lifts a default that asks. It does not lift a
// default that denies.
func TestALayerBelowLiftsNoDenial(t *testing.T) {
	layers := []Layer{
		{Source: "platform", Rules: schemas.Rules{Allow: short(t, "lookup")}},
		{Source: "tools file", Rules: schemas.Rules{Allow: short(t, "*")}, Below: true},
	}
	for _, tt := range []struct {
		fallback Effect
		tool     string
		want     Effect
	}{{Deny, "lookup", Allow}, {Deny, "refund", Deny}, {Ask, "refund", Allow}, {Allow, "refund", Allow}} {
		d := mustNew(t, Config{Default: tt.fallback, Layers: layers}).Decide(Call{Tool: schemas.Tool{Name: tt.tool}, Input: json.RawMessage(`{}`)})
		if d.Effect != tt.want {
			t.Errorf("%s with the default %s: %s, want %s", tt.tool, tt.fallback, d.Effect, tt.want)
		}
	}
}

// A deny rule wins in whatever layer it is, and the decision names the rule.
func TestLayers(t *testing.T) {
	rules := mustNew(t, Config{Layers: []Layer{
		{Source: "platform", Rules: schemas.Rules{Deny: short(t, "mcp__*"), Allow: short(t, "Bash(git:*)")}},
		{Source: "tools file", Rules: schemas.Rules{Deny: short(t, "Bash(git push:*)"), Ask: short(t, "Bash(git commit:*)"), Allow: short(t, "mcp__x", "*")}},
	}})
	for _, tt := range []struct {
		tool schemas.Tool
		line string
		want string
	}{
		{bash, "git log", "allow Bash(git:*) (platform)"},
		{bash, "git push", "deny Bash(git push:*) (tools file)"},
		{bash, "git commit; git push", "deny Bash(git push:*) (tools file)"},
		{bash, "git commit", "ask Bash(git commit:*) (tools file)"},
		{schemas.Tool{Name: "mcp__x"}, "", "deny mcp__* (platform)"},
	} {
		d := rules.Decide(Call{Tool: tt.tool, Input: shellInput(tt.line)})
		if got := d.Rule.String(); got != tt.want || d.Effect != d.Rule.Effect {
			t.Errorf("%s %q: decided by %q (%s), want %q", tt.tool.Name, tt.line, got, d.Effect, tt.want)
		}
		denied, ok := rules.Denied(Call{Tool: tt.tool, Input: shellInput(tt.line)})
		if ok != (d.Effect == Deny) || ok && denied.Rule != d.Rule {
			t.Errorf("%s %q: Denied = %+v, %v beside %+v", tt.tool.Name, tt.line, denied, ok, d)
		}
	}
	if !rules.DeniesTool("mcp__x") || rules.DeniesTool("Bash") {
		t.Error("DeniesTool: want it for mcp__x alone")
	}
}

func TestDefault(t *testing.T) {
	for def, want := range map[Effect]Effect{"": Allow, Allow: Allow, Ask: Ask, Deny: Deny} {
		d := mustNew(t, Config{Default: def, Layers: []Layer{{Rules: rulesOf(Allow, short(t, "known")...)}}}).Decide(Call{Tool: lookup, Input: json.RawMessage(`{}`)})
		if d.Effect != want || d.Matched {
			t.Errorf("default %q: got %+v, want %s", def, d, want)
		}
	}
	if d := (Rules{}).Decide(Call{Tool: lookup}); d.Effect != Allow {
		t.Errorf("no rules: got %s, want allow", d.Effect)
	}
}

// slowDecide decides in the simplest way: it tries the effects in the order of their
// precedence.
func slowDecide(def Effect, layers []Layer, t schemas.Tool) Effect {
	hit := func(lists ...[]schemas.RuleEntry) bool {
		for _, list := range lists {
			for _, rule := range list {
				if rule.Tool == t.Name || rule.Tool == "*" {
					return true
				}
			}
		}
		return false
	}
	var deny, ask, allow [][]schemas.RuleEntry
	for _, l := range layers {
		deny, ask, allow = append(deny, l.Rules.Deny), append(ask, l.Rules.Ask), append(allow, l.Rules.Allow)
	}
	switch {
	case hit(deny...):
		return Deny
	case hit(ask...):
		return Ask
	case hit(allow...), def == "":
		return Allow
	}
	return def
}

func TestPrecedenceAgainstBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "c", "d", "*"}
	pick := func() (list []schemas.RuleEntry) {
		for range rng.IntN(3) {
			list = append(list, short(t, names[rng.IntN(len(names))])...)
		}
		return list
	}
	for range 5000 {
		var layers []Layer
		for i := range rng.IntN(4) {
			layers = append(layers, Layer{Source: fmt.Sprint(i), Rules: schemas.Rules{Deny: pick(), Ask: pick(), Allow: pick()}})
		}
		def := []Effect{"", Allow, Ask, Deny}[rng.IntN(4)]
		rules := mustNew(t, Config{Default: def, Layers: layers})
		for _, name := range names[:4] {
			tool := schemas.Tool{Name: name}
			if got, want := rules.Decide(Call{Tool: tool, Input: json.RawMessage(`{}`)}).Effect, slowDecide(def, layers, tool); got != want {
				t.Fatalf("default %q, layers %+v, tool %s: got %s, want %s", def, layers, name, got, want)
			}
		}
	}
}

// If an allow rule certainly matches a line, a deny rule with the same pattern matches it too.
func FuzzShell(f *testing.F) {
	f.Add("git status:*", "git status && rm -rf x")
	f.Add("rm * x", "sudo rm $A x")
	f.Add("*a*", "eval 'a b' | sh -c \"$X\"")
	f.Fuzz(func(t *testing.T, pattern, line string) {
		words := strings.Fields(spread(pattern))
		s := parseScript(line, 0)
		if s.all(words) && !s.any(words) {
			t.Errorf("pattern %q, line %q: an allow covers it and a deny does not", pattern, line)
		}
	})
}

func FuzzPath(f *testing.F) {
	f.Add("secrets/**", "./secrets/../secrets/a")
	f.Add("/srv/**", "/srv/app/../../etc")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		roots := []string{"/srv/app"}
		if matchPath(pattern, name, roots, true) && !matchPath(pattern, name, roots, false) {
			t.Errorf("pattern %q, path %q: an allow covers it and a deny does not", pattern, name)
		}
		rel, abs := locate(name, roots)
		if rel2, abs2 := locate(rel, roots); rel2 != rel || abs2 != abs {
			t.Errorf("path %q: canonical form %q, %q becomes %q, %q", name, rel, abs, rel2, abs2)
		}
	})
}

func FuzzWildcard(f *testing.F) {
	f.Add("a*b*", "axxbyy")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 12 || len(s) > 12 {
			return
		}
		if got, want := wildcard(pattern, s), slowWildcard(pattern, s); got != want {
			t.Errorf("wildcard(%q, %q) = %v, want %v", pattern, s, got, want)
		}
	})
}

func slowWildcard(pattern, s string) bool {
	if pattern == "" {
		return s == ""
	}
	if pattern[0] == '*' {
		return slowWildcard(pattern[1:], s) || (s != "" && slowWildcard(pattern, s[1:]))
	}
	return s != "" && s[0] == pattern[0] && slowWildcard(pattern[1:], s[1:])
}
