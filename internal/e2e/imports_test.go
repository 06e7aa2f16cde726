package e2e_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/toolfleet/toolfleet"

// packageRule says which packages of ours the non-test files of a package may import, and
// whether the package must be pure. A pattern that ends in "/..." means a package and
// everything below it.
type packageRule struct {
	path string
	may  []string
	pure bool // no clock, I/O, goroutine, lock or randomness
}

// These lists are used in several rules.
var (
	words       = []string{"messages", "internal/rawjson", "schemas", "schemas/expression", "schemas/safety"}
	codec       = plus(words, "coordinator/provider/dialect", "coordinator/provider/export")
	runner      = plus(words, "worker/tool", "worker/tool/process", "worker/tool/outbound", "internal/sandbox", "internal/tracing", "internal/secrets")
	fileTool    = plus(runner, "worker/tool/builtin/base", "worker/tool/builtin/rootdir")
	foundations = plus(words, "fleet", "internal/wire", "internal/bus/...", "internal/journal", "internal/audit", "internal/tracing")
	// A program outside this module may import these. The examples import nothing else.
	public = plus(words, "fleet", "client", "coordinator/...", "worker/...")
)

// keyPackages are the packages that handle keys and signatures of people. The reader of a
// policy file checks keys to report an invalid one with its line.
var keyPackages = []string{"internal/approval", "internal/principal", "schemas"}

