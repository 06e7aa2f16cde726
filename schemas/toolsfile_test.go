package schemas

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/strictyaml"
	"github.com/toolfleet/toolfleet/messages"
)

func parseFile(t testing.TB, name string) ToolsFile {
	t.Helper()
	file, err := ParseToolsFile(name, readFile(t, filepath.Join("testdata", name)))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// asJSON is a YAML file as JSON, for its schema.
func asJSON(t testing.TB, data []byte) []byte {
	t.Helper()
	f := strictyaml.Parse("file.yaml", data, 0)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	return rawjson.MustMarshal(f.Root.JSON())
}

func TestParseToolsFileFillsDefaults(t *testing.T) {
	file := parseFile(t, "tools-orders.yaml")
	if len(file.Tools) != 2 {
		t.Fatalf("got %d tools, want 2", len(file.Tools))
	}
	lookup, refund := file.Tools[0], file.Tools[1]
	if lookup.Digest == "" || refund.Digest == "" || lookup.Digest == refund.Digest {
		t.Errorf("digests %q and %q, want two different ones", lookup.Digest, refund.Digest)
	}
	lookup.Digest, refund.Digest = "", ""
	want := Entry{
		Tool: Tool{
			Name:        "lookup_order",
			Description: "Fetch order details by id. Use it before any other order tool; returns the items, the state and the amount.",
			Kind:        messages.KindRead, TimeoutMS: 90_000, Pool: "default", MaxOutput: 256 << 10, Truncate: TruncateMiddle,
			InputSchema: []byte(`{"additionalProperties":false,"properties":{"at_most":{"exclusiveMinimum":-1e3,"maximum":9007199254740993,"type":"integer"},` +
				`"order_id":{"pattern":"^ORD-\\d+$","type":"string"},"with items":{"type":"boolean"}},"required":["order_id"],"type":"object"}`),
		},
		Exec: &Exec{Command: []string{"./lookup", "--json"}},
		Env:  []string{"DB_URL", "LOOKUP_TOKEN"},
		Line: 3,
	}
	if diff := cmp.Diff(want, lookup); diff != "" {
		t.Errorf("lookup_order:\n%s", diff)
	}
	if refund.Kind != messages.KindWrite || refund.OnCrash != messages.OnCrashIdempotent || refund.TimeoutMS != 30_000 || refund.Pool != "payments" || refund.Line != 23 ||
		refund.Description != "Pay the amount back.\nNever without the user's word.\n" {
		t.Errorf("refund: got %+v", refund)
	}
}

func TestParseToolsFileLeavesFileBuiltinsTheirPromise(t *testing.T) {
	file := parseFile(t, "tools-builtins.yaml")
	concurrent := false
	want := []Entry{
		{Tool: Tool{Name: "Read"}, Builtin: "Read", Line: 2},
		{Tool: Tool{Name: "sh", Kind: messages.KindWrite, TimeoutMS: 120_000, MaxOutput: 20_000}, Builtin: "Bash", Line: 4},
		{Tool: Tool{Name: "echo", Kind: messages.KindCompute, TimeoutMS: 2000, Pool: "default", InputSchema: []byte(`{"type":"object"}`), ConcurrencySafe: &concurrent}, Builtin: "noop", Line: 9},
		{Tool: Tool{Name: "nap", Kind: messages.KindRead, TimeoutMS: 5000, Pool: "default", InputSchema: []byte(`{"type":"object"}`), MaxOutput: 1 << 20}, Builtin: "sleep", Line: 14},
		{Tool: Tool{Name: "breaks", Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce, TimeoutMS: 30_000, Pool: "default", InputSchema: []byte(`{"type":"object"}`)}, Builtin: "fail", Line: 15},
		{Tool: Tool{Name: "big", Kind: messages.KindRead, TimeoutMS: 5000, Pool: "default", InputSchema: []byte(`{"type":"object"}`), MaxOutput: math.MaxInt32, Truncate: TruncateTail}, Builtin: "blob", Line: 17},
	}
	for i := range file.Tools {
		file.Tools[i].Digest = ""
	}
	if diff := cmp.Diff(want, file.Tools); diff != "" {
		t.Error(diff)
	}
}

func TestGoodFilesSatisfyTheSchema(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join("testdata", "tools-*.yaml"))
	examples, _ := filepath.Glob(filepath.Join("..", "examples", "*tools*.yaml"))
	s, err := For("tools-file")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range append(files, examples...) {
		body := readFile(t, path)
		if _, err := ParseToolsFile(path, body); err != nil {
			t.Error(err)
			continue
		}
		if err := s.Validate(asJSON(t, body)); err != nil {
			t.Errorf("%s breaks tools-file.json: %v", path, err)
		}
	}
}

