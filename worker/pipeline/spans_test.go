package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// traced returns a tracer and the recorder of its spans. At the end of the test, all spans
// have to have ended.
func traced(t testing.TB) (trace.Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	t.Cleanup(func() {
		if begun, ended := len(spans.Started()), len(spans.Ended()); begun != ended {
			t.Errorf("%d spans were begun and %d ended", begun, ended)
		}
	})
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer(tracing.Scope), spans
}

// outline returns the spans of one call as one line: the call's own span and its phases, each
// with its kind of failure.
func outline(t testing.TB, spans *tracetest.SpanRecorder) string {
	t.Helper()
	var whole sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), tracing.ExecuteTool) {
			if whole != nil {
				t.Fatal("two spans for one call")
			}
			whole = s
		}
	}
	if whole == nil {
		t.Fatal("no span for the call")
	}
	told := func(s sdktrace.ReadOnlySpan) string {
		if s.Status().Code != codes.Error {
			if _, is := attributeOf(s, tracing.ErrorType); is {
				t.Errorf("%s has a type of error and no error", s.Name())
			}
			return s.Name()
		}
		return s.Name() + " (" + s.Status().Description + ")"
	}
	phases := spans.Ended()
	slices.SortStableFunc(phases, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	line := told(whole) + ":"
	for _, s := range phases {
		if s == whole {
			continue
		}
		if s.Parent().SpanID() != whole.SpanContext().SpanID() || s.EndTime().After(whole.EndTime()) || s.StartTime().Before(whole.StartTime()) {
			t.Errorf("%s is not within the call", s.Name())
		}
		line += " " + told(s)
	}
	return line
}

func attributeOf(s sdktrace.ReadOnlySpan, key attribute.Key) (attribute.Value, bool) {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value, true
		}
	}
	return attribute.Value{}, false
}

// ofCall returns the attributes of the call's span.
func ofCall(t testing.TB, spans *tracetest.SpanRecorder) map[attribute.Key]string {
	t.Helper()
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), tracing.ExecuteTool) {
			values := map[attribute.Key]string{}
			for _, a := range s.Attributes() {
				values[a.Key] = a.Value.String()
			}
			return values
		}
	}
	t.Fatal("no span for the call")
	return nil
}

