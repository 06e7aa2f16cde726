package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// probe is a tool that counts its runs and behaves as a test wants.
type probe struct {
	effects atomic.Int32
	run     tool.Func
	check   func(ctx context.Context, call tool.Call) error
	applied func(ctx context.Context) (tool.Probed, error)
	asked   atomic.Int32
}

func (p *probe) Probe(ctx context.Context, _ tool.Call) (tool.Probed, error) {
	p.asked.Add(1)
	if p.applied == nil {
		return tool.Probed{}, errors.New("cannot be asked")
	}
	return p.applied(ctx)
}

func (p *probe) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	p.effects.Add(1)
	if p.run == nil {
		return tool.Output{Value: call.Input}, nil
	}
	return p.run(ctx, call)
}

func (p *probe) Check(ctx context.Context, call tool.Call) error {
	if p.check == nil {
		return nil
	}
	return p.check(ctx, call)
}

// write is the definition of the tool that most tests call: its input is {"n": integer}, and
// it runs at most once.
var write = schemas.Tool{
	Name: "w", Kind: messages.KindWrite, TimeoutMS: 5000,
	InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`),
}

func with(t schemas.Tool, change func(*schemas.Tool)) schemas.Tool {
	change(&t)
	return t
}

func jobFor(t schemas.Tool, input string) wire.Job {
	return wire.Job{Session: "s", Batch: "b", Index: 3, CallID: "c1", Tool: t.Name, ToolDigest: digestOf(t), Kind: t.Kind, Input: json.RawMessage(input)}
}

func digestOf(t schemas.Tool) string {
	whole, _ := t.WithDefaults() // the registry reports the error
	return whole.Digest
}

// run runs a call of the tool in a pipeline made of cfg.
func run(t testing.TB, ctx context.Context, cfg Config, promise schemas.Tool, p *probe, job wire.Job) (messages.Result, error) {
	t.Helper()
	job.ToolDigest = digestOf(promise)
	return made(t, cfg, promise, p).Run(ctx, job, nil, nil, nil)
}

// made returns a pipeline of cfg that serves one tool. In a test, though not in a benchmark,
// calls are traced, and every span has to end.
func made(t testing.TB, cfg Config, promise schemas.Tool, p *probe) *Pipeline {
	t.Helper()
	if _, test := t.(*testing.T); test && cfg.Tracer == nil {
		cfg.Tracer, _ = traced(t)
	}
	cfg.Registry = &tool.Registry{}
	if err := cfg.Registry.Add(promise, p); err != nil {
		t.Fatal(err)
	}
	pipe, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pipe
}

func hooks(t testing.TB, list ...hook.Hook) hook.Set {
	t.Helper()
	set, err := hook.NewSet(list...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// rules returns a policy of rules in the short form, such as "deny w(n=1)".
func rules(t testing.TB, def permission.Effect, short ...string) permission.Rules {
	t.Helper()
	layer := permission.Layer{Source: "platform"}
	for _, line := range short {
		effect, form, _ := strings.Cut(line, " ")
		rule, err := schemas.ParseRule(form)
		if err != nil {
			t.Fatal(err)
		}
		list := map[string]*[]schemas.RuleEntry{"deny": &layer.Rules.Deny, "ask": &layer.Rules.Ask, "allow": &layer.Rules.Allow}[effect]
		*list = append(*list, rule)
	}
	return policy(t, permission.Config{Default: def, Version: "v1", Layers: []permission.Layer{layer}})
}

func policy(t testing.TB, cfg permission.Config) permission.Rules {
	t.Helper()
	r, err := permission.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func before(name string, f func(hook.Call) hook.Verdict) hook.Hook {
	return hook.Hook{Name: name, Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) { return f(c), nil }}
}

func verdict(v hook.Verdict) hook.Hook { return before("h", func(hook.Call) hook.Verdict { return v }) }
