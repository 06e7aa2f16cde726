package tracing_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestThePageHasEveryName checks that docs/traces.md lists every name of names.go.
func TestThePageHasEveryName(t *testing.T) {
	raw, err := os.ReadFile("../../docs/traces.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	keys, names := declared(t)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(page[strings.Index(page, "## Attributes"):], -1) {
		documented = append(documented, row[1])
	}
	slices.Sort(documented)
	if diff := cmp.Diff(keys, documented); diff != "" {
		t.Errorf("attributes (-names.go +docs/traces.md):\n%s", diff)
	}
	for _, name := range names {
		if !strings.Contains(page, name) {
			t.Errorf("docs/traces.md has no %q", name)
		}
	}
}

// declared returns the attributes that names.go declares. It also returns the names of spans
// and the reasons of links.
func declared(t *testing.T) (keys, names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := func(e ast.Expr) string {
		value, err := strconv.Unquote(e.(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		switch value := spec.Values[0].(type) {
		case *ast.CallExpr:
			keys = append(keys, text(value.Args[0]))
		case *ast.BasicLit:
			if name := spec.Names[0].Name; name != "SchemaURL" && name != "GenAI" {
				names = append(names, text(value))
			}
		}
		return false
	})
	slices.Sort(keys)
	return keys, names
}
