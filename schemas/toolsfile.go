package schemas

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// ToolsFile is what a worker serves besides its own builtins. Its schema is tools-file.json.
type ToolsFile struct {
	Tools []Entry // in the order of the file
	Rules Rules   // the layer below the policy
}

// Entry is one tool with the way it is run: exactly one of Exec and Builtin is set.
type Entry struct {
	// Tool has its defaults filled, except for a file builtin: what such an entry leaves open is
	// the builtin's own promise, which the worker knows.
	Tool
	Exec    *Exec
	Builtin string   // one of [FileBuiltins] or [DemoBuiltins]
	Check   *Check   // set exactly when on_crash is checkable
	Env     []string // environment variables that the tool and its check get
	Line    int      // where the entry starts, from 1
}

// Exec runs a program for each call.
type Exec struct {
	Command []string // the program and its arguments; no shell
}

// The values of the key builtin. FileBuiltins have a kind, a schema and a description of their own.
// DemoBuiltins, for demos, tests and load runs, take those of the entry.
var (
	FileBuiltins = []string{"Read", "Glob", "Grep", "Write", "Edit", "Bash"}
	DemoBuiltins = []string{"noop", "sleep", "fail", "blob"}
)

// entryKeys lists every key of an entry in the order in which errors list them. A nil reader marks
// a key that is not in this version.
var entryKeys = []struct {
	name    string
	read    func(*entryReader, yamlNode)
	instead string
}{
	{"name", (*entryReader).name, ""},
	{"description", (*entryReader).description, ""},
	{"kind", (*entryReader).kind, ""},
	{"concurrency_safe", (*entryReader).concurrencySafe, ""},
	{"input_schema", (*entryReader).inputSchema, ""},
	{"timeout", (*entryReader).timeout, ""},
	{"on_crash", (*entryReader).onCrash, ""},
	{"check", (*entryReader).check, ""},
	{"retry", (*entryReader).retry, ""},
	{"semantic", (*entryReader).semantic, ""},
	{"risk", (*entryReader).risk, ""},
	{"pool", (*entryReader).pool, ""},
	{"max_output", (*entryReader).maxOutput, ""},
	{"truncate", (*entryReader).truncate, ""},
	{"env", (*entryReader).env, ""},
	{"exec", (*entryReader).exec, ""},
	{"builtin", (*entryReader).builtin, ""},
	{"http", nil, "; use exec with a program that makes the request"},
	{"cwd", nil, "; let the program change its directory"},
	{"limits", nil, "; put bounds into input_schema, and what that cannot say into semantic"},
}

var (
	environmentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	byteSize        = regexp.MustCompile(`^([0-9]{1,12}) ?(B|KB|KiB|MB|MiB)?$`)
)

// ParseToolsFile reads a tools file (YAML). name appears in the error, which joins one [FileError]
// for every mistake in the file.
func ParseToolsFile(name string, data []byte) (ToolsFile, error) {
	m := &mistakes{file: name}
	root := parseYAML(data, m)
	if len(m.all) > 0 {
		return ToolsFile{}, m.err()
	}
	file := m.toolsFile(root)
	if err := m.err(); err != nil {
		return ToolsFile{}, err
	}
	return file, nil
}

func (m *mistakes) toolsFile(root yamlNode) ToolsFile {
	var file ToolsFile
	members, ok := root.value.([]yamlMember)
	if !ok {
		m.add(root.position, "want a mapping with the key tools, got %s", root.typeName())
		return file
	}
	found := false
	for _, member := range members {
		switch member.key {
		case "tools":
			found = true
			file.Tools = m.entries(member.node)
		case "permissions":
			file.Rules = m.permissions(member.node)
		case "mcp_servers":
			m.add(member.position, "mcp_servers is not in this version")
		default:
			m.add(member.position, "unknown key %q; the keys of a tools file are tools and permissions", clip(member.key))
		}
	}
	if !found && len(m.all) == 0 {
		m.add(root.position, "the key tools is missing")
	}
	return file
}

func (m *mistakes) entries(n yamlNode) []Entry {
	items, ok := n.value.([]yamlNode)
	if !ok {
		m.add(n.position, "tools: want a list of tools, got %s", n.typeName())
		return nil
	}
	var entries []Entry
	first := map[string]int{} // line of each name
	for _, item := range items {
		entry, ok := m.entry(item)
		if !ok {
			continue
		}
		if line, twice := first[entry.Name]; twice && entry.Name != "" {
			m.add(item.position, "a tool named %q is there already, in line %d", entry.Name, line)
		}
		first[entry.Name] = entry.Line
		entries = append(entries, entry)
	}
	return entries
}

// entryReader reads one entry, key by key.
type entryReader struct {
	*mistakes
	entry Entry
	at    map[string]position // the keys of the entry
}

func (m *mistakes) entry(n yamlNode) (Entry, bool) {
	members, ok := n.value.([]yamlMember)
	if !ok {
		m.add(n.position, "want a tool: a mapping with name, input_schema and exec or builtin, got %s", n.typeName())
		return Entry{}, false
	}
	before := len(m.all)
	r := &entryReader{m, Entry{Line: n.line}, map[string]position{}}
	for _, member := range members {
		r.at[member.key] = member.position
		r.read(member)
	}
	r.whole(n.position)
	if len(m.all) > before {
		return r.entry, true // a faulty entry still takes its name
	}
	if !slices.Contains(FileBuiltins, r.entry.Builtin) {
		tool, err := r.entry.WithDefaults()
		if err != nil { // all fields were checked, so this is about their combination
			m.add(n.position, "%v", err)
		}
		r.entry.Tool = tool
	}
	return r.entry, true
}

