package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A snippet is a fenced block of README.md. A comment on the line before the block, such as
// <!-- test: run -->, says with a verb what the test does with the block:
//
//	run             run its commands with bash, in a folder that has the examples
//	start           start each of its lines as a daemon, which runs until stop
//	stop            end the daemons, as Ctrl-C does; this verb has no block
//	stdout          compare it with the stdout of the last run; "stdout, three times": repeated
//	stderr          compare it with the stderr of the last run, its lines in any order
//	begin           start its command in another terminal, and follow the next blocks meanwhile
//	waits           compare it with the stderr of the begun command when that waits
//	ends            compare it with the rest of that stderr; its stdout becomes the last run's
//	terminal, TEXT  run its command at a terminal and answer the question with TEXT
//	screen          compare it with the screen of that terminal
//	file PATH       look for it in that file, word for word
//	skip, REASON    do nothing
//
// In an output, … stands for any text, spaces do not count, and all durations are equal.
type snippet struct {
	line int // line of the comment
	verb string
	arg  string
	text string
}

var mark = regexp.MustCompile(`^<!-- test: (\w+),? ?(.*) -->$`)

// snippets returns every block of a document. A block without a comment is an error, because
// no test would run it.
func snippets(document string) ([]snippet, error) {
	var all []snippet
	var open *snippet // the current block
	lines := strings.Split(document, "\n")
	for i, line := range lines {
		switch m := mark.FindStringSubmatch(line); {
		case open != nil && line == "```":
			open = nil
		case open != nil:
			open.text += line + "\n"
		case m != nil:
			all = append(all, snippet{line: i + 1, verb: m[1], arg: m[2]})
		case strings.HasPrefix(line, "```"):
			if len(all) == 0 || all[len(all)-1].line != i {
				return nil, fmt.Errorf("line %d: a block, and no comment before it that says what the test does with it", i+1)
			}
			open = &all[len(all)-1]
		}
	}
	return all, nil
}

// reader follows README.md in a copy of the examples.
type reader struct {
	t              *testing.T
	dir            string // folder of the commands: a copy of the examples
	server         string // used instead of 127.0.0.1:4222
	api            string // used instead of 127.0.0.1:8090
	env            []string
	daemons        []*daemon
	stdout, stderr string // of the last run
	begun          *daemon
	waited         string // stderr of begun when it waited
	screen         string // of the last terminal
	left           int    // commands of the last run whose interpreter is missing
	leftOut        bool
}

// goHere defines the command go for the snippets. It builds and runs packages from the
// checkout, where they are already compiled, once each.
const goHere = `
go() {
	case $1 in
	build) built "$4" && cp "$KEPT" "$3" ;;
	run) built "$2" && shift 2 && "$KEPT" "$@" ;;
	*) echo "the README runs go $*, which this test does not know" >&2; return 1 ;;
	esac
}
built() {
	KEPT=$PWD/.built/${1##*/}
	[ -e "$KEPT" ] || (cd "$CHECKOUT" && command go build -o "$KEPT" "$1")
}
mkdir -p bin
`

// The commands of README.md work, and their outputs are those that the page shows.
func TestReadme(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s: the commands of README.md are not run", program)
		}
	}
	document, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all, err := snippets(string(document))
	if err != nil {
		t.Fatalf("README.md: %v", err)
	}
	r := newReader(t)
	for _, s := range all {
		if err := r.follow(s); err != nil {
			t.Fatalf("README.md:%d: %s: %v", s.line, s.verb, err)
		}
	}
	r.stop()
	if r.leftOut {
		t.Skip("no python3 or no node: all but their commands in README.md was run")
	}
}