// A call ends, in each possible way: its span has a child for each phase that the call
// entered, in order. The failure is in the span of the phase where it happened.
func TestTheSpansOfACall(t *testing.T) {
	fails := func(err error) tool.Func {
		return func(context.Context, tool.Call) (tool.Output, error) { return tool.Output{}, err }
	}
	denies := func(c *Config) { c.Hooks = hooks(t, verdict(hook.Verdict{Opinion: hook.Deny})) }
	patched := hooks(t, verdict(hook.Verdict{Input: json.RawMessage(`{"n":7}`)}))
	const upTo4 = " validate semantic pre-hooks permissions"
	for name, tt := range map[string]struct {
		cfg   func(*Config)
		run   tool.Func
		check error
		input string
		tool  string
		safe  bool // the plan lets the call run beside others
		want  string
		error bool // Run returns an error and no result
	}{
		"success":          {want: "execute_tool w:" + upTo4 + " execute post-hooks"},
		"success, patched": {cfg: func(c *Config) { c.Hooks = patched }, want: "execute_tool w:" + upTo4 + " execute post-hooks"},
		"unknown tool":     {tool: "W", want: "execute_tool (unknown_tool): validate (unknown_tool) post-hooks"},
		"schema":           {input: `{"n":"SECRET"}`, want: "execute_tool w (invalid_arguments): validate (invalid_arguments) post-hooks"},
		"rule of the tool": {check: errors.New("SECRET"), want: "execute_tool w (invalid_arguments): validate semantic (invalid_arguments) post-hooks"},
		"a code of its own": {check: &messages.Error{Code: "SECRET"},
			want: "execute_tool w (semantic_error): validate semantic (semantic_error) post-hooks"},
		"deny rule": {cfg: func(c *Config) { c.Rules = rules(t, "", "deny w(n=1)"); denies(c) },
			want: "execute_tool w (policy_denied): validate semantic permissions (policy_denied) post-hooks"},
		"deny rule, patched": {cfg: func(c *Config) { c.Rules = rules(t, "", "deny w(n=7)"); c.Hooks = patched },
			want: "execute_tool w (policy_denied): validate semantic pre-hooks permissions (policy_denied) post-hooks"},
		"hook denies": {cfg: denies, want: "execute_tool w (hook_denied): validate semantic pre-hooks (hook_denied) post-hooks"},
		"hook breaks": {cfg: func(c *Config) { c.Hooks = hooks(t, before("h", func(hook.Call) hook.Verdict { panic("SECRET") })) },
			want: "execute_tool w (hook_failed): validate semantic pre-hooks (hook_failed) post-hooks"},
		"hook makes it invalid": {cfg: func(c *Config) { c.Hooks = hooks(t, verdict(hook.Verdict{Input: json.RawMessage(`{}`)})) },
			want: "execute_tool w (invalid_arguments): validate semantic pre-hooks (invalid_arguments) post-hooks"},
		"nobody to ask": {cfg: func(c *Config) { c.Rules = rules(t, "", "ask w") }, want: "execute_tool w (approval_required):" + upTo4 + " (approval_required) post-hooks"},
		"handed back":   {safe: true, error: true, want: "execute_tool w:" + upTo4},
		"tool fails":    {run: fails(errors.New("SECRET")), want: "execute_tool w (tool_error):" + upTo4 + " execute (tool_error) post-hooks"},
		"tool fails in blocks": {run: func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Output{IsError: true, Content: []messages.Block{{Type: "text", Text: "SECRET"}}}, nil
		}, want: "execute_tool w (error):" + upTo4 + " execute (error) post-hooks"},
		"panic": {run: func(context.Context, tool.Call) (tool.Output, error) { panic("SECRET") },
			want: "execute_tool w (outcome_unknown):" + upTo4 + " execute (outcome_unknown) post-hooks"},
		"too slow": {run: func(ctx context.Context, _ tool.Call) (tool.Output, error) {
			<-ctx.Done()
			return tool.Output{}, ctx.Err()
		},
			want: "execute_tool w (outcome_unknown):" + upTo4 + " execute (outcome_unknown) post-hooks"},
		"left behind": {run: func(context.Context, tool.Call) (tool.Output, error) {
			time.Sleep(time.Minute)
			return tool.Output{}, nil
		},
			want: "execute_tool w (outcome_unknown):" + upTo4 + " execute (outcome_unknown) post-hooks"},
		"our own panic": {cfg: func(c *Config) {
			c.Now = func(context.Context) time.Time { panic("SECRET") }
			c.Rules = rules(t, "", "ask w")
			c.Approvals = oneApprover{}
		},
			want: "execute_tool w (internal):" + upTo4 + " (internal) post-hooks"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
				if tt.cfg != nil {
					tt.cfg(&cfg)
				}
				var spans *tracetest.SpanRecorder
				cfg.Tracer, spans = traced(t)
				p := &probe{run: tt.run, check: func(context.Context, tool.Call) error { return tt.check }}
				job := jobFor(write, `{"n":1}`)
				if tt.input != "" {
					job.Input = json.RawMessage(tt.input)
				}
				if tt.tool != "" {
					job.Tool = tt.tool
				}
				job.ConcurrencySafe = tt.safe
				var prior *wire.CallRecord
				if cfg.Approvals != nil {
					prior = &wire.CallRecord{State: wire.Granted, Approval: &messages.Approval{}}
				}
				r, err := made(t, cfg, write, p).Run(t.Context(), job, prior, nil, nil)
				time.Sleep(2 * time.Minute) // so that the tool that ignored its end is over
				if (err != nil) != tt.error {
					t.Fatalf("got %+v, %v", r, err)
				}
				if got := outline(t, spans); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
				for _, s := range spans.Ended() {
					for _, a := range s.Attributes() {
						if strings.Contains(a.Value.String(), "SECRET") {
							t.Errorf("%s holds %s=%s", s.Name(), a.Key, a.Value.String())
						}
					}
				}
				if strings.Contains(log.String(), "SECRET") {
					t.Errorf("log %s", &log)
				}
				for line := range strings.Lines(log.String()) {
					if id := spans.Ended()[0].SpanContext().TraceID().String(); !strings.Contains(line, "trace_id="+id) || !strings.Contains(line, "call=c1") {
						t.Errorf("log %s does not say what it is about", line)
					}
				}
			})
		})
	}
}