func (r *entryReader) read(member yamlMember) {
	var names []string
	for _, key := range entryKeys {
		switch {
		case key.name != member.key:
			if key.read != nil {
				names = append(names, key.name)
			}
		case key.read == nil:
			r.add(member.position, "%s is not in this version%s", key.name, key.instead)
			return
		default:
			key.read(r, member.node)
			return
		}
	}
	r.add(member.position, "unknown key %q; the keys of a tool are %s", clip(member.key), strings.Join(names, ", "))
}

// whole checks what concerns several keys.
func (r *entryReader) whole(at position) {
	has := func(key string) bool { _, ok := r.at[key]; return ok }
	if !has("name") {
		r.add(at, "name is missing")
	}
	switch {
	case has("exec") && has("builtin"):
		r.add(r.at["builtin"], "a tool is run by exec or by builtin, not by both")
	case !has("exec") && !has("builtin") && !has("http"):
		r.add(at, `how to run the tool is missing: write exec: {command: [./program]} or builtin: with one of %s`, strings.Join(builtins(), ", "))
	}
	if has("exec") && !has("input_schema") {
		r.add(at, "input_schema is missing: write the JSON Schema of the arguments, at least {type: object}")
	}
	if has("on_crash") && (r.entry.Kind == messages.KindRead || r.entry.Kind == messages.KindCompute) {
		r.add(r.at["on_crash"], "on_crash is for writes; a %s may always be run again", r.entry.Kind)
	}
	if has("env") && !has("exec") {
		r.add(r.at["env"], "env is for exec; a builtin reads no environment variables")
	}
	r.effects(has)
}

func (r *entryReader) name(n yamlNode) {
	r.entry.Name = r.matching(n, "name", toolName, "1 to 64 of [a-zA-Z0-9_-]")
}

func (r *entryReader) pool(n yamlNode) {
	r.entry.Pool = r.matching(n, "pool", poolName, "1 to 32 of [a-zA-Z0-9_-]")
}

func (r *entryReader) description(n yamlNode) {
	r.entry.Description, _ = r.text(n, "description", "text for the model")
}

func (r *entryReader) kind(n yamlNode) {
	r.entry.Kind = oneOf(r.mistakes, n, "kind", messages.KindRead, messages.KindWrite, messages.KindCompute)
}

func (r *entryReader) truncate(n yamlNode) {
	r.entry.Truncate = oneOf(r.mistakes, n, "truncate", TruncateHead, TruncateMiddle, TruncateTail)
}

func (r *entryReader) onCrash(n yamlNode) {
	r.entry.OnCrash = oneOf(r.mistakes, n, "on_crash", messages.OnCrashIdempotent, messages.OnCrashCheckable, messages.OnCrashOnce)
}

func (r *entryReader) builtin(n yamlNode) {
	r.entry.Builtin = oneOf(r.mistakes, n, "builtin", builtins()...)
}

func builtins() []string { return slices.Concat(FileBuiltins, DemoBuiltins) }

func (r *entryReader) inputSchema(n yamlNode) {
	members, ok := n.value.([]yamlMember)
	if !ok {
		r.add(n.position, "input_schema: want a JSON Schema such as {type: object, properties: {...}}, got %s", n.typeName())
		return
	}
	isObject := slices.ContainsFunc(members, func(m yamlMember) bool { return m.key == "type" && m.node.value == "object" })
	if !isObject {
		r.add(n.position, "input_schema: its root must have type: object, because the arguments of a call are one")
		return
	}
	r.entry.InputSchema = n.json()
	if _, err := Compile(r.entry.InputSchema); err != nil {
		r.add(n.position, "input_%v", err)
	}
}

func (r *entryReader) timeout(n yamlNode) {
	r.entry.TimeoutMS = r.duration(n, "timeout").Milliseconds()
}

// maxOutput reads a size such as 10000 or 256KB. KB and KiB are both 1,024, MB and MiB both 1,024
// KB. The cut later counts a text in characters.
func (r *entryReader) maxOutput(n yamlNode) {
	parts := byteSize.FindStringSubmatch(fmt.Sprint(n.value))
	if parts == nil {
		r.add(n.position, "max_output: want a number of bytes such as 10000 or 256KB, got %s", n.typeName())
		return
	}
	size, _ := strconv.ParseInt(parts[1], 10, 64) // at most 12 digits
	switch parts[2] {
	case "KB", "KiB":
		size <<= 10
	case "MB", "MiB":
		size <<= 20
	}
	if size < 1 || size > math.MaxInt32 {
		r.add(n.position, "max_output: want 1 byte to 2047MB")
		return
	}
	r.entry.MaxOutput = int(size)
}

func (r *entryReader) env(n yamlNode) { r.entry.Env = r.mistakes.env(n) }

func (r *entryReader) exec(n yamlNode) {
	const want = "exec: want {command: [./program, argument]}"
	r.entry.Exec = &Exec{}
	has := r.fields(n, want, map[string]func(yamlNode){
		"command": func(n yamlNode) { r.entry.Exec.Command = r.command(n) },
	})
	if has != nil && !has["command"] {
		r.add(n.position, "command is missing; "+want)
	}
}