// toolWith is a file with one tool: lines are added to its name, schema and exec.
func toolWith(lines ...string) string {
	return "tools:\n- name: x\n  input_schema: {type: object}\n  exec: {command: [./x]}\n  " + strings.Join(lines, "\n  ") + "\n"
}

// mistakesCase is a file with everything that is wrong in it.
type mistakesCase struct {
	name, file string
	laxSchema  bool // the schema accepts the file: only the parser finds these mistakes
	want       []string
}

func (tt mistakesCase) check(t *testing.T) {
	tt.checkBy(t, "tools-file", func(data []byte) error { _, err := ParseToolsFile("f", data); return err })
}

// checkBy expects the parser to refuse the file with exactly the mistakes in want, and the schema
// to refuse it too, unless laxSchema is set.
func (tt mistakesCase) checkBy(t *testing.T, schema string, parse func([]byte) error) {
	err := parse([]byte(tt.file))
	if err == nil {
		t.Fatal("was accepted")
	}
	if diff := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Error(diff)
	}
	var mistake *FileError
	if !errors.As(err, &mistake) {
		t.Errorf("got %T, want FileErrors inside", err)
	}
	if tt.laxSchema {
		return
	}
	s, err := For(schema)
	if err != nil {
		t.Fatal(err)
	}
	if s.Validate(asJSON(t, []byte(tt.file))) == nil {
		t.Errorf("%s.json accepts it", schema)
	}
}

