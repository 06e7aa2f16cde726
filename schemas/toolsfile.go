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
	Tools []Entry // in the order of the file
	Rules Rules   // the layer below the policy
}

// Entry is one tool, with how it is run: exactly one of Exec and Builtin is set.
type Entry struct {
	// Tool has its defaults filled in, except for a file builtin. What such an entry leaves open
	// comes from the builtin's own definition, which the worker knows.
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

// The values of the key builtin. FileBuiltins have their own kind, schema and description.
// DemoBuiltins, for demos, tests and load runs, use those of the entry.
var (
	FileBuiltins = []string{"Read", "Glob", "Grep", "Write", "Edit", "Bash"}
	DemoBuiltins = []string{"noop", "sleep", "fail", "blob"}
)

// instead says what to write instead of keys that this version does not have.
var instead = map[string]string{
	"http":   "; use exec with a program that makes the request",
	"cwd":    "; let the program change its directory",
	"limits": "; put bounds into input_schema, and what that cannot say into semantic",
}

// entryInFile is an entry as the file has it. Its own fields shadow those of Entry.
type entryInFile struct {
	Entry
	ConcurrencySafe any             `json:"concurrency_safe"` // a bool, or text
	MaxOutput       json.RawMessage `json:"max_output"`       // a number, or text
	Timeout         string          `json:"timeout"`
	Retry           struct {
		Attempts   json.Number
		Backoff    string
		MaxBackoff string `json:"max_backoff"`
	} `json:"retry"`
	Check *struct {
		Command []string
		HTTP    *struct {
			URL, Method string
			Headers     map[string]struct{ Env string }
		}
		Timeout string
	}
}

var byteSize = regexp.MustCompile(`^([0-9]{1,12}) ?(B|KB|KiB|MB|MiB)?$`)

// ParseToolsFile reads a tools file (YAML). name appears in the error, which joins one [FileError]
// for every mistake in the file.
func ParseToolsFile(name string, data []byte) (ToolsFile, error) {
	var in struct {
		Tools       []entryInFile
		Permissions rulesInFile
	}
	f := readYAML(name, "tools-file", data, &in)
	f.checkVersion("", "mcp_servers")
	file := ToolsFile{f.entries(in.Tools), f.rules("/permissions", in.Permissions)}
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
	first := map[string]int{} // line of each name
	for i := range in {
		p := fmt.Sprintf("/tools/%d", i)
		at, _, _ := f.Root.Find(p)
		if _, isMapping := at.Value.([]strictyaml.Member); !isMapping {
			continue
		}
		entry := f.entry(p, &in[i])
		entry.Line = at.Line
		// A faulty entry also takes its name, so that a second one is reported.
		if line, twice := first[entry.Name]; twice && entry.Name != "" {
			f.add(p, "a tool named %q is there already, in line %d", entry.Name, line)
		}
		first[entry.Name] = entry.Line
		entries = append(entries, entry)
	}
	return entries
}

// entry checks the rules for the entry at p that the schema cannot express, and fills in its
// defaults.
func (f *yamlFile) entry(p string, in *entryInFile) Entry {
	e := in.Entry
	e.Env, e.Semantic = nonEmpty(e.Env), nonEmpty(e.Semantic)
	e.TimeoutMS = f.duration(p+"/timeout", in.Timeout).Milliseconds()
	f.checkVersion(p, "http", "cwd", "limits")
	f.runner(p, e.Builtin)
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
	e.MaxOutput = f.maxOutput(p+"/max_output", in.MaxOutput)
	e.Check = f.check(p+"/check", in)
	e.Retry = f.retry(p+"/retry", in)
	f.effects(p, e)
	if !f.faulty[p] && !slices.Contains(FileBuiltins, e.Builtin) {
		tool, err := e.WithDefaults()
		if err != nil { // every field was checked alone, so this is about their combination
			f.add(p, "%v", err)
		}
		e.Tool = tool
	}
	return e
}

// runner checks the keys that say how the tool at p is run.
func (f *yamlFile) runner(p, builtin string) {
	exec, lent := f.has(p+"/exec"), f.has(p+"/builtin")
	switch {
	case exec && lent:
		f.addKey(p+"/builtin", "a tool is run by exec or by builtin, not by both")
	case !exec && !lent && !f.has(p+"/http"):
		f.add(p, `how to run the tool is missing: write exec: {command: [./program]} or builtin: with one of %s`,
			strings.Join(slices.Concat(FileBuiltins, DemoBuiltins), ", "))
	}
	if exec && !f.has(p+"/input_schema") {
		f.add(p, "input_schema is missing: write the JSON Schema of the arguments, at least {type: object}")
	}
	if f.has(p+"/env") && !exec {
		f.addKey(p+"/env", "this is for exec; a builtin reads no environment variables")
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

// maxOutput reads a size such as 10000 or 256KB. KB and KiB are both 1,024 bytes, MB and MiB both
// 1,024 KB. Later the number counts characters of a text, and bytes of other JSON.
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
