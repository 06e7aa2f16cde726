package worker_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

func parseTools(t *testing.T, text string) schemas.ToolsFile {
	t.Helper()
	file, err := schemas.ParseToolsFile("tools.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func openRoot(t *testing.T) *builtin.Root {
	t.Helper()
	root, err := builtin.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func names(tools []schemas.Tool) (list []string) {
	for _, t := range tools {
		list = append(list, t.Name)
	}
	return list
}

// The file tools come with a root and only then. A tool of the file goes before one of the same name, and a
// file tool that is lent under another name keeps its own word where the entry says nothing.
func TestOpenTools(t *testing.T) {
	file := parseTools(t, `
tools:
  - {name: Read, builtin: Read, timeout: 1s}
  - {name: peek, builtin: Read, pool: slow}
  - {name: echo, kind: compute, builtin: noop}
`)
	var reg tool.Registry
	if err := worker.OpenTools(&reg, file, "", openRoot(t)); err != nil {
		t.Fatal(err)
	}
	promised, err := worker.Promises(file, true)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Bash", "Edit", "Glob", "Grep", "Read", "Write", "echo", "peek"}
	if diff := cmp.Diff(want, names(reg.Promises())); diff != "" {
		t.Error(diff)
	}
	for _, p := range promised {
		if got, _ := reg.Lookup(p.Name); got.Digest != p.Digest {
			t.Errorf("%s is promised with another digest than it is served with", p.Name)
		}
	}
	own, _ := builtin.Promise("Read")
	read, _ := reg.Lookup("Read")
	peek, _ := reg.Lookup("peek")
	if read.TimeoutMS != 1000 || read.Description != own.Description || read.Kind != messages.Read {
		t.Errorf("Read is %+v", read.Tool)
	}
	if peek.Pool != "slow" || peek.MaxOutput != own.MaxOutput {
		t.Errorf("peek is %+v", peek.Tool)
	}

	var bare tool.Registry
	if err := worker.OpenTools(&bare, parseTools(t, "tools: [{name: echo, builtin: noop}]"), "", nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"echo"}, names(bare.Promises())); diff != "" {
		t.Error(diff)
	}
}

func TestOpenToolsTellsEveryMistake(t *testing.T) {
	file := parseTools(t, `tools:
  - {name: gone, input_schema: {type: object}, exec: {command: [./gone]}}
  - {name: peek, builtin: Read}
`)
	var reg tool.Registry
	err := worker.OpenTools(&reg, file, t.TempDir(), nil)
	for _, want := range []string{"line 2: tool gone: ", "line 3: tool peek: builtin Read needs a root"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