func TestParseToolsFileNamesEveryMistake(t *testing.T) {
	const run = "Read, Glob, Grep, Write, Edit, Bash, noop, sleep, fail, blob"
	for _, tt := range []mistakesCase{
		{"empty", "", false, []string{"f: want a mapping with the key tools, mcp or programs, got nothing"}},
		{"a list", "- name: x\n", false, []string{"f:1:1: want a mapping with the key tools, mcp or programs, got a list"}},
		{"no tools", "{}\n", false, []string{"f:1:1: want a mapping with the key tools, mcp or programs"}},
		{"tools is a mapping", "tools:\n  x: {}\n", false, []string{"f:2:3: tools: want a list of tools, got a mapping"}},
		{"no YAML", "tools: [\n", true, []string{"f:1:8: not valid YAML: sequence end token ']' not found"}},
		{"two documents", "tools: []\n---\ntools: []\n", true, []string{"f:3:1: a second document starts here; put everything into one"}},
		{"unknown top key", "tools: []\ntool: []\n", false, []string{`f:2:1: unknown key "tool"; did you mean tools?`}},
		{"entry is text", "tools: [Read]\n", false, []string{
			"f:1:9: tools[0]: want a tool: a mapping with name, input_schema and exec, http or builtin, got text"}},
		{"nothing but a name", "tools:\n- name: x\n", false, []string{
			"f:2:3: tools[0]: how to run the tool is missing: write exec: {command: [./program]}, http: {url: https://...} or builtin: with one of " + run}},
		{"no name", "tools:\n- builtin: noop\n", false, []string{
			"f:2:3: tools[0]: name is missing; want a tool: a mapping with name, input_schema and exec, http or builtin"}},
		{"no schema", "tools:\n- name: x\n  exec: {command: [./x]}\n", false, []string{
			"f:2:3: tools[0]: input_schema is missing: write the JSON Schema of the arguments, at least {type: object}"}},
		{"unknown key", toolWith("timeuot: 5s"), false, []string{`f:5:3: tools[0]: unknown key "timeuot"; did you mean timeout?`}},
		{"duplicate key", toolWith("pool: a", "pool: b"), true, []string{`f:6:3: key "pool" is there twice, first in line 5`}},
		{"duplicate tool", "tools:\n- {name: x, builtin: noop}\n- {name: x, builtin: fail}\n", true, []string{`f:3:3: tools[1]: a tool named "x" is there already, in line 2; two versions of it need a version: each`}},
		{"duplicate version", "tools:\n- {name: x, version: 1, builtin: noop}\n- {name: x, version: 2, builtin: noop}\n- {name: x, version: \"1.0\", builtin: noop}\n", true, []string{
			`f:4:3: tools[2]: version 1.0 of "x" is there already, in line 2`}},
		{"version", "tools:\n- {name: x, version: v1, builtin: noop}\n", false, []string{`f:2:22: tools[0].version: "v1": want whole numbers joined by dots, such as 3 or 1.10`}},
		{"version with a leading zero", "tools:\n- {name: x, version: \"1.01\", builtin: noop}\n", false, []string{`f:2:22: tools[0].version: "1.01": want whole numbers joined by dots, such as 3 or 1.10`}},
		{"version as a number", "tools:\n- {name: x, version: 1e3, builtin: noop}\n", true, []string{`f:2:22: tools[0].version: want whole numbers joined by dots, such as 3 or 1.10`}},
		{"version below zero", "tools:\n- {name: x, version: -1, builtin: noop}\n", true, []string{`f:2:22: tools[0].version: want whole numbers joined by dots, such as 3 or 1.10`}},
		{"version of another type", "tools:\n- {name: x, version: [1], builtin: noop}\n", false, []string{`f:2:22: tools[0].version: want whole numbers joined by dots, such as 3 or 1.10, got a list`}},
		{"too many versions", versions(18), true, []string{`f:18:3: tools[16]: "x" has more than 16 versions`}},
		{"name", "tools:\n- name: a b\n  builtin: noop\n", false, []string{`f:2:9: tools[0].name: "a b": want 1 to 64 of [a-zA-Z0-9_-]`}},
		{"name is a number", "tools:\n- name: 7\n  builtin: noop\n", false, []string{"f:2:9: tools[0].name: want 1 to 64 of [a-zA-Z0-9_-], got a number"}},
		{"kind", toolWith("kind: Read"), false, []string{`f:5:9: tools[0].kind: "Read" is not one of read, write, compute`}},
		{"kind is empty", toolWith("kind:"), false, []string{"f:5:9: tools[0].kind: want one of read, write, compute, got nothing"}},
		{"concurrency_safe is a number", toolWith("concurrency_safe: 1"), false, []string{
			"f:5:21: tools[0].concurrency_safe: want true, false or an expression such as input.dry_run, got a number"}},
		{"timeout without unit", toolWith("timeout: 5"), false, []string{
			`f:5:12: tools[0].timeout: want a duration of at least 1ms, such as "5s", "500ms" or "2m", got a number`}},
		{"timeout", toolWith("timeout: 5 seconds"), false, []string{
			`f:5:12: tools[0].timeout: "5 seconds": want a duration of at least 1ms, such as "5s", "500ms" or "2m"`}},
		{"timeout is negative", toolWith("timeout: -5s"), false, []string{
			`f:5:12: tools[0].timeout: "-5s": want a duration of at least 1ms, such as "5s", "500ms" or "2m"`}},
		{"on_crash", toolWith("on_crash: retry"), false, []string{`f:5:13: tools[0].on_crash: "retry" is not one of idempotent, checkable, once`}},
		{"on_crash of a read", toolWith("on_crash: once", "kind: read"), true, []string{"f:5:3: tools[0].on_crash: this is for writes; a read may always be run again"}},
		{"pool", toolWith("pool: a.b"), false, []string{`f:5:9: tools[0].pool: "a.b": want 1 to 32 of [a-zA-Z0-9_-]`}},
		{"max_output", toolWith("max_output: lots"), false, []string{
			`f:5:15: tools[0].max_output: "lots": want a number of bytes such as 10000 or 256KB, from 1 byte to 2047MB`}},
		{"max_output of nothing", toolWith("max_output: 0"), false, []string{
			"f:5:15: tools[0].max_output: want a number of bytes such as 10000 or 256KB, from 1 byte to 2047MB"}},
		{"max_output with an exponent", toolWith("max_output: 1e3"), true, []string{"f:5:15: tools[0].max_output: want a number of bytes such as 10000 or 256KB"}},
		{"max_output over the limit", toolWith("max_output: 2048MB"), true, []string{"f:5:15: tools[0].max_output: want 1 byte to 2047MB"}},
		{"truncate", toolWith("truncate: start"), false, []string{`f:5:13: tools[0].truncate: "start" is not one of head, middle, tail`}},
		{"env with values", toolWith("env: {A: b}"), false, []string{"f:5:8: tools[0].env: want a list of names such as [DB_URL], got a mapping"}},
		{"env names", toolWith("env: [A=b, TOOLFLEET_FENCE, 1]"), false, []string{
			"f:5:9: tools[0].env[0]: want the name of an environment variable; its value is not written here",
			"f:5:14: tools[0].env[1]: names that begin with TOOLFLEET_ are set by toolfleet itself",
			"f:5:31: tools[0].env[2]: want the name of an environment variable; its value is not written here, got a number"}},
		{"env of a builtin", "tools:\n- {name: x, builtin: Bash, env: [A]}\n", false, []string{
			"f:2:28: tools[0].env: this is for exec; nothing else reads environment variables of its own"}},
		{"exec is text", "tools:\n- {name: x, input_schema: {type: object}, exec: ./x}\n", false, []string{"f:2:49: tools[0].exec: want {command: [./program, argument]}, got text"}},
		{"command is text", "tools:\n- {name: x, input_schema: {type: object}, exec: {command: ./x}}\n", false, []string{
			`f:2:59: tools[0].exec.command: want a list that begins with the program, such as [./program, argument] or [sh, -c, "a | b"], got text`}},
		{"command is empty", "tools:\n- {name: x, input_schema: {type: object}, exec: {command: []}}\n", false, []string{
			`f:2:59: tools[0].exec.command: want a list that begins with the program, such as [./program, argument] or [sh, -c, "a | b"]`}},
		{"no command", "tools:\n- {name: x, input_schema: {type: object}, exec: {cmd: [a]}}\n", false, []string{
			"f:2:49: tools[0].exec: command is missing; want {command: [./program, argument]}",
			`f:2:50: tools[0].exec: unknown key "cmd"; the keys here: command`}},
		{"command with a number", "tools:\n- {name: x, input_schema: {type: object}, exec: {command: [head, -3]}}\n", false, []string{"f:2:66: tools[0].exec.command[1]: want text (put it into quotes), got a number"}},
		{"builtin", "tools:\n- {name: x, builtin: bash}\n", false, []string{`f:2:22: tools[0].builtin: "bash" is not one of ` + run}},
		{"two runners", toolWith("builtin: noop"), false, []string{"f:5:3: tools[0].builtin: a tool is run by exec or by builtin, not by both"}},
		{"not yet", toolWith("cwd: /", "limits: {}"), true, []string{
			"f:5:3: tools[0].cwd: not in this version; let the program change its directory",
			"f:6:3: tools[0].limits: not in this version; put bounds into input_schema, and what that cannot say into semantic"}},
		{"schema is text", "tools:\n- {name: x, builtin: noop, input_schema: object}\n", false, []string{
			"f:2:42: tools[0].input_schema: want a JSON Schema such as {type: object, properties: {...}}, got text"}},
		{"schema of text", "tools:\n- {name: x, builtin: noop, input_schema: {type: string}}\n", false, []string{
			`f:2:49: tools[0].input_schema.type: "string": the root of input_schema must have type: object, because the arguments of a call are one`}},
		{"schema is broken", "tools:\n- name: x\n  builtin: noop\n  input_schema:\n    type: object\n    required: a\n", true, []string{"f:5:5: tools[0].input_schema: /required: expected array, but got string"}},
		{"schema loads", "tools:\n- {name: x, builtin: noop, input_schema: {type: object, $ref: 'file:///etc/passwd'}}\n", true, []string{
			`f:2:42: tools[0].input_schema: "file:///etc/passwd" is outside of this schema, and nothing is loaded`}},
		{"anchors", "tools:\n- &a {name: x, builtin: noop}\n- *a\n- {<<: *a, name: y}\n", true, []string{
			"f:2:3: anchors and aliases are not read; write the value out",
			"f:3:3: anchors and aliases are not read; write the value out",
			"f:4:4: want text as the key (anchors, aliases and << are not read)"}},
		{"tags and infinities", "tools:\n- name: !!str x\n  timeout: .inf\n", true, []string{
			"f:2:9: tags are not read; write the value without it",
			"f:3:12: want a JSON value: text, number, true, false, null, a list or a mapping"}},
		{"nesting", "tools: " + strings.Repeat("[", 5000), true, []string{"f:1:136: nested more than 128 deep"}},
		{"nesting of mappings", "tools: " + strings.Repeat("{a: ", 5000), true, []string{"f:1:520: nested more than 128 deep"}},
		{"size", strings.Repeat("#", MaxFileBytes+1), true, []string{"f: 1048577 bytes long (limit 1048576)"}},
		{"all at once", "tools:\n- {name: x y, builtin: noop, kind: z}\n- {name: b, timeout: 1, builtin: fail}\nx: 1\n", false, []string{
			`f:2:10: tools[0].name: "x y": want 1 to 64 of [a-zA-Z0-9_-]`,
			`f:2:36: tools[0].kind: "z" is not one of read, write, compute`,
			`f:3:22: tools[1].timeout: want a duration of at least 1ms, such as "5s", "500ms" or "2m", got a number`,
			`f:4:1: unknown key "x"; the keys here: mcp, permissions, programs, tools`}},
	} {
		t.Run(tt.name, tt.check)
	}
}

