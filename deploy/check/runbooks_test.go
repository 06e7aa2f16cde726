package check

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sections lists the sections of a runbook, in order.
var sections = []string{"What it means for users", "How to look", "Likely causes", "What to do", "How to know that it is over"}

// leads holds a text that must be in a runbook, because it leads a person on call to the next step.
var leads = map[string]string{
	"validation-errors.md": "The schemas do not match",
	"tool-timeouts.md":     "Look at the dependency",
	"outcome-unknown.md":   "Look at the other side",
	"dead-letters.md":      "toolfleet dead ls",
	"stuck-session.md":     "toolfleet batch ls",
}

func TestRunbooks(t *testing.T) {
	page := runbooks + "dead-letters.md"
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":        {},
		"unknown command": {source{page: {"toolfleet dead drop SEQ", "toolfleet dead forget SEQ"}}, "no command `toolfleet dead forget"},
		"unknown flag":    {source{page: {"toolfleet dead ls ", "toolfleet dead ls --all "}}, "dead ls has no flag --all"},
		"no end":          {source{page: {"## How to know that it is over", "## Over"}}, "no section"},
		"unknown field":   {source{runbooks + "tool-slow.md": {"duration_ms", "latency_ms"}}, "no line of the record has a field latency_ms"},
		"leads nowhere":   {source{runbooks + "tool-timeouts.md": {"Look at the dependency", "Look around"}}, "does not say \"Look at the dependency\""},
		"no command":      {source{page: {"toolfleet ", "toolflet "}}, "names no command"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, runbookProblems(t, tc.edit), tc.want) })
	}
}

func runbookProblems(t *testing.T, edits source) (found []string) {
	known, record := commands(t), string(edits.read(t, "messages/audit.go"))
	for page, words := range leads {
		if !strings.Contains(string(edits.read(t, runbooks+page)), words) {
			found = append(found, fmt.Sprintf("%s does not say %q", page, words))
		}
	}
	for _, file := range glob(t, runbooks+"*.md") {
		text := string(edits.read(t, file))
		lines := named(text)
		if len(lines) == 0 {
			found = append(found, file+" names no command")
		}
		for _, words := range lines {
			for _, problem := range known.problems(t, words) {
				found = append(found, file+": "+problem)
			}
		}
		for _, field := range fields(text) {
			if !strings.Contains(record, `json:"`+field+`,`) && !strings.Contains(record, `json:"`+field+`"`) {
				found = append(found, file+": no line of the record has a field "+field)
			}
		}
		if file == runbooks+"README.md" {
			continue
		}
		at := 0
		for _, section := range sections {
			i := strings.Index(text[at:], "\n## "+section+"\n")
			if i < 0 {
				found = append(found, file+" has no section "+section+" in its place")
				break
			}
			at += i
		}
	}
	return found
}

// named returns the toolfleet commands in the code of a page, each without its first word.
func named(page string) (lines [][]string) {
	for _, found := range regexp.MustCompile("(?m)(?:^|`)toolfleet ([^`|>#\\n]+)").FindAllStringSubmatch(page, -1) {
		lines = append(lines, strings.Fields(found[1]))
	}
	return lines
}

// fields returns the fields that a page reads with jq.
func fields(page string) (names []string) {
	for _, program := range regexp.MustCompile("\\| jq ([^\n`]+)").FindAllStringSubmatch(page, -1) {
		for _, found := range regexp.MustCompile(`\.([a-z_]+)|[{,] ?([a-z_]+)`).FindAllStringSubmatch(program[1], -1) {
			names = append(names, found[1]+found[2])
		}
	}
	return names
}

// manual caches the help of each command.
type manual struct {
	all  []string
	help map[string]string
}

// commands returns the commands of the binary.
func commands(t *testing.T) *manual {
	t.Helper()
	out, err := exec.Command(binary(t), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	m := &manual{help: map[string]string{}}
	_, list, _ := strings.Cut(string(out), "\nCommands:\n")
	for _, found := range regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)*)(?:  |$)`).FindAllStringSubmatch(list, -1) {
		m.all = append(m.all, found[1])
	}
	return m
}

// problems returns what the binary does not know of a command line: the command, or a flag.
func (m *manual) problems(t *testing.T, words []string) (found []string) {
	t.Helper()
	name := ""
	for n := min(2, len(words)); n > 0 && name == ""; n-- {
		if path := strings.Join(words[:n], " "); slices.Contains(m.all, path) {
			name = path
		}
	}
	if name == "" {
		return []string{"there is no command `toolfleet " + strings.Join(words, " ") + "`"}
	}
	if m.help[name] == "" {
		out, err := exec.Command(binary(t), append(strings.Fields(name), "--help")...).Output()
		if err != nil {
			t.Fatalf("%s --help: %v", name, err)
		}
		m.help[name] = string(out)
	}
	for _, word := range words {
		flag, _, _ := strings.Cut(word, "=")
		if strings.HasPrefix(flag, "-") && !regexp.MustCompile(`(?m)(^|[\s,])`+regexp.QuoteMeta(flag)+`($|[\s,=\[])`).MatchString(m.help[name]) {
			found = append(found, name+" has no flag "+flag)
		}
	}
	return found
}