// oneApprover stands for a set of one approver, whose approvals always hold.
type oneApprover struct{}

func (oneApprover) Count(messages.TenantID, string, time.Time) int { return 1 }
func (oneApprover) Holds(messages.Approval, time.Time) error       { return nil }

// An attempt ends with a question: its span shows no failure. The span of the next attempt,
// which runs on the approval, names the approval.
func TestTheSpansOfAQuestion(t *testing.T) {
	var cfg Config
	var spans *tracetest.SpanRecorder
	var decided []string
	cfg.Tracer, spans = traced(t)
	cfg.Rules = rules(t, "", "ask w")
	cfg.Decided = func(effect, source string) { decided = append(decided, effect+" by "+source) }
	d := deskFor(t, cfg, write, &probe{})
	parked := d.asks(askJob(`{"n":1}`), nil)
	if got, want := outline(t, spans), "execute_tool w: validate semantic pre-hooks permissions"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if a := ofCall(t, spans); a[tracing.PermEffect] != "ask" || a[tracing.PermSource] != "rule" || a[tracing.CallStatus] != "" {
		t.Errorf("got %v", a)
	}
	spans.Reset()
	granted := d.agrees(parked)
	d.runs(askJob(`{"n":1}`), &granted)
	if got, want := outline(t, spans), "execute_tool w: validate semantic pre-hooks permissions execute post-hooks"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	a := ofCall(t, spans)
	if a[tracing.Approval] != granted.Approval.ID || a[tracing.PermEffect] != "ask" || a[tracing.CallStatus] != "ok" || a[tracing.CallAttempt] != "1" || a[tracing.Fence] != "7" {
		t.Errorf("got %v", a)
	}
	if diff := cmp.Diff([]string{"ask by rule", "allow by person"}, decided); diff != "" {
		t.Error(diff)
	}
}

// The probe of a lost run belongs to the span of the execute phase. The probe of a stopped run
// belongs to that span too. Both runs were applied, so the tool does not run again.
func TestTheSpanOfAProbe(t *testing.T) {
	for name, lost := range map[string]bool{"lost": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cfg Config
				var spans *tracetest.SpanRecorder
				cfg.Tracer, spans = traced(t)
				var seen trace.SpanContext
				p := &probe{applied: func(ctx context.Context) (tool.Probed, error) {
					seen = trace.SpanContextFromContext(ctx)
					return tool.Probed{Applied: true}, nil
				}, run: func(ctx context.Context, _ tool.Call) (tool.Output, error) {
					<-ctx.Done()
					return tool.Output{}, ctx.Err()
				}}
				checkable := with(write, func(t *schemas.Tool) { t.OnCrash = messages.OnCrashCheckable })
				r, err := made(t, cfg, checkable, p).Run(t.Context(), jobFor(checkable, `{"n":1}`), nil, func(context.Context, call.Frozen) (call.Grant, error) {
					return call.Grant{Attempt: 2, Probe: lost}, nil
				}, nil)
				if err != nil || r.Status != messages.StatusOK || (p.effects.Load() == 0) != lost {
					t.Fatalf("got %+v, %v", r, err)
				}
				if got, want := outline(t, spans), "execute_tool w: validate semantic pre-hooks permissions execute post-hooks"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				for _, s := range spans.Ended() {
					if s.Name() == Execute && s.SpanContext().SpanID() != seen.SpanID() {
						t.Error("the probe was not asked within the phase")
					}
				}
			})
		})
	}
}

