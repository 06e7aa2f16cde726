package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
)

// The policy of the platform can make a sandbox stricter. It cannot allow more.
func TestAPolicyTightensASandbox(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const file = "tools:\n  - {name: a, input_schema: {type: object}, exec: {command: ['true']}, sandbox: %s}\n"
	for _, tc := range []struct{ tool, policy, network, hosts string }{
		{"{}", "{network: none}", "none", ""},
		{"{}", "{network: any}", "any", ""},
		{"{}", "{network: {hosts: [a.example]}}", "hosts", "a.example"},
		{"{}", "{network: host}", "host", ""},
		{"{}", "{limits: {memory: 1GB}}", "host", ""},
		{"{off: true}", "{network: any}", "any", ""},
		{"{off: true}", "{required: []}", "host", ""},
		{"{network: none}", "{network: host}", "none", ""},
		{"{network: {hosts: [a.example]}}", "{network: any}", "hosts", "a.example"},
		{"{network: any}", "{network: {hosts: ['*.example']}}", "hosts", "*.example"},
		{"{network: {hosts: [a.example, b.test, 'c.example:22', '*.d.example']}}", "{network: {hosts: ['*.example']}}", "hosts", "a.example *.d.example"},
		{"{network: {hosts: ['*.example']}}", "{network: {hosts: [a.example]}}", "none", ""},
		{"{network: {hosts: [a.example]}}", "{network: {hosts: ['a.example:443']}}", "none", ""},
		{"{network: {hosts: ['a.example:443']}}", "{network: {hosts: [a.example]}}", "hosts", "a.example:443"},
	} {
		tools := parseTools(t, fmt.Sprintf(file, tc.tool))
		policy, err := schemas.ParsePolicy("policy.yaml", []byte("sandbox: "+tc.policy))
		if err != nil {
			t.Fatal(err)
		}
		c, _, _ := worker.Find(tools, "a")
		got, ok, err := worker.Place{Dir: "/x", Tighten: policy.Sandbox}.Confinement(c)
		if err != nil || !ok || string(got.Network) != tc.network || strings.Join(got.Hosts, " ") != tc.hosts {
			t.Errorf("%s within %s: got %s %q, %t, %v", tc.tool, tc.policy, got.Network, got.Hosts, ok, err)
		}
	}
}

func TestAPolicyLowersLimitsAndRequiresMore(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	tools := parseTools(t, `tools:
  - {name: a, input_schema: {type: object}, exec: {command: ['true']}, sandbox: {limits: {processes: 7, cpu: 3s}, required: [files]}}
programs:
  - {command: ['true']}
`)
	policy, err := schemas.ParsePolicy("policy.yaml", []byte("sandbox: {limits: {memory: 1MB, processes: 50, cpu: 5s, file_size: 100GB}, required: [network, files]}"))
	if err != nil {
		t.Fatal(err)
	}
	place := worker.Place{Dir: "/x", Tighten: policy.Sandbox}
	c, _, _ := worker.Find(tools, "a")
	got, _, err := place.Confinement(c)
	if err != nil || got.Limit.Memory != 1<<20 || got.Limit.Processes != 7 || got.Limit.CPU != 3 || got.Limit.FileSize != 4<<30 ||
		!slices.Equal(got.Required, []sandbox.Property{"files", "network"}) {
		t.Errorf("got %+v, %q, %v", got.Limit, got.Required, err)
	}
	c, _, _ = worker.Find(tools, "true")
	if got, ok, err := place.Confinement(c); err != nil || !ok || got.Limit.CPU != 0 || got.Limit.Processes != 50 {
		t.Errorf("a program that stays: got %+v, %t, %v", got.Limit, ok, err)
	}
}
