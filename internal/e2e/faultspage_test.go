package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	named   = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	defined = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
)

// docs/faults.md names only tests that exist.
func TestTheFaultsPageNamesTests(t *testing.T) {
	document, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" { // Git may change this folder meanwhile
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(source, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	shown := named.FindAllSubmatch(document, -1)
	if len(shown) < 60 {
		t.Errorf("docs/faults.md names %d tests", len(shown))
	}
	for _, m := range shown {
		if !there[string(m[1])] {
			t.Errorf("docs/faults.md names %s, which is not there", m[1])
		}
	}
}
