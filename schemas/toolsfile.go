package schemas

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
)

// ToolsFile holds the tools that a worker serves in addition to its builtins. Its schema is
// tools-file.json.
type ToolsFile struct {
	Tools   []Entry  // in the order of the file; several versions of a tool may be among them
	Servers []Server // MCP servers and programs, in the order of the file
	Rules   Rules    // the layer below the policy
}

// Entry is one tool, with how it is run: exactly one of Exec, Builtin and HTTP is set.
type Entry struct {
	// Tool has its defaults filled in. For one of FileBuiltins it has only what the entry
	// sets: the worker takes the rest from the builtin's own definition.
	Tool
	Exec    *Exec
	Builtin string // one of [FileBuiltins] or [DemoBuiltins]
	HTTP    *HTTP
	Check   *Check   // set exactly when on_crash is checkable
	Env     []string // environment variables that the tool and its check get
	Sandbox Sandbox  // of the tool's commands, and of its check
	Line    int      // where the entry starts, from 1
}

// RunsCommands reports whether calls of the tool, or probes of them, start programs.
func (e Entry) RunsCommands() bool {
	return e.Exec != nil || e.Builtin == "Bash" || e.Check != nil && len(e.Check.Command) > 0
}

// Exec runs a program for each call.
type Exec struct {
	Command []string // the program and its arguments; no shell
}

// The values of the key builtin. FileBuiltins have their own kind, schema and description.
// DemoBuiltins, for demos, tests and load runs, use those of the entry.
var (
	FileBuiltins = []string{"Read", "Glob", "Grep", "Write", "Edit", "Bash"}
	DemoBuiltins = []string{"noop", "sleep", "fail", "blob"}
)

// instead says what to write in place of some keys that this version does not know.
var instead = map[string]string{
	"cwd":    "; let the program change its directory",
	"limits": "; put bounds into input_schema, and what that cannot say into semantic",
}

// entryInFile is an entry as the file has it. Its own fields shadow those of Entry.
type entryInFile struct {
	Entry
	ConcurrencySafe any             `json:"concurrency_safe"` // a bool, or text
	MaxOutput       json.RawMessage `json:"max_output"`       // a number, or text
	Version         json.RawMessage `json:"version"`          // a number, or text
	Timeout         string          `json:"timeout"`
	Retry           struct {
		Attempts   json.Number
		Backoff    string
		MaxBackoff string `json:"max_backoff"`
	} `json:"retry"`
	HTTP  *httpInFile `json:"http"`
	Check *struct {
		Command []string
		HTTP    *struct {
			URL, Method string
			Headers     map[string]struct{ Env, Secret string }
		}
		Timeout string
	}
	Sandbox *sandboxInFile
}

var byteSize = regexp.MustCompile(`^([0-9]{1,12}) ?(B|KB|KiB|MB|MiB)?$`)

// ParseToolsFile reads a tools file (YAML). name appears in the error, which joins one [FileError]
// for every mistake in the file.
func ParseToolsFile(name string, data []byte) (ToolsFile, error) {
	var in struct {
		Tools         []entryInFile
		MCP, Programs []serverInFile
		Permissions   rulesInFile
	}
	f := readYAML(name, "tools-file", data, &in)
	file := ToolsFile{f.entries(in.Tools), f.servers(in.MCP, in.Programs), f.rules("/permissions", in.Permissions)}
	if err := f.Err(); err != nil {
		return ToolsFile{}, err
	}
	return file, nil
}

// checkVersion reports keys, in the mapping at a pointer, that this version does not have.
func (f *yamlFile) checkVersion(pointer string, keys ...string) {
	for _, key := range keys {
		if f.has(pointer + "/" + key) {
			f.addKey(pointer+"/"+key, "not in this version%s", instead[key])
		}
	}
}

func (f *yamlFile) entries(in []entryInFile) (entries []Entry) {
	for i := range in {
		p := fmt.Sprintf("/tools/%d", i)
		at, _, _ := f.Root.Find(p)
		if _, isMapping := at.Value.([]strictyaml.Member); !isMapping {
			continue
		}
		entry := f.entry(p, &in[i])
		entry.Line = at.Line
		f.twice(p, entry, entries)
		// An entry with mistakes counts here too, so that a second entry of its name is reported.
		entries = append(entries, entry)
	}
	return entries
}

// twice reports an entry that has the same name and version as an earlier entry. It also
// reports the first entry with which a tool has too many versions.
func (f *yamlFile) twice(p string, entry Entry, before []Entry) {
	if entry.Name == "" || f.faulty[p+"/version"] {
		return
	}
	versions := 1
	for _, other := range slices.Backward(before) {
		if other.Name != entry.Name {
			continue
		}
		versions++
		if CompareVersions(other.Version, entry.Version) != 0 {
			continue
		}
		if entry.Version == "" {
			f.add(p, "a tool named %q is there already, in line %d; two versions of it need a version: each", entry.Name, other.Line)
		} else {
			f.add(p, "version %s of %q is there already, in line %d", entry.Version, entry.Name, other.Line)
		}
		return
	}
	if versions == MaxVersions+1 {
		f.add(p, "%q has more than %d versions", entry.Name, MaxVersions)
	}
}

