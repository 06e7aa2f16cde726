// Package schemas holds what the fleet promises: the JSON Schemas of every message (*.json),
// the AsyncAPI document of the subjects, the definition of each tool (Tool, Catalog), and the
// readers of the tools file and the policy file. It is the only package that calls the JSON
// Schema validator.
//
// The coordinator knows a tool only by its definition from this package. Only the worker knows how
// the tool runs.
package schemas

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Tool is the definition of a tool: everything about it that does not depend on where it runs.
// Workers announce it, coordinators plan with it, and codecs export it to providers.
type Tool struct {
	Name string `json:"name"` // ^[a-zA-Z0-9_-]{1,64}$
	// Version orders the definitions of one name: see [CompareVersions]. "" is none.
	Version     string `json:"version,omitempty"`
	Description string `json:"description,omitempty"`
	// Kind defaults to write, so the calls of a tool without a kind run alone.
	Kind messages.Kind `json:"kind"`
	// ConcurrencySafe says whether calls may run beside other calls of their session. Default: true
	// for a read and a compute, false for a write.
	ConcurrencySafe *bool `json:"concurrency_safe,omitempty"`
	// SafeWhen is the CEL condition under which a call may run beside other calls of its
	// session. Later batches wait until the call has ended. Only one of SafeWhen and
	// ConcurrencySafe may be set: the key concurrency_safe of a tools file sets one of the
	// two.
	SafeWhen string `json:"safe_when,omitempty"`
	// ShellCommand names the input property that has a shell command. For each call, the parsed
	// command then decides whether the call may run beside others.
	ShellCommand string `json:"shell_command,omitempty"`
	// InputSchema is a JSON Schema 2020-12 whose root is an object.
	InputSchema json.RawMessage `json:"input_schema"`
	// TimeoutMS is the longest that one run may take. Default: read 5 s, compute 2 s, write
	// 30 s.
	TimeoutMS int64            `json:"timeout_ms"`
	OnCrash   messages.OnCrash `json:"on_crash,omitempty"`
	// Retry says whether and when a call runs again after a retryable error. Default: never.
	Retry Retry  `json:"retry,omitzero"`
	Pool  string `json:"pool"` // the workers that run it; default "default"
	// MaxOutput is how many characters of an output the model reads; 0: [DefaultMaxOutput].
	MaxOutput int      `json:"max_output,omitempty"`
	Truncate  Truncate `json:"truncate,omitempty"`
	// Results says who may read the whole of an output that was cut.
	Results Results `json:"results,omitempty"`
	// Semantic holds rules for inputs that fit the schema, checked in order. The first rule
	// that an input breaks refuses the call.
	Semantic []SemanticRule `json:"semantic,omitempty"`
	// Risk is the tool's own tier; a policy can only raise it. Default low.
	Risk messages.Tier `json:"risk,omitempty"`
	// Digest identifies exactly this definition. [Tool.WithDefaults] sets it.
	Digest string `json:"digest,omitempty"`
}

// Truncate says which part of a long output is kept.
type Truncate string

// The parts that may be kept: the start, both ends, or the end. Both ends, or the end, suit
// commands, because the last line usually says why a command failed.
const (
	TruncateHead   Truncate = "head"
	TruncateMiddle Truncate = "middle"
	TruncateTail   Truncate = "tail"
)

// DefaultMaxOutput is how many characters of an output the model reads, if the tool sets no limit.
const DefaultMaxOutput = 10_000

// Results says who may read the whole of an output that was cut.
type Results string

// ResultsReadable lets the model read the rest in the same session, with the tool result_read.
// The catalogue then also has that tool.
const ResultsReadable Results = "readable"

// DefaultPool is the pool of tools that do not name one.
const DefaultPool = "default"

