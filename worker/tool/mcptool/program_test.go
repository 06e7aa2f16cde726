package mcptool_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool/programtest"
)

// interpreter returns a program of PATH, or skips the test.
func interpreter(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("there is no %s", names[0])
	return ""
}

func TestPythonProgram(t *testing.T) {
	programtest.Run(t, interpreter(t, "/usr/bin/python3", "python3"), "testdata/program.py")
}

func TestNodeProgram(t *testing.T) {
	programtest.Run(t, interpreter(t, "node"), "testdata/program.mjs")
}

func BenchmarkPrograms(b *testing.B) {
	for _, command := range [][]string{
		{interpreter(b, "/usr/bin/python3", "python3"), "testdata/program.py", "."},
		{interpreter(b, "node"), "testdata/program.mjs", "."},
	} {
		b.Run(command[1], func(b *testing.B) {
			s, err := mcptool.Open(context.Background(), mcptool.Config{Server: schemas.Server{Name: "p", Command: command, Program: true, Processes: 1}})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			for _, served := range s.Tools() {
				if served.Name != "noop" {
					continue
				}
				for b.Loop() {
					if _, err := served.Runner.Run(b.Context(), tool.Call{Input: json.RawMessage(`{}`)}); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