// packageRules is the map of the module. Every package has a line, and imports point up the
// list: it starts with the shared packages and ends with those that may import anything.
var packageRules = []packageRule{
	{path: "internal/rawjson", pure: true},
	{path: "internal/spare"},
	{path: "messages", may: []string{"internal/rawjson"}, pure: true},
	{path: "fleet", pure: true},
	{path: "internal/strictyaml", pure: true},
	{path: "internal/secrets"},
	{path: "internal/wire", may: []string{"messages", "internal/rawjson"}, pure: true},
	{path: "internal/principal", may: []string{"messages", "internal/rawjson"}},
	{path: "schemas/expression", may: []string{"messages", "internal/rawjson"}, pure: true},
	{path: "schemas", may: []string{"messages", "internal/rawjson", "internal/wire", "internal/strictyaml", "schemas/expression"}},
	{path: "schemas/safety", may: []string{"messages", "internal/rawjson", "schemas", "schemas/expression"}},

	{path: "coordinator/provider/dialect", may: words, pure: true},
	{path: "coordinator/provider/export", may: words, pure: true},
	{path: "coordinator/provider/export/exporttest", may: plus(words, "coordinator/provider/export")},
	{path: "coordinator/provider/anthropic", may: codec, pure: true},
	{path: "coordinator/provider/bedrock", may: codec, pure: true},
	{path: "coordinator/provider/canonical", may: codec, pure: true},
	{path: "coordinator/provider/gemini", may: codec, pure: true},
	{path: "coordinator/provider/openaichat", may: codec, pure: true},
	{path: "coordinator/provider/openairesponses", may: codec, pure: true},
	{path: "coordinator/provider", may: plus(words, "coordinator/provider/..."), pure: true},
	{path: "coordinator/provider/codectest", may: plus(codec, "coordinator/provider")},
	{path: "coordinator/plan", may: plus(words, "internal/wire"), pure: true},
	{path: "coordinator/toolset", may: []string{"internal/wire"}, pure: true},
	{path: "coordinator/session", may: plus(words, "coordinator/batch"), pure: true},
	{path: "coordinator/batch", may: plus(words, "internal/wire", "coordinator/plan"), pure: true},
	{path: "coordinator/placement", may: []string{"internal/wire", "coordinator/batch", "coordinator/toolset"}},

	// enter starts before everything else of the program is initialized.
	{path: "internal/sandbox/enter"},
	{path: "internal/sandbox", may: []string{"internal/sandbox/enter"}},

	{path: "worker/hook", may: words},
	{path: "worker/permission", may: words, pure: true},
	{path: "worker/tool", may: words},
	{path: "worker/tool/process", may: runner},
	{path: "worker/tool/outbound"},
	{path: "worker/tool/egress", may: []string{"worker/tool/outbound"}},
	{path: "worker/tool/builtin/base", may: runner},
	{path: "worker/tool/builtin/filetext", pure: true},
	{path: "worker/tool/builtin/glob", may: []string{"worker/tool/builtin/base"}, pure: true},
	{path: "worker/tool/builtin/rootdir", may: plus(runner, "worker/tool/builtin/base")},
	{path: "worker/tool/builtin/files", may: plus(fileTool, "worker/tool/builtin/filetext")},
	{path: "worker/tool/builtin/search", may: plus(fileTool, "worker/tool/builtin/filetext", "worker/tool/builtin/glob")},
	{path: "worker/tool/builtin/bash", may: fileTool},
	{path: "worker/tool/builtin/builtintest", may: fileTool},
	{path: "worker/tool/builtin", may: plus(runner, "worker/tool/builtin/...")},
	{path: "worker/tool/exectool", may: runner},
	{path: "worker/tool/httptool", may: runner},
	{path: "worker/tool/resultread", may: runner},
	{path: "worker/tool/mcptool", may: runner},
	{path: "worker/tool/mcptool/programtest", may: plus(runner, "worker/tool/mcptool", "worker/tool/tooltest")},
	{path: "worker/tool/tooltest", may: runner},
	{path: "worker/hook/hookjson", may: plus(words, "worker/hook", "internal/tracing")},
	{path: "worker/hook/exechook", may: plus(runner, "worker/hook", "worker/hook/hookjson")},
	{path: "worker/hook/httphook", may: plus(runner, "worker/hook", "worker/hook/hookjson", "worker/tool/httptool")},
	{path: "worker/hook/programhook", may: plus(runner, "worker/hook", "worker/hook/hookjson", "worker/tool/mcptool")},
	{path: "worker/call", may: []string{"messages"}},
	{path: "worker/pipeline", may: plus(words, "internal/wire", "worker/call", "worker/tool", "worker/hook", "worker/permission", "internal/approval", "internal/tracing")},

	{path: "internal/tracing"},
	{path: "internal/telemetry", may: []string{"internal/tracing"}},
	{path: "internal/devserver"},
	{path: "deploy/nats"},
	{path: "internal/identities", may: []string{"messages", "internal/approval", "deploy/nats"}},
	{path: "internal/natstest", may: []string{"internal/approval", "internal/devserver", "internal/identities"}},
	{path: "internal/bus/status"},
	{path: "internal/bus", may: []string{"fleet", "messages", "internal/rawjson", "internal/wire", "internal/bus/status"}},
	{path: "internal/bus/pull", may: []string{"internal/bus", "internal/bus/status", "internal/spare"}},
	{path: "internal/bus/objects", may: []string{"messages", "internal/bus"}},
	{path: "internal/bus/provision", may: []string{"messages", "internal/rawjson", "internal/wire", "internal/bus"}},
	{path: "internal/bus/inspect", may: []string{"internal/wire", "internal/bus", "internal/bus/provision"}},
	{path: "internal/bus/service", may: []string{"internal/bus"}},
	{path: "internal/bus/bustest", may: []string{"messages", "internal/wire", "internal/bus/...", "internal/devserver", "internal/natstest"}},
	{path: "internal/journal/outcome", pure: true},
	{path: "internal/journal", may: []string{"messages", "internal/rawjson", "internal/wire", "internal/bus", "internal/bus/objects", "internal/journal/outcome"}},
	{path: "internal/audit", may: []string{"messages", "internal/rawjson", "internal/wire", "internal/bus", "internal/journal", "internal/tracing"}},
	// approval is pure except for the file of a key.
	{path: "internal/approval", may: []string{"messages", "internal/rawjson", "internal/wire"}},
	{path: "internal/fleetgauges", may: plus(words, "internal/wire", "internal/bus/...", "internal/journal", "coordinator/session", "coordinator/toolset")},
	{path: "internal/clientconn", may: []string{"internal/bus"}},
	{path: "client", may: []string{"fleet", "messages", "internal/rawjson", "internal/wire", "internal/bus", "internal/approval", "internal/clientconn", "internal/tracing"}},

	{path: "internal/httpapi/access", may: []string{"messages", "internal/strictyaml"}},
	// These packages use the fleet's endpoints through client, and no connection of their own.
	{path: "internal/mcpserver", may: plus(words, "client", "internal/tracing")},
	{path: "internal/httpapi", may: plus(words, "client", "internal/principal", "internal/httpapi/access", "internal/mcpserver", "internal/tracing")},

	{path: "worker/attempt", may: []string{"worker/call", "messages", "internal/rawjson", "internal/wire", "internal/approval"}, pure: true},
	{path: "worker/lane", may: []string{"worker/attempt", "worker/call", "messages", "internal/rawjson", "internal/wire", "internal/bus", "internal/bus/provision", "internal/bus/pull", "internal/journal", "internal/spare", "internal/tracing"}},
	{path: "internal/worker", may: plus(foundations, "internal/sandbox", "internal/secrets", "worker/attempt", "worker/call", "worker/hook", "worker/lane", "worker/permission", "worker/pipeline", "worker/tool/...")},
	{path: "coordinator/recall", may: plus(words, "internal/wire", "internal/journal", "coordinator/batch"), pure: true},
	{path: "coordinator/logfields", may: []string{"messages", "internal/bus", "internal/tracing", "internal/wire"}},
	{path: "coordinator/submission", may: plus(words, "internal/wire", "internal/journal", "coordinator/provider", "coordinator/provider/export")},
	{path: "coordinator/announced", may: plus(words, "internal/bus", "internal/wire", "coordinator/toolset")},
	{path: "coordinator/catalogue", may: plus(words, "internal/bus")},
	{path: "coordinator/metrics", may: []string{"messages", "internal/tracing"}},
	{path: "coordinator/tuning", may: []string{"internal/bus", "internal/bus/provision", "internal/journal"}},
	{path: "coordinator/peers", may: []string{"messages", "internal/rawjson", "internal/bus", "internal/wire"}},
	{path: "coordinator/spans", may: plus(words, "internal/wire", "internal/bus", "internal/journal", "internal/tracing", "coordinator/batch", "coordinator/logfields", "coordinator/plan")},
	{path: "coordinator/approvals", may: plus(foundations, "internal/approval", "coordinator/logfields", "coordinator/spans")},
	{path: "coordinator/handlers", may: plus(foundations, "coordinator/announced", "coordinator/logfields", "coordinator/provider", "coordinator/provider/export", "coordinator/submission", "coordinator/toolset")},
	{path: "coordinator", may: plus(foundations, "internal/principal", "internal/approval", "internal/fleetgauges", "coordinator/...")},

	// The simulation runs coordinators and workers in one goroutine. It is not in the binary.
	{path: "internal/sim/broker", may: []string{"internal/wire", "internal/bus"}},
	{path: "internal/sim/world", may: []string{"internal/sim/broker", "internal/bus", "internal/rawjson"}},
	{path: "internal/sim/store", may: []string{"internal/sim/broker", "internal/sim/world", "internal/wire", "internal/bus", "internal/journal", "messages"}},
	{path: "internal/sim/staff", may: plus(words, "internal/wire")},
	{path: "internal/sim/judge", may: []string{"internal/rawjson", "messages", "internal/wire", "internal/sim/broker", "internal/sim/world", "internal/sim/staff", "internal/sim/store", "coordinator/plan", "worker/call"}},
	{path: "internal/sim", may: plus(words, "internal/sim/...", "internal/wire", "internal/bus", "internal/journal", "internal/approval", "coordinator/plan", "coordinator/batch", "coordinator/session", "coordinator/recall", "coordinator/toolset", "coordinator/placement", "worker/attempt", "worker/call")},

	// Workers in Go are built from config and daemon, so these import no server and no
	// coordinator.
	{path: "internal/config", may: plus(foundations, "internal/principal", "coordinator/tuning", "internal/approval", "internal/secrets", "internal/strictyaml", "internal/worker", "worker/hook/...", "worker/permission")},
	{path: "internal/daemon", may: plus(foundations, "internal/config", "internal/telemetry", "internal/worker", "worker/tool")},
	{path: "internal/toolservers", may: plus(words, "internal/sandbox", "internal/secrets", "internal/wire", "worker/tool", "worker/tool/mcptool")},
	// worker is the API of Go programs that bring tools.
	{path: "worker", may: plus(words, "fleet", "internal/config", "internal/daemon", "internal/telemetry", "internal/wire", "worker/call", "worker/hook", "worker/pipeline", "worker/tool/...")},
	{path: "internal/console", may: plus(foundations, "coordinator/...", "worker/...", "client", "internal/approval")},
	{path: "examples/...", may: public},
	{path: "internal/e2e/...", may: []string{"..."}},
	// Every command imports command, progress and terminal, and these import no command.
	{path: "cmd/toolfleet/internal/terminaltest"},
	{path: "cmd/toolfleet/internal/terminal", may: []string{"internal/rawjson", "internal/daemon"}},
	{path: "cmd/toolfleet/internal/progress", may: plus(words, "internal/wire", "cmd/toolfleet/internal/terminal")},
	{path: "cmd/toolfleet/internal/command", may: plus(foundations, "client", "coordinator/toolset", "internal/clientconn", "internal/config", "internal/daemon", "internal/telemetry", "cmd/toolfleet/internal/terminal")},
	{path: "cmd/...", may: []string{"..."}},
}

