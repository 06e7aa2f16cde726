package check

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// root is the folder of the repository.
const root = "../.."

const (
	defaultWriteTimeout = 30 * time.Second
	// reportTime is how long a worker has, after the longest write, to store the result and end.
	reportTime = 30 * time.Second
)

// source is the repository with some files changed, so that a test can break a rule in it.
type source map[string]edit

type edit struct{ old, new string }

// read returns a file of the repository, with its edit if there is one.
func (s source) read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	e, ok := s[name]
	if !ok {
		return content
	}
	if !bytes.Contains(content, []byte(e.old)) {
		t.Fatalf("%s does not contain %q any more: fix the test's edit", name, e.old)
	}
	return bytes.ReplaceAll(content, []byte(e.old), []byte(e.new))
}

// expect fails the test unless one of the problems that a check found contains the text want.
// If want is "", the check must have found no problem.
func expect(t *testing.T, got []string, want string) {
	t.Helper()
	if want == "" && len(got) > 0 {
		t.Errorf("problems:\n%s", strings.Join(got, "\n"))
	}
	if want != "" && !slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, want) }) {
		t.Errorf("got problems %q, want one with %q", got, want)
	}
}

// longestWrite returns the longest timeout of a tools file's writes. Such a call must not be cut
// off. A tool without a kind is a write; a write without a timeout has 30 s.
func longestWrite(t *testing.T, toolsFile []byte) time.Duration {
	t.Helper()
	var file struct {
		Tools []struct {
			Kind    string `json:"kind"`
			Timeout string `json:"timeout"`
		} `json:"tools"`
	}
	if err := yaml.Unmarshal(toolsFile, &file); err != nil {
		t.Fatal(err)
	}
	longest := defaultWriteTimeout // the timeout of a tool that names none
	for _, tool := range file.Tools {
		if tool.Timeout == "" || tool.Kind == "read" || tool.Kind == "compute" {
			continue
		}
		d, err := time.ParseDuration(tool.Timeout)
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, d)
	}
	return longest
}

// pinned reports whether an image names a version or a digest, so that it stays the same
// image.
func pinned(image string) bool {
	return regexp.MustCompile(`:[^/:]*\d[^/:]*$|@sha256:[0-9a-f]{64}$`).MatchString(image)
}

// binary builds cmd/toolfleet once and returns its path. If that is not possible, it skips the
// test.
func binary(t *testing.T) string {
	t.Helper()
	if _, err := fs.Stat(os.DirFS(root), "cmd/toolfleet"); err != nil {
		t.Skip("there is no cmd/toolfleet yet")
	}
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var binDir string

// built runs the build command of the Dockerfile with another output. It leaves out
// optimization, so the build takes two thirds of the time.
var built = sync.OnceValues(func() (string, error) {
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(binDir, "toolfleet")
	command := regexp.MustCompile(`(?m)^RUN (.*go build.*) -o /out/toolfleet (.*)$`).FindSubmatch(dockerfile)
	if command == nil {
		return "", os.ErrNotExist
	}
	cmd := exec.Command("sh", "-c", string(command[1])+" -o "+path+" "+string(command[2]))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" '-gcflags=all=-N -l -dwarf=false'")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "toolfleet-check-")
	if err != nil {
		panic(err)
	}
	binDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// commandProblems returns the flags of a command line that the binary does not know.
func commandProblems(t *testing.T, args []string) []string {
	t.Helper()
	words := slices.IndexFunc(args, func(s string) bool { return strings.HasPrefix(s, "-") })
	if words < 0 {
		words = len(args)
	}
	help, err := exec.Command(binary(t), append(args[:words:words], "--help")...).CombinedOutput()
	if err != nil {
		return []string{args[0] + " --help: " + err.Error() + ": " + string(help)}
	}
	var found []string
	for _, arg := range args[1:] {
		flag, _, _ := strings.Cut(arg, "=")
		if strings.HasPrefix(flag, "-") && !regexp.MustCompile(`(?m)(^|[\s,])`+regexp.QuoteMeta(flag)+`($|[\s,=\[])`).Match(help) {
			found = append(found, args[0]+" has no flag "+flag)
		}
	}
	return found
}
