package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/schemas"
)

// These tests wait for processes most of the time, so that eight run at once even on two cores.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // before -parallel of the command line
	testscript.Main(m, map[string]func(){"toolfleet": main, "mcp-test-server": mcpTestServer, "mcp-test-client": mcpTestClient})
}

// TestScripts runs the commands as real processes; see testdata/script.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes, which the tests without -short look at")
	}
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"valid": valid,
		},
		Condition: func(name string) (bool, error) {
			if name != "confines" { // this machine can confine the files of a command
				return false, fmt.Errorf("there is no condition %q", name)
			}
			m := sandbox.Local()
			return m.Landlock > 0 || m.Namespaces.Mount, nil
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, ".config"))
			env.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each of many processes ends a second later
			// Copy the examples: they change their project.
			return os.CopyFS(filepath.Join(env.WorkDir, "examples"), os.DirFS("../../examples"))
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// valid SCHEMA FILE checks every line of a file against a message schema.
func valid(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("usage: valid SCHEMA FILE")
	}
	schema, err := schemas.For(args[0])
	ts.Check(err)
	for i, line := range strings.Split(strings.TrimSpace(ts.ReadFile(args[1])), "\n") {
		if err := schema.Validate(json.RawMessage(line)); err != nil {
			ts.Fatalf("line %d of %s is no %s: %v\n%s", i+1, args[1], args[0], err, line)
		}
	}
}

// Every flag of a setting names an existing setting and has a help text. A flag with a wrong key
// would never be read.
func TestFlagsAreSettings(t *testing.T) {
	parser, err := kong.New(new(cli), kong.PostBuild(daemon.ExplainSettings), kong.ExplicitGroups(daemon.FlagGroups))
	if err != nil {
		t.Fatal(err)
	}
	help, flags := config.Help(), 0
	err = kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			flags++
			if key := flag.Tag.Get("setting"); flag.Help == "" || key != "" && key != "config" && key != "context" && help[key] == "" {
				t.Errorf("--%s is the setting %q, and shows %q", flag.Name, key, flag.Help)
			}
		}
		return next(nil)
	})
	if err != nil || flags < 100 {
		t.Errorf("%d flags: %v", flags, err)
	}
}

// Every example batch is valid by the schema of a batch.
func TestExamplesAreValid(t *testing.T) {
	schema, err := schemas.For("batch")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../examples/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(fmt.Errorf("no examples: %w", err))
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(body); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
