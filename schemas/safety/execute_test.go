package safety

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sandbox is a folder with files and a git repository, in which bash really runs commands. Programs
// that change things are replaced by one that leaves a file behind.
type sandbox struct {
	dir, bash string
	env       []string
}

const canary = "#!/bin/sh\necho \"$0 $*\" >> \"$CANARY\"\n"

func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	base := t.TempDir()
	s := &sandbox{dir: filepath.Join(base, "work"), bash: bash}
	programs := filepath.Join(base, "bin")
	for _, dir := range []string{programs, filepath.Join(s.dir, "src", "deep"), filepath.Join(s.dir, "home")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"a.txt": "b\na\nfoo a x\nb\n", "b.txt": "one,two\n", "a.json": `{"a":[{"b":2}]}`, "script": "w out\n", "-o": "x",
		"src/main.go": "package main\n\nfunc main() {}\n", "src/deep/c.go": "package deep // foo\n", "name with blank": "x\n",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name := range commands {
		if name == "sleep" { // no test waits for it
			path, _ := exec.LookPath("true")
			_ = os.Symlink(path, filepath.Join(programs, name))
			continue
		}
		if path, err := exec.LookPath(name); err == nil && !strings.Contains(name, "/") {
			_ = os.Symlink(path, filepath.Join(programs, name))
		}
	}
	for name := range set("rm mv cp touch tee dd sh curl wget ping nc chmod ln kill make x foo out gpg ssh") {
		if err := os.WriteFile(filepath.Join(programs, name), []byte(canary), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.env = []string{
		"PATH=" + programs, "HOME=" + filepath.Join(s.dir, "home"), "LANG=C.UTF-8", "CANARY=" + filepath.Join(s.dir, "canary"),
		"GIT_OPTIONAL_LOCKS=0", "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=core.fsmonitor", "GIT_CONFIG_VALUE_0=false",
		// Git may go on after a commit command has ended.
		"GIT_CONFIG_KEY_1=maintenance.auto", "GIT_CONFIG_VALUE_1=false",
	}
	if hasGit() {
		s.change(t, `git init -q . && git add . && git -c user.name=n -c user.email=e@x commit -qm one && git tag v1 && git branch main2 &&
			git remote add origin ./nowhere && echo more >> a.txt && git stash list`)
	}
	return s
}

func hasGit() bool {
	_, err := exec.LookPath("git")
	return err == nil
}

// change runs one of the test's own commands to its end, however long that takes.
func (s *sandbox) change(t testing.TB, command string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.bash, "-c", command)
	cmd.Dir, cmd.Env = s.dir, s.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
}

// run runs a command as the builtin Bash would. How it ends does not matter.
func (s *sandbox) run(t testing.TB, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.bash, "-c", command)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, s.env, time.Second
	var out limited
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run()
	return out.String()
}

// limited keeps the start of the output.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len() < 4096 {
		l.Buffer.Write(p)
	}
	return len(p), nil
}

// state is everything about the folder except the times of last access.
func (s *sandbox) state(t testing.TB) map[string]string {
	t.Helper()
	state := map[string]string{}
	err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		digest := ""
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			digest = fmt.Sprintf("%x", sha256.Sum256(content))
		}
		state[path] = fmt.Sprintf("%v %d %v %s", info.Mode(), info.Size(), info.ModTime().UnixNano(), digest)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// unchanged runs a command that was classified as safe, and fails the test if the command
// changes something.
func (s *sandbox) unchanged(t testing.TB, command string) {
	t.Helper()
	before := s.state(t)
	out := s.run(t, command)
	if diff := cmp.Diff(before, s.state(t)); diff != "" {
		t.Fatalf("%q is called safe but changed something:\n%s\nIt printed:\n%s", command, diff, out)
	}
}

// allUnchanged is unchanged for many commands. It compares the folder after every fifty
// commands. If something has changed, it runs these commands one by one to find the cause.
func (s *sandbox) allUnchanged(t testing.TB, commands []string) {
	t.Helper()
	for batch := range slices.Chunk(commands, 50) {
		before := s.state(t)
		for _, command := range batch {
			s.run(t, command)
		}
		if cmp.Equal(before, s.state(t)) {
			continue
		}
		for _, command := range batch {
			s.unchanged(t, command)
		}
		t.Fatalf("one of these changed something, the first time only: %q", batch)
	}
}

func TestSafeCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.allUnchanged(t, lines(safeCommands))
}

// The sandbox notices changes: otherwise the tests that use it would prove nothing.
func TestSandboxNotices(t *testing.T) {
	s := newSandbox(t)
	commands := []string{"rm x", "echo x > y", "touch a.txt", ": >> new"}
	if hasGit() {
		commands = append(commands, "git tag v2")
	}
	for _, command := range commands {
		before := s.state(t)
		s.change(t, command)
		if cmp.Equal(before, s.state(t)) {
			t.Errorf("%q went unnoticed", command)
		}
	}
}

// attacks are texts that change something if bash reads them as a command.
var attacks = []string{
	"; touch p", "\ntouch p\n", "| touch p", "& touch p", "&& touch p", "|| touch p", "$(touch p)", "`touch p`", "<(touch p)", ">(touch p)",
	"> p", ">> p", "2> p", "&> p", "<> p", ">| p", "<<E\nE\ntouch p\n", "<<'E'\n$(touch p)\nE\n", "${x:=$(touch p)}", "$((a[$(touch p)]))",
	"';touch p;'", "\";touch p;\"", "'$(touch p)'", "\"$(touch p)\"", "\"`touch p`\"", "#\ntouch p\n", "\\\n;touch p", "\\;touch p", "$'\\';touch p;\\''", "{touch,p}",
	"PATH=. ", "IFS=x;", "x='a[$(touch p)]';((x))", "f(){ touch p; };f", "${x@P}", "eval touch p", "command touch p", "-exec touch p ;", "-exec touch p {} +",
	"-delete", "-fprint p", "-o p", "-op", "--output=p", "--output p", "--pre touch", "w p", "e touch p", ";w p", "/w p", "\\", "'", "\"", "$", "(", ")", "{", "}", "[", "]", "`", "\\\n", "#", "!", "--", "-", "=", "~", "*", "?",
	"xargs touch", "env touch p", "time touch p", "! touch p", "[[ -v x ]]", "&", ";;", "|&touch p", ">&p", "é", "\u00a0", "\\\\", "$'", "$\"", "((", "))", "$[", "<<<", "<<", "esac", "in", "do", "done", "fi",
}

// compose makes a new command from known ones.
func compose(r *rand.Rand, commands []string) string {
	pick := func() string { return commands[r.IntN(len(commands))] }
	a, b := pick(), pick()
	if r.IntN(3) == 0 {
		a = compose(r, commands)
	}
	forms := []string{
		"%s; %s", "%s && %s", "%s || %s", "%s | %s", "%s\n%s", "(%s); %s", "{ %s\n}; %s", "if %s; then %s; fi", "! %s; %s", "echo \"$(%s)\" $(%s)",
		"cat <(%s) <(%s)", "for f in $(%s); do %s; done", "while %s; do %s; break; done", "time %s; %s", "case x in y) %s;; *) %s;; esac", "x=$(%s); %s", "%s 2>&1 | %s", "%s 2>/dev/null; %s", "timeout 3 %s; %s", "command %s; %s", "ls | xargs %s; %s", "%s # %s",
	}
	return fmt.Sprintf(forms[r.IntN(len(forms))], a, b)
}

// splice puts an attack anywhere into a command.
func splice(r *rand.Rand, command string) string {
	for range 1 + r.IntN(4) {
		at := r.IntN(len(command) + 1)
		gap := []string{"", " "}[r.IntN(2)]
		command = command[:at] + gap + attacks[r.IntN(len(attacks))] + gap + command[at:]
	}
	return command
}