// newReader returns a reader with a copy of the examples and a built binary.
func newReader(t *testing.T) *reader {
	t.Helper()
	dependOn(t, "../../../cmd", "../../../internal")
	r := &reader{t: t, dir: t.TempDir(), server: natstest.FreeAddr(t), api: natstest.FreeAddr(t)}
	command := binary(t)
	if err := errors.Join(
		os.CopyFS(filepath.Join(r.dir, "examples"), os.DirFS("../../../examples")),
		os.Mkdir(filepath.Join(r.dir, ".built"), 0o700),
		os.Symlink(command, filepath.Join(r.dir, ".built", "toolfleet")),
	); err != nil {
		t.Fatal(err)
	}
	// Somebody may have run the example by hand, which leaves this file.
	_ = os.Remove(filepath.Join(r.dir, "examples", "refund", "ledger"))
	for _, kept := range os.Environ() {
		if !strings.HasPrefix(kept, "TOOLFLEET_") && !strings.HasPrefix(kept, "NATS_") {
			r.env = append(r.env, kept)
		}
	}
	r.env = append(r.env, "XDG_CONFIG_HOME="+t.TempDir()) // dev keeps its user's key there
	t.Cleanup(r.stop)
	return r
}

// dependOn makes go test run the test again when a file in these folders changes. Go does not
// know from which packages the test builds the command.
func dependOn(t *testing.T, folders ...string) {
	t.Helper()
	for _, folder := range folders {
		if err := filepath.WalkDir(folder, func(_ string, _ os.DirEntry, err error) error { return err }); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *reader) follow(s snippet) error {
	text := strings.NewReplacer("127.0.0.1:4222", r.server, "127.0.0.1:8090", r.api).Replace(s.text)
	switch s.verb {
	case "run":
		return r.run(text)
	case "start":
		for line := range strings.Lines(text) {
			if err := r.start(strings.TrimSpace(line)); err != nil {
				return fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
			}
		}
		return r.workersAreKnown(strings.Count(text, "toolfleet worker") + strings.Count(text, "toolfleet dev"))
	case "stop":
		r.stop()
		return nil
	case "stdout":
		if s.arg == "three times" {
			text = strings.Repeat(text, 3-r.left)
		}
		return same(r.stdout, text)
	case "stderr":
		return same(sorted(r.stderr), sorted(text))
	case "begin":
		return r.begin(text)
	case "waits":
		return r.until(func() error {
			r.waited = r.begun.log.String()
			return same(r.waited, text)
		})
	case "ends":
		return r.ends(text)
	case "terminal":
		return r.terminal(text, s.arg)
	case "screen":
		return same(r.screen, text)
	case "file":
		body, err := os.ReadFile(filepath.Join("../../..", s.arg))
		if err == nil && !strings.Contains(string(body), text) {
			err = fmt.Errorf("the block is not a part of %s", s.arg)
		}
		return err
	case "skip":
		return nil
	}
	return fmt.Errorf("no such word")
}

// run runs commands. It leaves out commands whose interpreter is missing.
func (r *reader) run(commands string) error {
	r.left = 0
	for name, line := range interpreted {
		if _, err := exec.LookPath(name); err != nil {
			r.left += len(line.FindAllString(commands, -1))
			commands = line.ReplaceAllString(commands, "")
		}
	}
	r.leftOut = r.leftOut || r.left > 0
	checkout, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(r.t.Context(), "bash", "-euc", goHere+commands)
	cmd.Dir, cmd.Env = r.dir, append(r.environment(), "CHECKOUT="+checkout)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s%s", err, stdout.Bytes(), stderr.Bytes())
	}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return nil
}

// environment returns the environment of the commands. It has the server's address while the
// server runs. A reader of README.md has the server at the default address.
func (r *reader) environment() []string {
	env := append(slices.Clone(r.env), "TOOLFLEET_SERVER_LISTEN="+r.server, "TOOLFLEET_API_LISTEN="+r.api, "TOOLFLEET_URL=http://"+r.api)
	if len(r.daemons) > 0 {
		env = append(env, "NATS_URL=nats://"+r.server)
	}
	return env
}

// start starts a daemon and waits until its stderr says that it is ready.
func (r *reader) start(command string) error {
	words := strings.Fields(command)
	d := &daemon{cmd: exec.Command(filepath.Join(r.dir, words[0]), words[1:]...), log: &lockedBuffer{}}
	d.cmd.Dir, d.cmd.Env = r.dir, r.environment()
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	r.daemons = append(r.daemons, d)
	return r.until(func() error {
		if !strings.Contains(d.log.String(), "is ready") {
			return fmt.Errorf("is not ready:\n%s", d.log)
		}
		return nil
	})
}