// natsPackages are the only packages that import a NATS package. Tests of this package may
// too, because they talk to the server as other clients do.
var natsPackages = []string{"internal/bus/...", "internal/devserver", "internal/natstest"}

func TestImports(t *testing.T) {
	files, err := scan(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("found no Go files")
	}
	for _, v := range violations(files) {
		t.Error(v)
	}
}

// A program with tools in Go links neither a NATS server nor a coordinator.
func TestWhatAWorkerLinks(t *testing.T) {
	files, err := scan(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{"worker": true}
	for grown := true; grown; {
		grown = false
		for _, f := range files {
			if f.test || !linked[f.pkg] {
				continue
			}
			for _, spec := range f.syntax.Imports {
				imported, _ := strconv.Unquote(spec.Path.Value)
				if ours, ok := strings.CutPrefix(imported, module+"/"); ok && !linked[ours] {
					linked[ours], grown = true, true
				}
			}
		}
	}
	for _, unwanted := range []string{"coordinator", "client", "internal/devserver", "internal/natstest"} {
		if linked[unwanted] {
			t.Errorf("worker imports %s, or imports what does", unwanted)
		}
	}
	if !linked["internal/bus"] {
		t.Error("the imports of worker are not followed")
	}
}

// Each case breaks one rule, and violations reports it.
func TestImportsAreCaught(t *testing.T) {
	for name, tc := range map[string]struct {
		path, source string
		want         string // part of the one violation; "" if there is none
	}{
		"allowed":                             {"coordinator/plan/plan.go", `package plan; import _ "` + module + `/schemas"`, ""},
		"messages stands alone":               {"messages/a.go", `package messages; import _ "` + module + `/schemas"`, "messages may not import schemas"},
		"halves stay apart":                   {"worker/worker.go", `package worker; import _ "` + module + `/coordinator/plan"`, "worker may not import coordinator/plan"},
		"apart in tests too":                  {"worker/worker_test.go", `package worker; import _ "` + module + `/coordinator"`, "the coordinator and the worker never import each other"},
		"tests import helpers":                {"worker/worker_test.go", `package worker; import _ "` + module + `/internal/natstest"`, ""},
		"dialects stay apart":                 {"coordinator/provider/gemini/g.go", `package gemini; import _ "` + module + `/coordinator/provider/bedrock"`, "may not import coordinator/provider/bedrock"},
		"only bus imports NATS":               {"client/client.go", `package client; import _ "github.com/nats-io/nats.go/jetstream"`, "only internal/bus"},
		"only bus imports NATS, in tests too": {"client/client_test.go", `package client; import _ "github.com/nats-io/nats.go"`, "only internal/bus"},
		"bus imports NATS":                    {"internal/bus/bus.go", `package bus; import _ "github.com/nats-io/nats.go"`, ""},
		"a package of bus":                    {"internal/bus/pull/pull.go", `package pull; import _ "github.com/nats-io/nats.go"`, ""},
		"bus stands below":                    {"internal/bus/bus.go", `package bus; import _ "` + module + `/internal/bus/pull"`, "internal/bus may not import internal/bus/pull"},
		"a stranger's client":                 {"internal/e2e/fleet_test.go", `package e2e; import _ "github.com/nats-io/nats.go"`, ""},
		"keys are not NATS":                   {"internal/approval/key.go", `package approval; import _ "github.com/nats-io/nkeys"`, ""},
		"keys in one package":                 {"client/client.go", `package client; import _ "github.com/nats-io/nkeys"`, "only internal/bus"},
		"names are not NATS":                  {"worker/lane/lane.go", `package lane; import _ "github.com/nats-io/nuid"`, ""},
		"unknown package":                     {"worker/cache/cache.go", `package cache`, "is not on the map"},
		"module root":                         {"toolfleet.go", `package toolfleet`, "is not on the map"},
		"nested module":                       {"nested/a.go", `package nested; import _ "github.com/nats-io/nats.go"`, ""},
		"clock":                               {"coordinator/batch/b.go", `package batch; import clock "time"; var _ = clock.Now`, "time.Now"},
		"durations are values":                {"coordinator/batch/b.go", `package batch; import "time"; const d = time.Second`, ""},
		"I/O":                                 {"coordinator/plan/p.go", `package plan; import _ "os"`, "is pure and may not import os"},
		"network":                             {"coordinator/plan/p.go", `package plan; import _ "net/http"`, "is pure and may not import net/http"},
		"goroutine":                           {"coordinator/batch/b.go", `package batch; func f() { go f() }`, "starts a goroutine"},
		"a test may do I/O":                   {"coordinator/batch/b_test.go", `package batch; import _ "os"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := scan(fstest.MapFS{
				"go.mod": {}, "nested/go.mod": {},
				tc.path: {Data: []byte(tc.source)},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := violations(files)
			if tc.want == "" && len(got) > 0 {
				t.Errorf("%s: %q is refused: %q", tc.path, tc.source, got)
			}
			if tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
				t.Errorf("%s: %q: got %q, want one violation with %q", tc.path, tc.source, got, tc.want)
			}
		})
	}
}

// file is a parsed Go file of this module, with the package that it belongs to.
type file struct {
	path, pkg string
	test      bool
	syntax    *ast.File
	fset      *token.FileSet
}

// scan parses every Go file of the module at the root of fsys, on whatever platform it is
// built, because a rule holds on every platform. It leaves out nested modules and testdata.
func scan(fsys fs.FS) ([]file, error) {
	var files []file
	fset := token.NewFileSet()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.ContainsAny(d.Name()[:1], "._") || d.Name() == "testdata" || exists(fsys, path.Join(name, "go.mod"))) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		source, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(fset, name, bytes.NewReader(source), parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file{name, path.Dir(name), strings.HasSuffix(name, "_test.go"), syntax, fset})
		return nil
	})
	return files, err
}

func exists(fsys fs.FS, name string) bool {
	_, err := fs.Stat(fsys, name)
	return err == nil
}

// violations returns one line for each import or use that breaks the map. It reports an
// unknown package once.
func violations(files []file) []string {
	var found []string
	unknown := map[string]bool{}
	for _, f := range files {
		r, ok := lookup(f.pkg)
		if !ok {
			if !unknown[f.pkg] {
				found = append(found, fmt.Sprintf("package %s is not on the map: add it to packageRules in internal/e2e/imports_test.go, with what it may import", f.pkg))
			}
			unknown[f.pkg] = true
			continue
		}
		for _, spec := range f.syntax.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if why := refuse(r, f, imported); why != "" {
				found = append(found, f.path+": "+why)
			}
		}
		if r.pure && !f.test {
			found = append(found, impurities(f)...)
		}
	}
	return found
}

// refuse returns why the file may not import a package. "" means that it may.
func refuse(r packageRule, f file, imported string) string {
	// The package nuid makes random names, and nkeys makes and checks keys and signatures.
	// Neither uses the network.
	keys := imported == "github.com/nats-io/nkeys" && slices.Contains(keyPackages, f.pkg)
	if strings.HasPrefix(imported, "github.com/nats-io/") && imported != "github.com/nats-io/nuid" && !keys {
		if slices.ContainsFunc(natsPackages, func(p string) bool { return matches(p, f.pkg) }) || f.test && f.pkg == "internal/e2e" {
			return ""
		}
		return "only " + strings.Join(natsPackages, ", ") + " import NATS packages"
	}
	ours, ok := strings.CutPrefix(imported, module+"/")
	switch {
	case !ok && r.pure && !f.test && impure(imported):
		return f.pkg + " is pure and may not import " + imported
	case !ok:
		return ""
	case f.test && (matches("coordinator/...", f.pkg) && matches("worker/...", ours) || matches("worker/...", f.pkg) && matches("coordinator/...", ours)):
		return "the coordinator and the worker never import each other, in tests neither"
	case f.test || slices.ContainsFunc(r.may, func(p string) bool { return matches(p, ours) }):
		return ""
	}
	return f.pkg + " may not import " + ours
}

// impure reports whether a package of the standard library brings I/O, randomness or locks.
// Package time is allowed for its values: see [impurities].
func impure(imported string) bool {
	return slices.ContainsFunc([]string{
		"context", "crypto/rand", "database/...", "io/ioutil", "log/...", "math/rand/...", "net/...", "os/...",
		"plugin", "runtime/...", "sync/...", "syscall/...", "testing/...", "unsafe",
	}, func(p string) bool { return matches(p, imported) })
}

// impurities returns the uses of the clock and of goroutines in a file.
func impurities(f file) []string {
	clock := ""
	for _, spec := range f.syntax.Imports {
		if spec.Path.Value == `"time"` {
			clock = "time"
			if spec.Name != nil {
				clock = spec.Name.Name
			}
		}
	}
	var found []string
	report := func(n ast.Node, what string) {
		found = append(found, fmt.Sprintf("%s: %s is pure and %s", f.fset.Position(n.Pos()), f.pkg, what))
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "starts a goroutine")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && clock != "" && x.Name == clock && slices.Contains(clockReads, n.Sel.Name) {
				report(n, "uses time."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

var clockReads = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// lookup returns the rule of a package.
func lookup(pkg string) (packageRule, bool) {
	i := slices.IndexFunc(packageRules, func(r packageRule) bool { return matches(r.path, pkg) })
	if i < 0 {
		return packageRule{}, false
	}
	return packageRules[i], true
}

// matches reports whether a pattern includes a package. The pattern "p" includes p, "p/..."
// also everything below p, and "..." every package.
func matches(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	base, below := strings.CutSuffix(pattern, "/...")
	return pkg == base || below && strings.HasPrefix(pkg, base+"/")
}

func plus(base []string, more ...string) []string { return append(slices.Clone(base), more...) }
