package schemas

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

func TestParseServers(t *testing.T) {
	file, err := ParseToolsFile("f", []byte(`mcp:
- {name: files, command: [npx, -y, server], env: [DEBUG], processes: 2, tools: [read_file, write_file], trust: annotations,
   override: {write_file: {on_crash: idempotent, timeout: 10s, risk: high, ask: false, max_output: 1KB}}, lock: files.lock.json}
- {name: issues, url: "https://example.com/mcp/", headers: {Authorization: {secret: token, prefix: "Bearer "}}, prefix: "", tenants: shared}
programs:
- {command: [python3, tools.py], pool: python, sandbox: {network: none, state: [./ledger], required: [files]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := []Server{
		{Name: "files", Command: []string{"npx", "-y", "server"}, Env: []string{"DEBUG"}, Prefix: "files__", Processes: 2,
			Tools: []string{"read_file", "write_file"}, Trusted: true, Lock: "files.lock.json", Line: 2,
			Override: map[string]Override{"write_file": {OnCrash: messages.OnCrashIdempotent, TimeoutMS: 10_000, Risk: messages.TierHigh, Ask: &no, MaxOutput: 1024}}},
		{Name: "issues", URL: "https://example.com/mcp/", Processes: 1, Shared: true, Line: 4,
			Values: []HTTPValue{{Name: "Authorization", Secret: "token", Prefix: "Bearer "}}},
		{Name: "python3 tools.py", Command: []string{"python3", "tools.py"}, Processes: 1, Program: true, Pool: "python", Line: 6,
			Sandbox: Sandbox{Network: "none", State: []string{"./ledger"}, Required: []string{"files"}}},
	}
	if diff := cmp.Diff(want, file.Servers); diff != "" {
		t.Error(diff)
	}
}

func TestParseServersNamesEveryMistake(t *testing.T) {
	for _, tt := range []mistakesCase{
		{"no name", "mcp:\n- command: [a]\n", false, []string{
			"f:2:3: mcp[0]: name is missing; want {name: files, command: [program, argument]} or {name: issues, url: https://...}"}},
		{"name with the separator", "mcp:\n- {name: a__b, command: [a]}\n", true, []string{"f:2:10: mcp[0].name: want letters, digits, - and single _ between them, such as files"}},
		{"name twice", "mcp:\n- {name: a, command: [a]}\n- {name: a, command: [b]}\n", true, []string{
			`f:3:10: mcp[1].name: a server named "a" is there already, in line 2; give this one another name`}},
		{"neither", "mcp:\n- name: a\n", true, []string{"f:2:3: mcp[0]: want command: [program, argument] or url: https://..., one of them"}},
		{"both", "mcp:\n- {name: a, command: [a], url: https://b}\n", true, []string{"f:2:3: mcp[0]: want command: [program, argument] or url: https://..., one of them"}},
		{"env of a url", "mcp:\n- {name: a, url: https://b, env: [C]}\n", true, []string{"f:2:29: mcp[0].env: this is for command; a server at a url gets headers"}},
		{"headers of a command", "mcp:\n- {name: a, command: [b], headers: {C: d}}\n", true, []string{"f:2:27: mcp[0].headers: this is for url; a server that is started gets env"}},
		{"password", "mcp:\n- {name: a, url: https://me:hidden@b}\n", true, []string{"f:2:18: mcp[0].url: a password is not written here; name its variable under headers"}},
		{"trust", "mcp:\n- {name: a, command: [b], trust: all}\n", false, []string{`f:2:34: mcp[0].trust: "all" is not one of annotations`}},
		{"override of another tool", "mcp:\n- {name: a, command: [b], tools: [c], override: {d: {risk: high}}}\n", true, []string{"f:2:50: mcp[0].override.d: tools does not have this tool"}},
		{"on_crash of a read", "mcp:\n- {name: a, command: [b], override: {c: {kind: read, on_crash: once}}}\n", true, []string{
			"f:2:54: mcp[0].override.c.on_crash: this is for writes; a read may always be run again"}},
		{"program without command", "programs:\n- name: x\n", false, []string{"f:2:3: programs[0]: command is missing; want {command: [python3, tools.py]}"}},
		{"program at a url", "programs:\n- {command: [x], url: https://a}\n", false, []string{
			"f:2:18: programs[0]: unknown key \"url\"; the keys here: command, env, lock, name, override, pool, prefix, processes, sandbox, tenants, tools"}},
		{"sandbox of a url", "mcp:\n- {name: a, url: https://b, sandbox: {network: none}}\n", true, []string{
			"f:2:29: mcp[0].sandbox: this is for command; a server at a url runs elsewhere"}},
		{"time of a program that stays", "programs:\n- {command: [x], sandbox: {limits: {cpu: 3s}}}\n", true, []string{
			"f:2:37: programs[0].sandbox.limits.cpu: a program that stays would be killed by this sooner or later; the time of a call is bounded by its timeout"}},
	} {
		t.Run(tt.name, tt.check)
	}
}