var (
	toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	poolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,32}$`)
)

// IsName reports whether a tool could have this name.
func IsName(name string) bool { return toolName.MatchString(name) }

// WithDefaults returns the tool with all defaults filled in and its digest set. The error names the
// tool and the field.
func (t Tool) WithDefaults() (Tool, error) {
	if !toolName.MatchString(t.Name) {
		return t, fmt.Errorf("tool name %.80q: want 1 to 64 of [a-zA-Z0-9_-]", t.Name)
	}
	fail := func(format string, args ...any) (Tool, error) {
		return t, fmt.Errorf("tool %s: %s", t.Name, fmt.Sprintf(format, args...))
	}
	if err := checkVersion(t.Version); err != nil {
		return fail("%v", err)
	}
	if t.Kind == "" {
		t.Kind = messages.KindWrite
	}
	defaults := map[messages.Kind]time.Duration{messages.KindRead: 5 * time.Second, messages.KindCompute: 2 * time.Second, messages.KindWrite: 30 * time.Second}
	timeout, ok := defaults[t.Kind]
	if !ok {
		return fail("kind %q: want read, write or compute", t.Kind)
	}
	if t.TimeoutMS == 0 {
		t.TimeoutMS = timeout.Milliseconds()
	}
	if t.TimeoutMS < 0 {
		return fail("timeout is negative")
	}
	if len(t.InputSchema) == 0 {
		t.InputSchema = json.RawMessage(`{"type":"object"}`)
	}
	schema, err := rawjson.Canonical(t.InputSchema)
	if err != nil {
		return fail("input_schema: %v", err)
	}
	t.InputSchema = schema
	switch {
	case t.OnCrash == "" && t.Kind == messages.KindWrite:
		t.OnCrash = messages.OnCrashOnce
	case t.OnCrash != "" && t.OnCrash != messages.OnCrashIdempotent && t.OnCrash != messages.OnCrashCheckable && t.OnCrash != messages.OnCrashOnce:
		return fail("on_crash %q: want idempotent, checkable or once", t.OnCrash)
	}
	if t.Retry, err = t.Retry.withDefaults(t.Kind, t.OnCrash); err != nil {
		return fail("retry: %v", err)
	}
	if t.Pool == "" {
		t.Pool = DefaultPool
	}
	if !poolName.MatchString(t.Pool) {
		return fail("pool %.80q: want 1 to 32 of [a-zA-Z0-9_-]", t.Pool)
	}
	switch t.Truncate {
	case "", TruncateHead, TruncateMiddle, TruncateTail:
	default:
		return fail("truncate %q: want head, middle or tail", t.Truncate)
	}
	if t.Results != "" && t.Results != ResultsReadable {
		return fail("results %q: want readable", t.Results)
	}
	if t.MaxOutput < 0 {
		return fail("max_output is negative")
	}
	if err := t.checkConditions(); err != nil {
		return fail("%v", err)
	}
	t.Digest = ""
	t.Digest = messages.Digest(rawjson.MustMarshal(t))
	return t, nil
}

// Timeout is the longest that one run may take.
func (t Tool) Timeout() time.Duration { return time.Duration(t.TimeoutMS) * time.Millisecond }

// Catalog holds tools by name. It is immutable.
type Catalog struct{ tools map[string]Tool }

// NewCatalog returns a catalog of the given tools, with defaults filled in. It returns an error if
// two tools have one name.
func NewCatalog(tools ...Tool) (Catalog, error) {
	c := Catalog{make(map[string]Tool, len(tools))}
	for _, t := range tools {
		t, err := t.WithDefaults()
		if err != nil {
			return Catalog{}, err
		}
		if _, twice := c.tools[t.Name]; twice {
			return Catalog{}, fmt.Errorf("tool %s is defined twice", t.Name)
		}
		c.tools[t.Name] = t
	}
	return c, nil
}

// Lookup returns the tool with exactly this name.
func (c Catalog) Lookup(name string) (Tool, bool) {
	t, ok := c.tools[name]
	return t, ok
}

// Tools returns every tool, sorted by name.
func (c Catalog) Tools() []Tool {
	tools := make([]Tool, 0, len(c.tools))
	for _, name := range rawjson.SortedKeys(c.tools) {
		tools = append(tools, c.tools[name])
	}
	return tools
}