// Tools and hooks get the trace context of their phase's span. Without a tracer they get the
// agent's trace context.
func TestToolsAndHooksSeeTheTrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, silent := range []bool{false, true} {
		seen := map[string]string{}
		look := func(ctx context.Context, where string) { seen[where] = tracing.Parent(ctx) }
		cfg := Config{Hooks: hooks(t, hook.Hook{Name: "h",
			Before: func(ctx context.Context, _ hook.Call) (hook.Verdict, error) {
				look(ctx, PreHooks)
				return hook.Verdict{}, nil
			},
			After: func(ctx context.Context, _ hook.Call, _ hook.Done) (hook.Change, error) {
				look(ctx, PostHooks)
				return hook.Change{}, nil
			},
		})}
		p := &probe{
			run: func(ctx context.Context, _ tool.Call) (tool.Output, error) {
				look(ctx, Execute)
				return tool.Text(""), nil
			},
			check: func(ctx context.Context, _ tool.Call) error { look(ctx, Semantic); return nil },
		}
		var spans *tracetest.SpanRecorder
		cfg.Tracer, spans = traced(t)
		pipe := made(t, cfg, write, p)
		if silent {
			pipe.cfg.Tracer = nil
		}
		if r, err := pipe.Run(tracing.Extract(t.Context(), http.Header{"Traceparent": {parent}}), jobFor(write, `{"n":1}`), nil, nil, nil); err != nil || r.Status != messages.StatusOK {
			t.Fatal(r, err)
		}
		want := map[string]string{}
		for _, phase := range []string{Semantic, PreHooks, Execute, PostHooks} {
			want[phase] = parent
			for _, s := range spans.Ended() {
				if s.Name() == phase {
					want[phase] = "00-0af7651916cd43dd8448eb211c80319c-" + s.SpanContext().SpanID().String() + "-01"
				}
			}
		}
		if diff := cmp.Diff(want, seen); diff != "" || silent != (len(spans.Started()) == 0) {
			t.Errorf("silent %t: %d spans %s", silent, len(spans.Started()), diff)
		}
	}
}

// Spans contain arguments and results only if the operator wants it. Long ones are cut.
func TestContentInSpans(t *testing.T) {
	for _, on := range []bool{false, true} {
		var spans *tracetest.SpanRecorder
		cfg := Config{TraceContent: on}
		cfg.Tracer, spans = traced(t)
		p := &probe{run: func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Text("SECRET" + strings.Repeat("\u00e4", maxContent)), nil
		}}
		if r, err := run(t, t.Context(), cfg, write, p, jobFor(write, `{"n":4711}`)); err != nil || r.Status != messages.StatusOK {
			t.Fatal(r, err)
		}
		a := ofCall(t, spans)
		args, result := a[tracing.CallArguments], a[tracing.CallResult]
		if !on {
			if args+result != "" {
				t.Errorf("got %q and %.80q", args, result)
			}
			continue
		}
		if args != `{"n":4711}` || !strings.HasPrefix(result, `{"output":"SECRET`) || !strings.HasSuffix(result, "\u00e4 [truncated]") || len(result) > maxContent || len(result) < maxContent-2 {
			t.Errorf("got %q and %d bytes of %.80q", args, len(result), result)
		}
	}
}

// The span of a call is not recorded: there are no spans for its phases, since they would only
// cost time.
func TestPhasesOfACallThatIsNotRecorded(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	asked := 0
	cfg := Config{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(counting{&asked})).Tracer("")}
	if r, err := run(t, t.Context(), cfg, write, &probe{}, jobFor(write, `{"n":1}`)); err != nil || r.Status != messages.StatusOK {
		t.Fatal(r, err)
	}
	if asked != 1 || len(spans.Started()) != 0 {
		t.Errorf("%d spans were asked for, %d made", asked, len(spans.Started()))
	}
}

// counting is a sampler that records no span, and counts how often it is asked.
type counting struct{ n *int }

func (c counting) ShouldSample(sdktrace.SamplingParameters) sdktrace.SamplingResult {
	*c.n++
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}
func (counting) Description() string { return "none" }