// begin starts a command that ends later by itself.
func (r *reader) begin(command string) error {
	words := strings.Fields(command)
	r.begun = &daemon{cmd: exec.Command(filepath.Join(r.dir, words[0]), words[1:]...), log: &lockedBuffer{}}
	r.begun.cmd.Args[0] = words[0] // its error texts contain this name
	r.begun.cmd.Dir, r.begun.cmd.Env = r.dir, r.environment()
	r.begun.cmd.Stdout, r.begun.cmd.Stderr = &lockedBuffer{}, r.begun.log
	r.t.Cleanup(func() { _ = r.begun.cmd.Process.Kill() }) // no effect if the command has ended
	return r.begun.cmd.Start()
}

func (r *reader) ends(shown string) error {
	if err := r.begun.cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, r.begun.log)
	}
	r.stdout, r.stderr = fmt.Sprint(r.begun.cmd.Stdout), strings.TrimPrefix(r.begun.log.String(), r.waited)
	return same(r.stderr, shown)
}

// terminal runs a command at a terminal and types the answer when the command asks.
func (r *reader) terminal(command, answer string) error {
	person, tool, err := openTerminal()
	if err != nil {
		r.t.Skipf("the rest of README.md is not run: %v", err)
	}
	defer person.Close()
	words := strings.Fields(command)
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(r.dir, words[0]), words[1:]...)
	cmd.Dir, cmd.Env = r.dir, append(r.environment(), "NO_COLOR=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tool, tool, tool
	err = cmd.Start()
	_ = tool.Close() // the command has its own copy
	if err != nil {
		return err
	}
	var screen strings.Builder
	part, asked := make([]byte, 4096), false
	for {
		n, err := person.Read(part)
		screen.Write(part[:n])
		if err != nil { // the command has ended
			break
		}
		if !asked && strings.HasSuffix(screen.String(), "[y/N] ") {
			asked = true
			if _, err := person.WriteString(answer + "\n"); err != nil {
				return err
			}
		}
	}
	r.screen = screen.String()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, r.screen)
	}
	return nil
}

func (r *reader) workersAreKnown(n int) error {
	return r.until(func() error {
		err := r.run("bin/toolfleet status -o json")
		if got := strings.Count(r.stdout, `"worker":`); err == nil && got != n {
			err = fmt.Errorf("%d workers are known, want %d: %s", got, n, r.stdout)
		}
		return err
	})
}

// until calls try until it succeeds, for at most 2 minutes. It returns the last error.
func (r *reader) until(try func() error) error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.NewTimer(10 * time.Millisecond).C
	}
}

// stop stops the daemons, the last one first, and checks that each ends without an error.
func (r *reader) stop() {
	for _, d := range slices.Backward(r.daemons) {
		_ = d.cmd.Process.Signal(syscall.SIGINT) // Wait shows a daemon that has already ended
		if err := d.cmd.Wait(); err != nil {
			r.t.Errorf("%s ended with %v", strings.Join(d.cmd.Args, " "), err)
		}
		if r.t.Failed() {
			r.t.Logf("%s said:\n%s", strings.Join(d.cmd.Args, " "), d.log)
		}
	}
	r.daemons = nil
}

var (
	interpreted = map[string]*regexp.Regexp{
		"python3": regexp.MustCompile(`(?m)^python3 .*$`),
		"node":    regexp.MustCompile(`(?m)^node .*$`),
	}
	spaces    = regexp.MustCompile(`\s+`)
	durations = regexp.MustCompile(`[0-9.]+ (µs|ms|s)\b`)
)

// same reports how an output differs from the one in the document.
func same(got, shown string) error {
	plain := func(s string) string {
		return spaces.ReplaceAllString(durations.ReplaceAllString(s, "0 ms"), "")
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(plain(shown)), "…", ".*")
	if !regexp.MustCompile("^" + pattern + "$").MatchString(plain(got)) {
		return fmt.Errorf("got\n%s\nwhich is not what is shown\n%s", got, shown)
	}
	return nil
}

// sorted sorts the lines, because concurrent calls report in no fixed order.
func sorted(s string) string {
	lines := strings.Split(strings.TrimSpace(durations.ReplaceAllString(s, "0 ms")), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