// generated returns commands that the classifier calls safe, out of many random ones.
func generated(t testing.TB, seed uint64, tries int, attack bool) []string {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	var base, safe []string
	for _, command := range lines(safeCommands) {
		if !strings.ContainsAny(command, "\n") {
			base = append(base, command)
		}
	}
	for range tries {
		command := base[r.IntN(len(base))]
		if attack {
			command = splice(r, command)
		} else {
			command = compose(r, base)
		}
		if ok, _ := classify(command); ok {
			safe = append(safe, command)
		}
	}
	if len(safe) == 0 {
		t.Fatal("nothing was called safe")
	}
	return safe
}

func tries(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

func TestComposedCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.allUnchanged(t, generated(t, 1, tries(400), false))
}

func TestSplicedCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.allUnchanged(t, generated(t, 2, tries(4000), true))
}

// Bash reads the same commands as the classifier: bash prints its own parse of each safe command,
// and the classifier must call that safe too. A difference between the two parsers shows as a
// printed command that is not safe.
func TestBashReadsTheSame(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	safe := append(lines(safeCommands), generated(t, 3, tries(20000), true)...)
	for batch := range slices.Chunk(safe, 100) {
		parsed := s.parses(batch)
		for i, command := range batch {
			var body string
			if parsed != nil {
				body = parsed[i]
			} else if one := s.parses([]string{command}); one != nil { // another command failed
				body = one[0]
			} else {
				t.Errorf("%q is safe, but bash cannot parse it", command)
				continue
			}
			// Bash prints $'\1' as the character itself, and no blank behind a last backslash.
			body = strings.ReplaceAll(body, "\\\n", "\\ \n")
			if ok, reason := classify(body); !ok && reason != "shell: holds a control character" {
				t.Errorf("%q is safe, but bash reads %q: %s", command, body, reason)
			}
		}
	}
}

// parses returns how bash prints the commands after parsing them, or nil when it could not.
func (s *sandbox) parses(commands []string) []string {
	var script strings.Builder
	for i, command := range commands {
		fmt.Fprintf(&script, "f%d() {\n%s\n}\n", i, command)
	}
	for i := range commands {
		fmt.Fprintf(&script, "printf '\\1'; declare -f f%d\n", i)
	}
	cmd := exec.Command(s.bash)
	cmd.Dir, cmd.Env, cmd.Stdin = s.dir, s.env, strings.NewReader(script.String())
	out, err := cmd.CombinedOutput()
	parsed := strings.Split(string(out), "\x01")[1:]
	if err != nil || len(parsed) != len(commands) {
		return nil
	}
	for i, print := range parsed {
		_, body, found := strings.Cut(print, "{")
		if !found {
			return nil
		}
		parsed[i] = body[:max(0, strings.LastIndexByte(body, '}'))]
	}
	return parsed
}

var long = flag.Bool("long", false, "run every injection of the corpora, not each tenth")

// sample returns each tenth of the lines, and all of them with -long.
func sample(lines []string) []string {
	if *long {
		return lines
	}
	var some []string
	for i := 0; i < len(lines); i += 10 {
		some = append(some, lines[i])
	}
	return some
}

// Lines of public lists of command injections, inside commands that a tool could have made from
// them.
func TestInjectionsChangeNothing(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "corpora", "payloads-all-the-things", "Command Injection", "Intruder")
	files, _ := filepath.Glob(filepath.Join(dir, "*.txt"))
	if len(files) == 0 {
		t.Skip("the corpora are not there")
	}
	s := newSandbox(t)
	seen := map[string]bool{}
	var safe []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			line = strings.TrimSuffix(line, "\n")
			for _, form := range []string{"%s", "ls %s", "grep x %s", "cat 'a%s'", "cat \"%s\"", "grep -rn \"%s\" .", "echo %s | wc -l", "find . -name '%s'", "git log --grep='%s'", "sed -n '/%s/p' a.txt", "sort ./%s"} {
				command := fmt.Sprintf(form, line)
				if ok, _ := classify(command); ok && !seen[command] {
					safe = append(safe, command)
				}
				seen[command] = true
			}
		}
	}
	safe = sample(safe)
	s.allUnchanged(t, safe)
	t.Logf("%d commands made of injections, %d called safe and run, none of them changed anything", len(seen), len(safe))
}
