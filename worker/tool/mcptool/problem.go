package mcptool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/secrets"
)

// maxPrintedLines limits how many lines of output are shown if a program could not be started.
const maxPrintedLines = 8

// nodesOwn matches lines of a stack trace that are about Node itself. They are so many that
// the error above them would not be shown.
var nodesOwn = regexp.MustCompile(`^\s+at .*\(?node:internal/`)

// Problem says, for operators, why a server could not be started. The model reads only the
// error, which has none of these texts.
type Problem struct {
	Printed string // the last lines that the program printed to stderr, without the secrets of its entry
	Advice  string // what to do, in a sentence
}

// ProblemOf returns the problem of an error of this package.
func ProblemOf(err error) Problem {
	var failed *startError
	if errors.As(err, &failed) {
		return failed.problem
	}
	return Problem{}
}

// startError says why a program could not be started.
type startError struct {
	error
	problem Problem
}

func (e *startError) Unwrap() error { return e.error }

// failed returns the error of a program that ended before it was ready. words is the end of
// the program's output.
func (c Config) failed(err error, how, words string) error {
	words = secrets.RedactText(words, c.confided())
	lines := strings.Split(strings.TrimSpace(words), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return nodesOwn.MatchString(line) })
	printed := clip([]byte(strings.Join(lines[max(0, len(lines)-maxPrintedLines):], "\n")))
	return &startError{err, Problem{Printed: printed, Advice: c.advice(how + "\n" + words)}}
}

// advice says which keys of the tools file would help, or how to find out.
func (c Config) advice(words string) string {
	program, err := find(c.Server.Command[0], c.Dir)
	if err != nil {
		program = ""
	}
	wants := c.Sandbox.Wants(program, words)
	switch {
	case c.Sandbox == nil:
		return c.otherwise()
	case wants.String() != "":
		return "`" + wants.String() + "` in its entry would allow what the sandbox has refused. " + c.otherwise()
	}
	return fmt.Sprintf("It ran in a sandbox, which may be the reason: `toolfleet sandbox run --tool %q -- COMMAND` runs its command there, and `sandbox: {off: true}` in its entry runs it without. %s",
		c.Server.Name, c.otherwise())
}

// otherwise says how to go on without the server.
func (c Config) otherwise() string {
	if c.Server.Program {
		return "Or take its entry out."
	}
	return "Or take its entry out; with a lock file (`toolfleet tools mcp accept`, once it runs) its tools are known without it."
}

// confided returns the values of the entry that may be secret. A variable whose value is an
// absolute path does not count as secret. Programs complain about such paths, and their words
// must stay readable.
func (c Config) confided() (values []string) {
	for _, v := range c.Server.Values {
		if text, err := c.value(v); err == nil && (v.Secret != "" || v.Env != "") {
			values = append(values, text, strings.TrimPrefix(text, v.Prefix))
		}
	}
	for _, name := range c.Server.Env {
		if text := os.Getenv(name); !filepath.IsAbs(text) {
			values = append(values, text)
		}
	}
	return values
}
