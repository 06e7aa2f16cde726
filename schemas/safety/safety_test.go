package safety

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

var (
	//go:embed testdata/safe.txt
	safeCommands string
	//go:embed testdata/unsafe.txt
	unsafeCommands string
)

// lines returns the commands of a file in testdata.
func lines(file string) []string {
	var commands []string
	for line := range strings.SplitSeq(file, "\n") {
		if strings.HasPrefix(line, "## ") {
			continue
		}
		commands = append(commands, strings.NewReplacer(`\\n`, "\\\n", `\n`, "\n", `\r`, "\r", `\x0c`, "\f", `\x00`, "\x00").Replace(line))
	}
	return commands[:len(commands)-1] // the last one is empty: it follows the last line end
}

var shellTool = schemas.Tool{Name: "Bash", Kind: messages.KindWrite, ShellCommand: "command"}

func classify(command string) (bool, string) {
	return Classify(shellTool, rawjson.MustMarshal(map[string]string{"command": command}))
}

func TestShellCommands(t *testing.T) {
	for _, table := range []struct {
		commands []string
		want     bool
	}{{lines(safeCommands), true}, {lines(unsafeCommands), false}} {
		if len(table.commands) < 150 {
			t.Errorf("only %d commands that are safe=%t", len(table.commands), table.want)
		}
		for _, command := range table.commands {
			got, reason := classify(command)
			if got != table.want {
				t.Errorf("%q: got %t (%s)", command, got, reason)
			}
			if reason == "" || strings.ContainsAny(reason, "\n") || len(reason) > 120 {
				t.Errorf("%q: reason %q", command, reason)
			}
		}
	}
}

func TestReasons(t *testing.T) {
	for command, want := range map[string]string{
		"ls | wc -l":               "read-only shell command",
		"ls; rm x":                 "shell: rm can change things",
		"echo x > secret":          "shell: redirects to a file",
		"sleep 9 &":                "shell: starts something in the background",
		"find . -delete":           "shell: find -delete can change things",
		"git commit -m secret":     "shell: git commit can change things",
		"sort --output=secret":     "shell: sort --output is not known to be harmless",
		"PATH=secret ls":           `shell: sets "PATH", which may change how commands behave`,
		"'sec ret' x":              "shell: the command can change things",
		"sed 's/secret/x/e' f":     "shell: sed with a script that is not known to be harmless",
		"export SECRET=secret":     "shell: export can change how later commands behave",
		"echo 'secret":             "shell: cannot be parsed",
		"$(secret)":                "shell: secret can change things",
		"":                         "shell: holds no command",
		strings.Repeat("x", 1<<20): "shell: too long to look into",
	} {
		if _, got := classify(command); got != want {
			t.Errorf("%.40q: got %q, want %q", command, got, want)
		}
	}
}

func TestClassifyByPromise(t *testing.T) {
	yes, no := true, false
	for _, test := range []struct {
		tool   schemas.Tool
		input  string
		safe   bool
		reason string
	}{
		{schemas.Tool{Kind: messages.KindRead}, `{}`, true, "kind read"},
		{schemas.Tool{Kind: messages.KindCompute}, `{}`, true, "kind compute"},
		{schemas.Tool{Kind: messages.KindWrite}, `{}`, false, "kind write runs alone"},
		{schemas.Tool{}, `{}`, false, "kind write runs alone"},
		{schemas.Tool{Kind: messages.KindWrite, ConcurrencySafe: &yes}, `{}`, true, "declared concurrency_safe"},
		{schemas.Tool{Kind: messages.KindRead, ConcurrencySafe: &no}, `{}`, false, "declared not concurrency_safe"},
		{schemas.Tool{ShellCommand: "sh", ConcurrencySafe: &yes}, `{"sh":"rm x"}`, false, "shell: rm can change things"},
		{schemas.Tool{ShellCommand: "sh", ConcurrencySafe: &no}, `{"sh":"ls"}`, false, "declared not concurrency_safe"},
		{schemas.Tool{ShellCommand: "sh"}, `{"sh":"ls"}`, true, "read-only shell command"},
		{schemas.Tool{ShellCommand: "sh", Kind: messages.KindRead}, `{"SH":"ls"}`, false, "shell: the input has no command"},
		{schemas.Tool{ShellCommand: "sh"}, `{"sh":null}`, false, "shell: the input has no command"},
		{schemas.Tool{ShellCommand: "sh"}, `{"sh":["ls"]}`, false, "shell: the input has no command"},
		{schemas.Tool{ShellCommand: "sh"}, `[]`, false, "shell: the input is no object"},
		{schemas.Tool{ShellCommand: "sh"}, ``, false, "shell: the input is no object"},
	} {
		safe, reason := Classify(test.tool, json.RawMessage(test.input))
		if safe != test.safe || reason != test.reason {
			t.Errorf("%+v %s: got %t, %q", test.tool, test.input, safe, reason)
		}
	}
}

// FuzzClassify: nothing panics, and a safe command is still safe as the parser prints it, because
// the decision rests on the tree.
func FuzzClassify(f *testing.F) {
	for _, command := range append(lines(safeCommands), lines(unsafeCommands)...) {
		f.Add(command)
	}
	f.Fuzz(func(t *testing.T, command string) {
		if !utf8.ValidString(command) {
			t.Skip("no JSON can hold it")
		}
		safe, reason := classify(command)
		if reason == "" {
			t.Error("no reason")
		}
		if !safe {
			return
		}
		file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(command), "")
		if err != nil {
			t.Fatalf("safe, but no shell: %v", err)
		}
		var printed bytes.Buffer
		if err := syntax.NewPrinter(syntax.Minify(true)).Print(&printed, file); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(printed.String(), "\\\n") {
			return // the printer ends a line with a backslash, and that is always refused
		}
		if safe, reason := classify(printed.String()); !safe && printed.Len() < maxCommand {
			t.Errorf("%q is safe, but printed as %q it is not: %s", command, printed.String(), reason)
		}
	})
}
