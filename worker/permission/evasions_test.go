package permission

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/schemas"
)

//go:embed testdata/evasions.txt
var evasions string

// corpus returns the lines of a text that are neither empty nor a comment. The sign ⏎ in a
// line stands for a line break.
func corpus(text string) (lines []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line != "" && !strings.HasPrefix(line, "# ") {
			lines = append(lines, strings.ReplaceAll(line, "⏎", "\n"))
		}
	}
	return lines
}

// Each line of the file runs a command in disguise: a deny rule or an ask rule about this
// command matches the line, and an allow rule about another command does not.
func TestEvasions(t *testing.T) {
	lines := corpus(evasions)
	if len(lines) < 300 {
		t.Fatalf("%d lines, want 300 at least", len(lines))
	}
	for _, tt := range []struct{ name, argument, rule string }{
		{"touch", "f", "touch:*"},
		{"rm", "-rf", "rm -rf:*"},
		{"git", "push", "git push:*"},
		{"curl", "http://x", "curl *"},
		{"terraform", "destroy", "*form:*"},
	} {
		past := 0
		for _, line := range lines {
			line = strings.NewReplacer("{A}", tt.name, "{B}", tt.argument).Replace(line)
			form := fmt.Sprintf("Bash(%s)", tt.rule)
			if !holds(t, Deny, form, bash, shellInput(line)) || !holds(t, Ask, form, bash, shellInput(line)) {
				past++
				t.Errorf("%s does not deny %q", form, line)
			}
			for _, allowed := range []string{"Bash(ls:*)", "Bash(echo:*)", "Bash(read:*)", "Bash(cat:*)", "Bash(:)", "Bash(true)", "Bash(printf:*)"} {
				if holds(t, Allow, allowed, bash, shellInput(line)) {
					t.Errorf("%s allows %q", allowed, line)
				}
			}
		}
		t.Logf("%s: %d of %d lines get past it", tt.rule, past, len(lines))
	}
}

// A line uses an allowed command, and makes the shell read a file or open a connection: the
// allow rule does not match.
func TestAllowedCommandsReadNoFilesByTheShell(t *testing.T) {
	for _, line := range []string{
		"echo $(</etc/passwd)", "echo \"$(< f)\"", "echo `<f`", "echo < /dev/tcp/host/80", "echo <> /dev/udp/host/53", "echo < $f", "echo x > /dev/tcp/h/1",
		"read 'a[$(rm x)]' <<< x", "x='a[$(rm x)]'; read \"$x\"", "read PATH <<< /x",
	} {
		for _, form := range []string{"Bash(echo:*)", "Bash(read:*)"} {
			if holds(t, Allow, form, bash, shellInput(line)) {
				t.Errorf("%s allows %q", form, line)
			}
		}
	}
}

// The work of the analysis grows in proportion to the text. The test counts allocations,
// because times depend on the machine.
func TestTheAnalysisIsLinear(t *testing.T) {
	layer := Layer{}
	for i := range 20 {
		layer.Rules.Deny = append(layer.Rules.Deny, schemas.RuleEntry{Tool: "Bash", Argument: fmt.Sprintf("forbidden%d * x:*", i)})
	}
	rules := mustNew(t, Config{Layers: []Layer{layer}})
	for _, unit := range []string{
		"sudo ", "env eval ", "sh -c ", "xargs env ", "x $(", "${a:-", "((", "a[", "{ ", "'\"", "$((1+", "find . -exec ", "x=1 ", "ls;", "git -C x ",
		"[ -f ", "x y\\ z ", "forbidden1 ", "x=$y;", "unknown 'a b' ", "echo $x ",
	} {
		work := func(length int) float64 {
			input := shellInput(strings.Repeat(unit, length/len(unit)))
			return testing.AllocsPerRun(1, func() { rules.Decide(Call{Tool: bash, Input: input}) })
		}
		if small, large := work(2<<10), work(16<<10); large > 12*small+1000 {
			t.Errorf("%q: %.0f allocations for 2 KiB, %.0f for 16 KiB", unit, small, large)
		}
	}
}