// TestLongFiles: the bounds on schemas and values from others do not hold for a file of the
// operator.
func TestLongFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector, which sees nothing in one goroutine")
	}
	tools := []byte("tools:\n")
	for i := range 12_000 {
		tools = fmt.Appendf(tools, "- {name: x%d, builtin: noop, kind: read, risk: low, pool: a}\n", i)
	}
	if file, err := ParseToolsFile("f", tools); err != nil || len(file.Tools) != 12_000 {
		t.Errorf("%d tools, %.300v", len(file.Tools), err)
	}
	input := "tests: [{tool: x, expect: {effect: deny}, input: {a: [" + strings.Repeat("1,", 200_000) + "1]}}]"
	if p, err := ParsePolicy("f", []byte(input)); err != nil || len(p.Tests[0].Input) < 400_000 {
		t.Errorf("got %.300v", err)
	}
}

// FuzzParseToolsFile: no file makes the parser panic. An accepted file satisfies its schema, is the
// same when read again, and makes a catalog.
func FuzzParseToolsFile(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("testdata", "tools-*.yaml"))
	for _, path := range files {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(body))
	}
	f.Add(toolWith("timeout: 1h2.5m", "max_output: 3 KiB", "env: [_A]"))
	f.Add("%YAML 1.2\n---\ntools: [{? name : 'x', builtin: \"noop\"}]\n...\n")
	s, err := For("tools-file")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data string) {
		file, err := ParseToolsFile("f", []byte(data))
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		if err := s.Validate(asJSON(t, []byte(data))); err != nil {
			t.Errorf("accepted, but breaks tools-file.json: %v", err)
		}
		again, err := ParseToolsFile("f", []byte(data))
		if diff := cmp.Diff(file, again); err != nil || diff != "" {
			t.Errorf("read again: %v\n%s", err, diff)
		}
		var tools []Tool
		for _, e := range file.Tools {
			tools = append(tools, e.Tool)
		}
		if _, err := NewCatalog(tools...); err != nil {
			t.Errorf("accepted, but no catalog: %v", err)
		}
	})
}

// versions is a file with versions 1 to n of one tool.
func versions(n int) string {
	file := "tools:\n"
	for i := range n {
		file += fmt.Sprintf("- {name: x, version: %d, builtin: noop}\n", i+1)
	}
	return file
}

func TestParseToolsFileReadsVersions(t *testing.T) {
	file, err := ParseToolsFile("f", []byte("tools:\n- {name: x, version: 1.10, builtin: noop}\n- {name: x, version: '1.9', builtin: noop}\n- {name: x, builtin: noop}\n- {name: y, version: 1, builtin: noop}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range file.Tools {
		got = append(got, e.Name+" "+e.Version)
	}
	if diff := cmp.Diff([]string{"x 1.10", "x 1.9", "x ", "y 1"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := ParseToolsFile("f", []byte(versions(MaxVersions))); err != nil {
		t.Error(err)
	}
}
