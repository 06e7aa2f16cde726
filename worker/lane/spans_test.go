package lane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/lane"
)

func (y *yard) tracer() trace.Tracer {
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(y.spans)).Tracer(tracing.Scope)
}

// nothingLeft checks, after the workers have stopped, that every span has ended and that every
// job that was taken has been left.
func (y *yard) nothingLeft() {
	if begun, ended := len(y.spans.Started()), len(y.spans.Ended()); begun != ended {
		y.Errorf("%d spans were begun and %d ended", begun, ended)
	}
	if n := y.counted(); n[lane.Taken] != n[lane.Left] {
		y.Errorf("%d jobs were taken and %d left", n[lane.Taken], n[lane.Left])
	}
}

func (y *yard) count(what lane.Count, pool string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.counts[what]++
	if pool != "default" {
		y.Errorf("counted for the pool %q", pool)
	}
}

func (y *yard) counted() map[lane.Count]int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return maps.Clone(y.counts)
}

// lines holds the log's lines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// attempts waits until n attempts have ended, and returns their spans.
func (y *yard) attempts(n int) (spans []sdktrace.ReadOnlySpan) {
	y.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		spans = nil
		for _, s := range y.spans.Ended() {
			if s.Name() == tracing.ProcessCall {
				spans = append(spans, s)
			}
		}
		if len(spans) >= n {
			return spans
		}
		if time.Now().After(end) {
			y.Fatalf("%d attempts have ended, want %d", len(spans), n)
		}
	}
}

func values(attributes []attribute.KeyValue) map[attribute.Key]string {
	out := map[attribute.Key]string{}
	for _, a := range attributes {
		out[a.Key] = a.Value.String()
	}
	return out
}

// sent returns a context within the span of a job's publication, and the traceparent of this
// span.
func (y *yard) sent() (context.Context, string) {
	ctx, span := y.tracer().Start(y.Context(), tracing.SendCall)
	span.End()
	return ctx, tracing.Parent(ctx)
}

// spanOf returns the traceparent of a span.
func spanOf(s sdktrace.ReadOnlySpan) string {
	return tracing.Parent(trace.ContextWithSpanContext(context.Background(), s.SpanContext()))
}

// The span of an attempt is a child of the span that sent the job. The tool runs within the
// attempt's span, and the attempt's records and result name that span.
func TestTheSpanOfAnAttempt(t *testing.T) {
	for _, claims := range []bool{true, false} {
		for _, size := range []int{10, 400 << 10} { // the second goes to the object store
			inYard(t, func(y *yard) {
				var within string
				outcome := messages.Text(strings.Repeat("x", size))
				y.worker("w", claims, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					within = tracing.Parent(ctx)
					held, err := claim(ctx, call.Frozen{ArgsHash: "a", OnCrash: messages.OnCrashOnce, Deadline: time.Minute})
					if err != nil {
						return messages.Result{}, err
					}
					if newest, _ := y.newest(); claims && newest.Record.Span != within {
						y.Errorf("the claim names the span %q, want %q", newest.Record.Span, within)
					}
					time.Sleep(5 * time.Second) // long enough for a renewal of the claim
					r := done(job, held)
					r.Outcome, r.Trail = outcome, &messages.Trail{ArgsHash: "a", PhasesMS: messages.PhasesMS{Execute: 1}}
					return r, nil
				})
				ctx, parent := y.sent()
				y.send(ctx, y.job(claims))
				n := y.notice()
				y.noJobs()
				s := y.attempts(1)[0]
				if got := spanOf(s); got != within || s.Parent().SpanID() != trace.SpanContextFromContext(ctx).SpanID() || s.SpanKind() != trace.SpanKindConsumer || len(s.Links()) != 0 {
					t.Errorf("the tool ran in %s, the attempt is %s below %v, sent by %s", within, got, s.Parent(), parent)
				}
				want := &messages.Trail{ArgsHash: "a", ResultHash: outcome.Hash(), PhasesMS: messages.PhasesMS{Execute: 1}, Span: within}
				if diff := cmp.Diff(want, n.Result.Trail); diff != "" || (n.Result.Ref != nil) != (size > 1000) {
					t.Errorf("the trail in the notice (-want +got), or where the outcome is:\n%s", diff)
				}
				stored, found, err := y.journal.Result(y.Context(), key)
				if claims {
					newest, _ := y.newest()
					if newest.Record.Span != within {
						t.Errorf("the end names the span %q, want %q", newest.Record.Span, within)
					}
					stored, found = *newest.Record.Result, true
				}
				if diff := cmp.Diff(want, stored.Trail); diff != "" || !found || err != nil {
					t.Errorf("stored %t, %v %s", found, err, diff)
				}
				a := values(s.Attributes())
				for k, want := range map[attribute.Key]string{
					tracing.Worker: "w", tracing.Pool: "default", tracing.DeliveryCount: "1", tracing.CallAttempt: "1", tracing.CallStatus: "ok", tracing.ToolName: "t",
					tracing.ToolCallID: "c", tracing.ConversationID: "s", tracing.Batch: "b", tracing.Stream: "TOOLFLEET_JOBS", tracing.MessagingSystem: "nats",
					tracing.MessagingDestination: "toolfleet." + map[bool]string{true: "write", false: "read"}[claims] + ".{pool}.{tenant}.{session}.{batch}.{index}",
				} {
					if a[k] != want {
						t.Errorf("%s is %q, want %q", k, a[k], want)
					}
				}
				if s.Status().Code != codes.Unset {
					t.Errorf("status %v", s.Status())
				}
			})
		}
	}
}

