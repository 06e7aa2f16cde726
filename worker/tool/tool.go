// Package tool says what a tool is to a worker: a definition (schemas.Tool) and a [Runner].
// Most tools in Go are made by worker.New. They need only the type [Call] of this package,
// which worker.CallOf returns. For a tool that handles input and output as JSON, write a
// Runner and pass it to worker.Custom. The packages below this one have more runners.
//
// A runner is called after its input was validated against the schema, checked and allowed.
// It is called again for the same call only if the tool's kind or on_crash allows that.
package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Call is one run of a tool.
type Call struct {
	Tenant  messages.TenantID
	Session messages.SessionID // the conversation
	Batch   messages.BatchID   // the calls of one message of the model
	ID      messages.CallID    // the provider's id of the call
	Index   int                // number of the call in its batch, from 0
	Tool    string             // the tool's name
	// User is the user for whom the call runs, or "" if unknown. Labels are those of the
	// batch, in the agent's words.
	User   string
	Labels map[string]string
	// Input is the arguments after changes of hooks and approvers: a JSON object that fits
	// the tool's schema. Do not change it.
	Input json.RawMessage
	// Attempt counts the claims of the call from 1. If the call needs no claim, it counts
	// the runs.
	Attempt int
	// IdempotencyKey is the same for every attempt of this call, and different for every
	// other call. It is a hex SHA-256.
	IdempotencyKey string
	// Fence grows with every claim. A target that remembers the highest fence it has seen
	// can reject a worker that lost its claim. 0 if the call needs no claim.
	Fence uint64
	// Progress tells watchers how far the run is. It never blocks, and any goroutine may
	// call it. It is nil only in a Call that a test has made.
	Progress func(messages.Progress)
	// OnSandboxGaps is called before the run if the sandbox lacks some of its properties.
	// May be nil.
	OnSandboxGaps func(properties []string)
}

// ReportSandboxGaps calls OnSandboxGaps if it is set and there are gaps. Runners that start
// programs in a sandbox call it.
func (c Call) ReportSandboxGaps(properties []string) {
	if c.OnSandboxGaps != nil && len(properties) > 0 {
		c.OnSandboxGaps(properties)
	}
}

// Runner runs a tool.
type Runner interface {
	// Run returns what the model reads. A *messages.Error is the tool's own failure, with
	// its code. Any other error gets the code tool_error and keeps its text. Retryable says
	// that a later run of the same call may succeed; the tool's retry policy decides
	// whether there is one. When ctx ends, Run must end and leave nothing running. Many
	// goroutines may call Run at once.
	Run(ctx context.Context, call Call) (Output, error)
}

// ErrNotStarted is in the error of a run whose context ended before the run began, for
// example while it waited for a process. If a write did not begin, its outcome is known: it
// did not happen.
var ErrNotStarted = errors.New("the run has not begun")

// Permitter is a Runner that has an opinion about who may do what.
type Permitter interface {
	// Permit is called in the phase "permissions", after the hooks, with the final input.
	// It must not change anything. An error refuses the call.
	Permit(ctx context.Context, call Call) (Permit, error)
}

// Permit is the opinion of a tool about one of its calls. It counts like the opinion of a
// hook: it can make the decision stricter, and can replace the question that only the
// policy's default asks.
type Permit struct {
	Opinion string // [messages.EffectAllow], [messages.EffectAsk] or [messages.EffectDeny]
	Reason  string // a text for the model, and for people who are asked
}

// Checker is a Runner with rules about the input that a schema cannot express.
type Checker interface {
	// Check refuses a call before hooks and permissions. It may take as long as the tool,
	// and must not change anything. A *messages.Error keeps its code; any other error gets
	// invalid_arguments.
	Check(ctx context.Context, call Call) error
}

// Output is what a run produced, for the model. At most one of Value and Content is set. If
// both are nil, the output is empty text.
type Output struct {
	Value   json.RawMessage  // any JSON value. A JSON string is text
	Content []messages.Block // text, images and so on, as MCP has them
	// IsError marks the output as the tool's report of a failure.
	IsError bool
	// Details is any JSON value of at most 16 KiB, for user interfaces. The model does not
	// read it.
	Details json.RawMessage
}

// Text returns an output of plain text.
func Text(s string) Output { return Output{Value: rawjson.Quote(s)} }