// entry checks the rules for the entry at p that the schema cannot express, and fills in its
// defaults.
func (f *yamlFile) entry(p string, in *entryInFile) Entry {
	e := in.Entry
	e.Env, e.Semantic = nonEmpty(e.Env), nonEmpty(e.Semantic)
	e.TimeoutMS = f.duration(p+"/timeout", in.Timeout).Milliseconds()
	e.Version = f.version(p+"/version", in.Version)
	f.checkVersion(p, "cwd", "limits")
	f.runner(p)
	f.concurrencySafe(p+"/concurrency_safe", in.ConcurrencySafe, &e.Tool)
	for i, rule := range e.Semantic {
		f.condition(fmt.Sprintf("%s/semantic/%d/require", p, i), rule.Require)
		f.words(fmt.Sprintf("%s/semantic/%d/message", p, i), rule.Message)
	}
	if len(e.InputSchema) > 0 {
		if _, err := Compile(e.InputSchema); err != nil {
			f.add(p+"/input_schema", "%s", strings.TrimPrefix(err.Error(), "schema: "))
		}
	}
	e.HTTP = f.http(p+"/http", in.HTTP, e.InputSchema)
	e.MaxOutput = f.maxOutput(p+"/max_output", in.MaxOutput)
	// By default the model reads the whole output of blob, which exists to make large outputs.
	// The definitions of the other builtins must not change here: during an update, older
	// builds run beside this one and must compute the same digests.
	if e.MaxOutput == 0 && e.Builtin == "blob" {
		e.MaxOutput = math.MaxInt32
	}
	e.Check = f.check(p+"/check", in)
	e.Sandbox = f.toolSandbox(p, in.Sandbox, e)
	e.Retry = f.retry(p+"/retry", in)
	f.effects(p, e)
	if !f.faulty[p] && !slices.Contains(FileBuiltins, e.Builtin) {
		tool, err := e.WithDefaults()
		if err != nil { // every field alone is valid, so the error is about their combination
			f.add(p, "%v", err)
		}
		e.Tool = tool
	}
	return e
}

// runner checks the keys that say how the tool at p is run.
func (f *yamlFile) runner(p string) {
	var runners []string
	for _, key := range []string{"exec", "http", "builtin"} {
		if f.has(p + "/" + key) {
			runners = append(runners, key)
		}
	}
	builtin := slices.Contains(runners, "builtin")
	switch {
	case len(runners) > 1:
		f.addKey(p+"/"+runners[1], "a tool is run by %s or by %s, not by both", runners[0], runners[1])
	case len(runners) == 0:
		f.add(p, `how to run the tool is missing: write exec: {command: [./program]}, http: {url: https://...} or builtin: with one of %s`,
			strings.Join(slices.Concat(FileBuiltins, DemoBuiltins), ", "))
	}
	if len(runners) > 0 && !builtin && !f.has(p+"/input_schema") {
		f.add(p, "input_schema is missing: write the JSON Schema of the arguments, at least {type: object}")
	}
	if f.has(p+"/env") && !f.has(p+"/exec") {
		f.addKey(p+"/env", "this is for exec; nothing else reads environment variables of its own")
	}
}

// concurrencySafe reads true or false for all calls, or a condition for each call.
func (f *yamlFile) concurrencySafe(p string, value any, tool *Tool) {
	switch v := value.(type) {
	case bool:
		tool.ConcurrencySafe = &v
	case string:
		tool.SafeWhen = v
		if program := f.condition(p, v); program != nil && asksWho(program) {
			f.add(p, "%v", errAsksWho)
		}
	}
}

// version reads a version, written as a number or as text.
func (f *yamlFile) version(p string, value json.RawMessage) string {
	version := strings.Trim(string(value), `"`)
	if len(value) > 0 && !versionForm.MatchString(version) {
		f.add(p, "want whole numbers joined by dots, such as 3 or 1.10")
		return ""
	}
	return version
}

// maxOutput reads a size such as 10000 or 256KB. KB and KiB both mean 1,024, MB and MiB both
// mean 1,024 KB. The result limits characters, not bytes.
func (f *yamlFile) maxOutput(p string, value json.RawMessage) int {
	if len(value) == 0 {
		return 0
	}
	parts := byteSize.FindStringSubmatch(strings.Trim(string(value), `"`))
	if parts == nil {
		f.add(p, "want a number of bytes such as 10000 or 256KB")
		return 0
	}
	size, _ := strconv.ParseInt(parts[1], 10, 64) // at most 12 digits
	switch parts[2] {
	case "KB", "KiB":
		size <<= 10
	case "MB", "MiB":
		size <<= 20
	}
	if size < 1 || size > math.MaxInt32 {
		f.add(p, "want 1 byte to 2047MB")
	}
	return int(size)
}