// The span of an attempt links to the span of the attempt before it. The link says how the
// earlier attempt ended. If its record names no span, there is no link.
func TestTheLinksOfAnAttempt(t *testing.T) {
	for state, want := range map[wire.CallState]string{
		wire.Granted: tracing.Parked, wire.Released: tracing.Retried, wire.Claimed: tracing.TakenOver, wire.Renewed: tracing.TakenOver,
	} {
		for _, recorded := range []bool{true, false} {
			inYard(t, func(y *yard) {
				record := wire.CallRecord{State: state, Nonce: "n", Attempt: 1, ArgsHash: "a", OnCrash: messages.OnCrashIdempotent}
				_, before := y.sent()
				if recorded {
					record.Span = before
				}
				y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					if !recorded { // the call ends without a claim
						return done(job, call.Grant{}), nil
					}
					held, err := claim(ctx, call.Frozen{ArgsHash: "a", OnCrash: messages.OnCrashIdempotent, Deadline: time.Minute})
					return done(job, held), err
				})
				job := y.job(true)
				job.TakeOver = y.write(record, 0)
				ctx, _ := y.sent()
				y.send(ctx, job)
				y.notice()
				s := y.attempts(1)[0]
				switch links := s.Links(); {
				case !recorded && len(links) == 0:
				case !recorded || len(links) != 1:
					t.Errorf("%s: %d links", state, len(links))
				case links[0].SpanContext.SpanID().String() != strings.Split(before, "-")[2] || values(links[0].Attributes)[tracing.LinkReason] != want:
					t.Errorf("%s: got %v, want %s to %s", state, links[0], want, before)
				}
				if s.Parent().SpanID() != trace.SpanContextFromContext(ctx).SpanID() {
					t.Errorf("%s: the parent is %v", state, s.Parent())
				}
				if newest, _ := y.newest(); newest.Record.State != wire.Ended || newest.Record.Span != spanOf(s) {
					t.Errorf("%s: the newest record is %s with the span %q", state, newest.Record.State, newest.Record.Span)
				}
			})
		}
	}
}

// The attempt before left no record: the span of the redelivered job links to the span that
// sent the job.
func TestTheLinkOfARedelivery(t *testing.T) {
	inYard(t, func(y *yard) {
		runs := 0
		y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			if runs++; runs == 1 {
				return messages.Result{}, errors.New("SECRET") // nothing is stored
			}
			held, err := claim(ctx, call.Frozen{ArgsHash: "a", OnCrash: messages.OnCrashOnce, Deadline: time.Minute})
			return done(job, held), err
		})
		ctx, _ := y.sent()
		y.send(ctx, y.job(true))
		y.notice()
		both := y.attempts(2)
		if s := both[0].Status(); s.Code != codes.Error || s.Description != string(messages.CodeInternal) || len(both[0].Links()) != 0 {
			t.Errorf("the first has the status %v and %d links", s, len(both[0].Links()))
		}
		links := both[1].Links()
		if len(links) != 1 || links[0].SpanContext.SpanID() != trace.SpanContextFromContext(ctx).SpanID() || values(links[0].Attributes)[tracing.LinkReason] != tracing.Redelivered {
			t.Errorf("the second has the links %v", links)
		}
		if n := y.counted(); n[lane.Redelivered] != 1 || n[lane.Claimed] != 1 {
			t.Errorf("counted %v", n)
		}
	})
}

