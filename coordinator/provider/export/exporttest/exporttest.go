// Package exporttest tests the tool definitions of a codec, with one set of tools for all
// codecs. It compares the definitions with golden files. It also checks that the bytes do not
// depend on the order of the tools or on the process.
package exporttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/schemas"
)

var update = flag.Bool("update-tools", false, "rewrite testdata/tools/*.golden")

// Exporter is the part of a codec that is tested.
type Exporter interface {
	Tools([]schemas.Tool) (json.RawMessage, error)
	ToolsWith([]schemas.Tool, export.Options) (json.RawMessage, error)
}

// variants lists the options to test. Each variant has a golden file, unless an earlier
// variant gives the same bytes.
var variants = []struct {
	name    string
	options export.Options
}{
	{"default", export.Options{}},
	{"strict-exact", export.Options{Strict: export.StrictExact}},
	{"strict-nullable", export.Options{Strict: export.StrictNullable}},
	{"cached", export.Options{Cache: true}},
}

// Run checks an exporter. It reads the golden files in testdata/tools of the package under
// test.
func Run(t *testing.T, e Exporter) {
	if os.Getenv(childEnv) != "" {
		fmt.Printf("%s%s\n", childMark, digest(t, e, shuffled()))
		return
	}
	t.Run("golden", func(t *testing.T) { testGolden(t, e) })
	t.Run("same bytes from any order", func(t *testing.T) {
		want := digest(t, e, Tools())
		for range 100 {
			if got := digest(t, e, shuffled()); got != want {
				t.Fatalf("SHA-256 of a shuffled export is %s, want %s", got, want)
			}
		}
	})
	t.Run("same bytes from another process", func(t *testing.T) { testProcess(t, e) })
	t.Run("no tools", func(t *testing.T) {
		if out, err := e.Tools(nil); err != nil || !json.Valid(out) {
			t.Errorf("Tools(nil) = %s, %v; want valid JSON", out, err)
		}
	})
	t.Run("a tool twice", func(t *testing.T) {
		if out, err := e.Tools(append(Tools(), Tools()[0])); err == nil {
			t.Errorf("got %.100s, want an error", out)
		}
	})
}

// testGolden compares each variant with its golden file, and checks that the bytes are
// compact. The golden files are indented for readers.
func testGolden(t *testing.T, e Exporter) {
	seen := map[string]string{}
	for _, v := range variants {
		name, path := v.name, filepath.Join("testdata", "tools", v.name+".golden")
		out := exported(t, e, shuffled(), v.options)
		if earlier, same := seen[string(out)]; same {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s gives the same as %s: remove the file", path, earlier)
			}
			continue
		}
		seen[string(out)] = name
		var compact, indented bytes.Buffer
		if err := json.Compact(&compact, out); err != nil || !bytes.Equal(compact.Bytes(), out) {
			t.Errorf("%s: the export is not compact JSON (%v)", name, err)
		}
		if err := json.Indent(&indented, out, "", "  "); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		indented.WriteByte('\n')
		if *update {
			if err := os.WriteFile(path, indented.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v (run with -update-tools)", err)
		}
		if diff := cmp.Diff(string(want), indented.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

const (
	childEnv  = "TOOLFLEET_EXPORTTEST_CHILD"
	childMark = "export digest "
)

// testProcess runs the present test in other processes. There the test only prints the digest
// of its exports, which must be the digest of this process.
func testProcess(t *testing.T, e Exporter) {
	self, err := os.Executable()
	if err != nil {
		t.Skipf("cannot find the test binary: %v", err)
	}
	parent, _, _ := strings.Cut(t.Name(), "/")
	want := digest(t, e, Tools())
	for range 2 {
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+parent+"$", "-test.count=1")
		cmd.Env = append(os.Environ(), childEnv+"=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("run the test binary again: %v\n%s", err, out)
		}
		_, rest, found := strings.Cut(string(out), childMark)
		got, _, _ := strings.Cut(rest, "\n")
		if !found || got != want {
			t.Errorf("SHA-256 in another process is %q, want %s", got, want)
		}
	}
}

// digest returns the SHA-256 of the exports of all variants.
func digest(t *testing.T, e Exporter, tools []schemas.Tool) string {
	t.Helper()
	h := sha256.New()
	for _, v := range variants {
		h.Write(exported(t, e, tools, v.options))
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))
}

func exported(t *testing.T, e Exporter, tools []schemas.Tool, o export.Options) json.RawMessage {
	t.Helper()
	out, err := e.ToolsWith(tools, o)
	if err != nil {
		t.Fatalf("export with %+v: %v", o, err)
	}
	return out
}

func shuffled() []schemas.Tool {
	tools := slices.Clone(Tools())
	rand.Shuffle(len(tools), func(i, j int) { tools[i], tools[j] = tools[j], tools[i] })
	return tools
}
