package schemas

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSandboxOfATool(t *testing.T) {
	file, err := ParseToolsFile("tools.yaml", []byte(`tools:
  - name: pay
    input_schema: {type: object}
    exec: {command: [./pay]}
    sandbox: {network: none, state: [./ledger], read: [/srv], limits: {memory: 512MB, processes: 7, file_size: 2 GiB, cpu: 3s}, required: [files]}
  - {name: Bash, builtin: Bash, sandbox: {off: true}}
  - name: book
    input_schema: {type: object}
    http: {url: https://a}
    on_crash: checkable
    check: {command: [./booked]}
    sandbox: {network: {hosts: [example.com, "*.example.org:8443"], loopback: true}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Sandbox{
		Network: "none", State: []string{"./ledger"}, Read: []string{"/srv"}, Required: []string{"files"},
		Limits: SandboxLimits{Memory: 512 << 20, Processes: 7, FileSize: 2 << 30, CPU: 3 * time.Second},
	}
	if diff := cmp.Diff(want, file.Tools[0].Sandbox); diff != "" {
		t.Error(diff)
	}
	if !file.Tools[1].Sandbox.Off {
		t.Error("the sandbox of Bash is on")
	}
	want = Sandbox{Network: "hosts", Hosts: []string{"example.com", "*.example.org:8443"}, Loopback: true}
	if diff := cmp.Diff(want, file.Tools[2].Sandbox); diff != "" {
		t.Errorf("the check of a request: %s", diff)
	}
}

func TestWrongSandboxes(t *testing.T) {
	for sandbox, want := range map[string]string{
		"{network: [example.com]}":      "want none, any, host, or a list such as",
		"{network: all}":                "want none, any, host, or a list such as",
		"{network: {hosts: []}}":        "network",
		"{network: {hosts: ['a b']}}":   "network",
		"{network: {hosts: ['*']}}":     "network",
		"{network: {host: [a.b]}}":      "network",
		"{state: [/]}":                  "the whole machine",
		"{limits: {memory: 12}}":        "want a size such as",
		"{limits: {memory: 0MB}}":       "want a size such as",
		"{limits: {processes: 0}}":      "want a number from 1",
		"{required: [everything]}":      "not one of files, processes, network, limits",
		"{off: true, network: none}":    "has no other keys",
		"{netwrok: none}":               "netwrok",
		"{read: none}":                  "want a list of files",
		"{limits: {file_size: 1 inch}}": "want a size such as",
	} {
		_, err := ParseToolsFile("tools.yaml", []byte("tools:\n  - {name: a, input_schema: {type: object}, exec: {command: [a]}, sandbox: "+sandbox+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", sandbox, err, want)
		}
	}
	_, err := ParseToolsFile("tools.yaml", []byte("tools:\n  - {name: a, builtin: noop, sandbox: {off: true}}\n"))
	if err == nil || !strings.Contains(err.Error(), "exec, Bash, and a check") {
		t.Errorf("got %v", err)
	}
}