// A delivery on which the worker does nothing has no span.
func TestNoSpanForNothing(t *testing.T) {
	inYard(t, func(y *yard) {
		y.worker("w", true, func(context.Context, wire.Job, *wire.CallRecord, call.Claim) (messages.Result, error) {
			t.Error("it runs")
			return messages.Result{}, errors.New("it runs")
		})
		job := y.job(true)
		job.Dispatch = 1
		seq := y.write(wire.CallRecord{State: wire.Claimed, Nonce: "n", Worker: "other"}, 0)
		y.publish(job) // another worker has claimed the call: nothing to do
		y.noJobs()
		y.write(wire.CallRecord{State: wire.Ended, Nonce: "e", Result: &messages.Result{Status: messages.StatusOK}}, seq)
		y.publish(job) // the call has ended: nothing to do
		y.noJobs()
		late := y.job(true)
		late.NotAfter = time.Now().Add(-time.Hour)
		y.publish(late)
		y.noJobs()
		if n := len(y.spans.Started()); n != 0 {
			t.Errorf("%d spans", n)
		}
		if n := y.counted(); n[lane.Taken] != 3 || n[lane.ClaimRefused] != 1 {
			t.Errorf("counted %v", n)
		}
	})
}

// An attempt ends without a result of its tool, in each possible way: its span has the right
// status and kind of error, and the right events are counted.
func TestTheEndsOfAnAttempt(t *testing.T) {
	claimed := func(ctx context.Context, claim call.Claim) call.Grant {
		held, err := claim(ctx, call.Frozen{ArgsHash: "a", OnCrash: messages.OnCrashIdempotent, Deadline: time.Minute})
		if err != nil {
			t.Error(err)
		}
		return held
	}
	for name, tt := range map[string]struct {
		run           func(y *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error)
		became, fails string
		counted       map[lane.Count]int
		lines         int // log lines about the call
	}{
		"parked": {func(_ *yard, _ context.Context, job wire.Job, _ call.Claim) (messages.Result, error) {
			return messages.Result{}, question(job)
		},
			"parked", "", map[lane.Count]int{}, 1},
		"handed back": {func(*yard, context.Context, wire.Job, call.Claim) (messages.Result, error) {
			return messages.Result{}, &call.HandBack{ArgsHash: "a", Reason: "r"}
		}, "handed_back", "", map[lane.Count]int{}, 1},
		"failed, tried again": {func(_ *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			r := done(job, claimed(ctx, claim))
			r.Trail, r.Status, r.Outcome = &messages.Trail{}, messages.StatusError, messages.Outcome{Err: &messages.Error{Code: messages.CodeToolError, Message: "SECRET", Retryable: true}}
			return r, nil
		}, "released", "", map[lane.Count]int{lane.Claimed: 1}, 1},
		"failed": {func(_ *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			r := done(job, claimed(ctx, claim))
			r.Trail, r.Status, r.Outcome = &messages.Trail{}, messages.StatusError, messages.Failed("SECRET", "SECRET")
			return r, nil
		}, "error", "", map[lane.Count]int{lane.Claimed: 1}, 1},
		"failed by a hook, which has a line": {func(_ *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			r := done(job, claimed(ctx, claim))
			r.Trail, r.Status, r.Outcome = &messages.Trail{}, messages.StatusHookError, messages.Failed(messages.CodeHookFailed, "SECRET")
			return r, nil
		}, "hook_error", "", map[lane.Count]int{lane.Claimed: 1}, 0},
		"failed by a panic, which has a line": {func(_ *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			r := done(job, claimed(ctx, claim))
			r.Trail, r.Status, r.Outcome = &messages.Trail{}, messages.StatusError, messages.Failed(messages.CodeInternal, "SECRET")
			return r, nil
		}, "error", "", map[lane.Count]int{lane.Claimed: 1}, 0},
		"lease lost": {func(y *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			held := claimed(ctx, claim)
			y.write(wire.CallRecord{State: wire.Claimed, Nonce: "n", Worker: "other"}, held.Fence)
			<-ctx.Done()
			y.notices <- wire.Notice{}
			return messages.Result{}, context.Cause(ctx)
		}, "", "lease_lost", map[lane.Count]int{lane.Claimed: 1, lane.LeaseLost: 1}, 1},
		"claimed by another": {func(y *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			y.write(wire.CallRecord{State: wire.Claimed, Nonce: "n", Worker: "other"}, 0)
			_, err := claim(ctx, call.Frozen{ArgsHash: "a", OnCrash: messages.OnCrashOnce, Deadline: time.Minute})
			y.notices <- wire.Notice{}
			return messages.Result{}, err
		}, "", "", map[lane.Count]int{lane.ClaimRefused: 1}, 0},
		"too large to be claimed": {func(y *yard, ctx context.Context, job wire.Job, claim call.Claim) (messages.Result, error) {
			_, err := claim(ctx, call.Frozen{ArgsHash: "a", Input: rawjson.Quote(strings.Repeat("x", 2<<20)), OnCrash: messages.OnCrashOnce, Deadline: time.Minute})
			return messages.Result{}, err
		}, "error", "too_large", map[lane.Count]int{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, func(y *yard) {
				stop := y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					return tt.run(y, ctx, job, claim)
				})
				ctx, _ := y.sent()
				y.send(ctx, y.job(true))
				told := y.notice()
				s := y.attempts(1)[0]
				stop()
				if r := told.Record; r != nil && r.Span != spanOf(s) {
					t.Errorf("%s with the span %q", r.State, r.Span)
				}
				if got := values(s.Attributes())[tracing.CallStatus]; got != tt.became {
					t.Errorf("its status is %q, want %q", got, tt.became)
				}
				if s.Status().Description != tt.fails || (s.Status().Code == codes.Error) != (tt.fails != "") {
					t.Errorf("it has failed with %v, want %q", s.Status(), tt.fails)
				}
				n := y.counted()
				delete(n, lane.Taken)
				delete(n, lane.Left)
				if diff := cmp.Diff(tt.counted, n); diff != "" {
					t.Errorf("counted %s", diff)
				}
				about := 0
				for line := range strings.Lines(y.log.String()) {
					if strings.Contains(line, "call=c") {
						about++
						for _, want := range []string{"session=s", "batch=b", "tenant=_", "tool=t", "trace_id=" + s.SpanContext().TraceID().String()} {
							if !strings.Contains(line, " "+want) {
								t.Errorf("no %s in %s", want, line)
							}
						}
					}
				}
				if about != tt.lines || strings.Contains(y.log.String(), "SECRET") {
					t.Errorf("%d lines, want %d:\n%s", about, tt.lines, y.log.String())
				}
			})
		})
	}
}

