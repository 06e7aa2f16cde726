package enter

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The helper may not import any other package: that package would be initialized before the
// helper starts, with everything that it imports.
func TestTheHelperImportsNothing(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if !slices.Contains([]string{`"syscall"`, `"unsafe"`}, spec.Path.Value) {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
		}
	}
}