// Printed returns the output of a program that printed raw. If raw is one JSON value
// without duplicate keys, the output is that value. Otherwise it is text, in which bytes
// that are not UTF-8 become U+FFFD.
func Printed(raw []byte) Output {
	if rawjson.Check(raw) == nil {
		return Output{Value: bytes.TrimSpace(raw)}
	}
	return Text(strings.ToValidUTF8(string(raw), "\uFFFD"))
}

// JSON returns an output of any value that encoding/json can write.
func JSON(v any) (Output, error) {
	b, err := rawjson.Marshal(v)
	if err != nil {
		return Output{}, fmt.Errorf("encode output: %w", err)
	}
	return Output{Value: b}, nil
}

// Func makes a function a [Runner].
type Func func(ctx context.Context, call Call) (Output, error)

// Run calls the function f.
func (f Func) Run(ctx context.Context, call Call) (Output, error) { return f(ctx, call) }

// Registered is a tool of a [Registry]: its definition and what runs it.
type Registered struct {
	schemas.Tool
	Runner Runner
}

// Registry holds the tools that a worker serves, and may hold several versions of a tool.
// A program with Go tools needs no registry, because worker.Run and worker.Main make one. Safe
// for concurrent use.
type Registry struct {
	mu    sync.RWMutex
	tools map[string][]Registered // the versions of each tool, by name, newest first; guarded by mu
}

// Add registers a tool. It returns an error for a name and version that is taken, an inconsistent
// definition, a missing runner, and a checkable tool whose runner is not a [Prober].
func (r *Registry) Add(definition schemas.Tool, runner Runner) error {
	definition, err := definition.WithDefaults()
	if err != nil {
		return err
	}
	if runner == nil {
		return fmt.Errorf("tool %s: has no runner", definition.Name)
	}
	if _, probes := runner.(Prober); definition.OnCrash == messages.OnCrashCheckable && !probes {
		return fmt.Errorf("tool %s: on_crash is checkable, but its runner has no probe to ask; make it with tool.NewProber, or say idempotent or once", definition.Name)
	}
	if _, err := schemas.Compile(definition.InputSchema); err != nil {
		return fmt.Errorf("tool %s: input_schema: %w", definition.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	versions := r.tools[definition.Name]
	at, twice := slices.BinarySearchFunc(versions, definition.Version, func(t Registered, version string) int {
		return schemas.CompareVersions(version, t.Version)
	})
	switch {
	case twice && definition.Version == "":
		return fmt.Errorf("tool %s is registered twice; two versions of it need a version each", definition.Name)
	case twice:
		return fmt.Errorf("tool %s is registered twice in version %s", definition.Name, definition.Version)
	case len(versions) == schemas.MaxVersions:
		return fmt.Errorf("tool %s has more than %d versions", definition.Name, schemas.MaxVersions)
	}
	if r.tools == nil {
		r.tools = map[string][]Registered{}
	}
	r.tools[definition.Name] = slices.Insert(versions, at, Registered{definition, runner})
	return nil
}

// Clone returns a registry of the same tools.
func (r *Registry) Clone() *Registry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	own := &Registry{tools: make(map[string][]Registered, len(r.tools))}
	for name, versions := range r.tools {
		own.tools[name] = slices.Clone(versions)
	}
	return own
}

// Moved returns a registry of the same tools. The tools whose pool is listed in from are in
// the pool to instead.
func (r *Registry) Moved(to string, from ...string) (*Registry, error) {
	moved := r.Clone()
	for name, versions := range moved.tools {
		for i, t := range versions {
			if !slices.Contains(from, t.Pool) {
				continue
			}
			var err error
			t.Pool = to
			if versions[i].Tool, err = t.WithDefaults(); err != nil {
				return nil, err
			}
		}
		moved.tools[name] = versions
	}
	return moved, nil
}

// Lookup returns the newest version of the tool of exactly this name.
func (r *Registry) Lookup(name string) (Registered, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if versions := r.tools[name]; len(versions) > 0 {
		return versions[0], true
	}
	return Registered{}, false
}

// Version returns the version of a tool with exactly this definition.
func (r *Registry) Version(name, digest string) (Registered, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, t := range r.tools[name] {
		if t.Digest == digest {
			return t, true
		}
	}
	return Registered{}, false
}

// Definitions returns the definitions of the registered tools, sorted by name. The versions of
// one name come newest first.
func (r *Registry) Definitions() []schemas.Tool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	definitions := make([]schemas.Tool, 0, len(r.tools))
	for _, name := range rawjson.SortedKeys(r.tools) {
		for _, t := range r.tools[name] {
			definitions = append(definitions, t.Tool)
		}
	}
	return definitions
}