// A worker without a tracer passes the agent's trace context on to the tool.
func TestASilentLaneHandsOnTheContext(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	inYard(t, func(y *yard) {
		var seen string
		consumer := lane.New(y.connect(), tools{lane.Service{Attempts: 1}, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			seen = tracing.Parent(ctx)
			return done(job, call.Grant{Attempt: 1}), nil
		}}, lane.Config{Worker: "w"})
		ctx, cancel := context.WithCancel(y.Context())
		var ended sync.WaitGroup
		ended.Go(func() { _ = consumer.Run(ctx, []lane.Queues{{Pool: "default"}}) })
		y.Cleanup(func() { cancel(); ended.Wait() })
		y.send(tracing.Extract(y.Context(), bus.Header{"TraceParent": {parent}}), y.job(false))
		n := y.notice()
		if seen != parent || n.Result.Trail.Span != "" || n.Result.Trail.ResultHash == "" {
			t.Errorf("the tool ran in %q: %+v", seen, n.Result.Trail)
		}
	})
}

// The trail of a result, which is for the audit log, goes to the coordinator and not into
// events.
func TestEventsHaveNoTrail(t *testing.T) {
	inYard(t, func(y *yard) {
		var mu sync.Mutex
		var told []string
		unsubscribe, err := y.conn.Subscribe(y.conn.Names().All(wire.VerbEvent), "", func(m bus.Msg) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, string(m.Data))
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unsubscribe()
		y.worker("w", false, func(_ context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			held, err := claim(t.Context(), call.Frozen{})
			return done(job, held), err
		})
		y.publish(y.job(false))
		if n := y.notice(); n.Result.Trail == nil {
			t.Error("the notice has no trail")
		}
		y.noJobs()
		synctest.Wait() // events arrive on another goroutine
		mu.Lock()
		defer mu.Unlock()
		if len(told) == 0 || strings.Contains(strings.Join(told, ""), "trail") {
			t.Errorf("events: %s", told)
		}
		for _, e := range told {
			if !json.Valid([]byte(e)) {
				t.Error(e)
			}
		}
	})
}
