package lane_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

// A call needs an approval, be it a read or a write: the worker stores the question as a
// parked record and settles the job. After the approval another job comes. The call then runs
// once, under a claim.
func TestParkedCall(t *testing.T) {
	for _, claims := range []bool{true, false} {
		t.Run(map[bool]string{true: "write", false: "read"}[claims], func(t *testing.T) {
			inYard(t, func(y *yard) {
				asked, ran := 0, 0
				y.worker("w", claims, func(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					if prior == nil {
						asked++
						return messages.Result{}, question(job)
					}
					if prior.State != wire.Granted || prior.Approval == nil || prior.Hooks == nil {
						y.Errorf("the call continues from the record %+v", prior)
					}
					held, err := claim(ctx, call.Frozen{ArgsHash: prior.ArgsHash, Input: prior.Approval.Input, Hooks: prior.Hooks, OnCrash: messages.OnCrashIdempotent, Deadline: time.Minute})
					if err != nil {
						return messages.Result{}, err
					}
					newest, _ := y.newest()
					if r := newest.Record; r.State != wire.Claimed || r.Approval == nil || r.Approval.Input == nil || r.Input != nil || r.Hooks == nil || newest.Seq != held.Fence {
						y.Errorf("claimed with %+v, fence %d", r, held.Fence)
					}
					ran++
					return done(job, held), nil
				})
				job := y.job(claims)
				y.publish(job)
				n := y.notice()
				y.noJobs()
				parked, records := y.newest()
				if n.Record == nil || n.Record.State != wire.Parked || n.Seq != parked.Seq || records != 1 {
					y.Fatalf("got the notice %+v, %d records", n, records)
				}
				r, want := parked.Record, question(job)
				q := want.Approval
				q.Asked, q.Expires = r.Approval.Asked, r.Approval.Asked.Add(15*time.Minute)
				q.ID = approval.ID(q)
				if diff := cmp.Diff(&q, r.Approval); diff != "" {
					y.Error(diff)
				}
				if since := y.conn.Now(y.Context()).Sub(q.Asked); since < 0 || since > time.Minute || r.Attempt != 0 || r.ArgsHash != want.ArgsHash || r.Hooks == nil {
					y.Errorf("asked %v ago: %+v", since, r)
				}

				job.Dispatch = 1 // a coordinator that missed the notice publishes the job again
				y.publish(job)
				if n := y.notice(); n.Record == nil || n.Seq != parked.Seq || n.Record.Approval == nil {
					y.Errorf("got the notice %+v", n)
				}
				y.noJobs()
				// A coordinator mistakes the question for an answer and publishes the job
				// again.
				job.TakeOver = parked.Seq
				y.publish(job)
				if n := y.notice(); n.Record == nil || n.Seq != parked.Seq {
					y.Errorf("got the notice %+v", n)
				}
				y.noJobs()
				if _, now := y.newest(); asked != 1 || ran != 0 || now != 1 {
					y.Fatalf("asked %d times, ran %d times, %d records", asked, ran, now)
				}

				granted := parked.Record
				granted.State, granted.Nonce = wire.Granted, "granted"
				job.TakeOver = y.write(granted, parked.Seq)
				y.publish(job)
				if n := y.notice(); n.Result == nil || n.Result.Status != messages.StatusOK || n.Result.Attempt != 1 {
					y.Errorf("got the notice %+v", n)
				}
				y.noJobs()
				newest, _ := y.newest()
				if newest.Record.State != wire.Ended || newest.Record.Result == nil || newest.Record.Approval == nil || ran != 1 {
					y.Errorf("it ended as %+v after %d runs", newest.Record, ran)
				}
				if _, found, err := y.journal.Result(y.Context(), key); found || err != nil {
					y.Errorf("want no result outside the call's journal, found %v, %v", found, err)
				}

				job.Dispatch++ // a coordinator that does not know of the end publishes the job again
				y.publish(job)
				if n := y.notice(); n.Result == nil {
					y.Errorf("got the notice %+v", n)
				}
				if ran != 1 {
					y.Errorf("ran %d times", ran)
				}
			})
		})
	}
}

// Two workers ask about one call at once: one question is stored, and both workers send a
// notice of it.
func TestTwoWorkersAskAtOnce(t *testing.T) {
	inYard(t, func(y *yard) {
		var both sync.WaitGroup
		both.Add(2)
		run := func(_ context.Context, job wire.Job, _ *wire.CallRecord, _ call.Claim) (messages.Result, error) {
			both.Done()
			both.Wait()
			return messages.Result{}, question(job)
		}
		y.worker("w1", false, run)
		y.worker("w2", false, run)
		job := y.job(false)
		y.publish(job)
		job.ConcurrencySafe = false // as after a hand-back: a second job, in the write lane
		y.publish(job)
		one, two := y.notice(), y.notice()
		y.noJobs()
		newest, records := y.newest()
		if records != 1 || newest.Record.State != wire.Parked || one.Seq != newest.Seq || two.Seq != newest.Seq {
			y.Errorf("%d records, the newest %s at %d; the notices are about %d and %d", records, newest.Record.State, newest.Seq, one.Seq, two.Seq)
		}
	})
}

// A call ends while its worker asks: it is not parked. The worker settles the job, and the
// coordinator gets the stored end.
func TestEndedWhileItAsks(t *testing.T) {
	inYard(t, func(y *yard) {
		y.worker("w", true, func(_ context.Context, job wire.Job, _ *wire.CallRecord, _ call.Claim) (messages.Result, error) {
			aborted := messages.Result{V: 1, Status: messages.StatusAborted, Outcome: messages.Failed(messages.CodeAborted, "aborted")}
			y.write(wire.CallRecord{State: wire.Ended, Nonce: "co", Result: &aborted}, 0)
			return messages.Result{}, question(job)
		})
		y.publish(y.job(true))
		if n := y.notice(); n.Result == nil || n.Result.Status != messages.StatusAborted {
			y.Errorf("got the notice %+v", n)
		}
		y.noJobs()
		if newest, records := y.newest(); records != 1 || newest.Record.State != wire.Ended {
			y.Errorf("%d records, the newest %s", records, newest.Record.State)
		}
	})
}

// A run is stopped while it asks: it has no result, and its question is stored. The
// coordinator that stopped it writes the end behind that record.
func TestStoppedWhileItAsks(t *testing.T) {
	inYard(t, func(y *yard) {
		y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, _ call.Claim) (messages.Result, error) {
			stop := rawjson.MustMarshal(wire.Stop{V: 1})
			if err := y.conn.Publish(y.conn.Names().OfCall(wire.VerbStop, key), nil, stop); err != nil {
				y.Error(err)
			}
			<-ctx.Done()
			return messages.Result{}, question(job)
		})
		y.publish(y.job(true))
		if n := y.notice(); n.Record == nil || n.Record.State != wire.Parked {
			y.Errorf("got the notice %+v", n)
		}
		y.noJobs()
	})
}

// A worker drains while a call asks: it still stores the question.
func TestDrainWhileItAsks(t *testing.T) {
	inYard(t, func(y *yard) {
		running := make(chan struct{})
		stop := y.worker("w", false, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, _ call.Claim) (messages.Result, error) {
			close(running)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), attempt.ErrDraining) {
				y.Errorf("stopped by %v", context.Cause(ctx))
			}
			return messages.Result{}, question(job)
		})
		y.publish(y.job(false))
		<-running
		stop()
		if n := y.notice(); n.Record == nil || n.Record.State != wire.Parked {
			y.Errorf("got the notice %+v", n)
		}
		y.noJobs()
	})
}

// A question is too large to be stored, or leaves no room for the answers: the call fails.
func TestTooLargeToAsk(t *testing.T) {
	for _, short := range []int{0, 4 << 10} {
		inYard(t, func(y *yard) { tooLargeToAsk(y, short) })
	}
}

func tooLargeToAsk(y *yard, short int) {
	y.worker("w", false, func(_ context.Context, job wire.Job, _ *wire.CallRecord, _ call.Claim) (messages.Result, error) {
		ask := question(job)
		ask.Approval.Input = json.RawMessage(`{"x":"` + strings.Repeat("x", y.conn.MaxPayload()-short) + `"}`)
		return messages.Result{}, ask
	})
	y.publish(y.job(false))
	n := y.notice()
	if n.Result == nil || n.Result.Status != messages.StatusError || n.Result.Err.Code != messages.CodeTooLarge || !strings.Contains(n.Result.Err.Message, "not run") {
		y.Errorf("got the notice %+v", n)
	}
	y.noJobs()
}

// The earlier attempt of a write was lost, so the write may have been applied: no person is
// asked about another attempt. The call ends with an unknown outcome.
func TestLostAttemptAsksNobody(t *testing.T) {
	inYard(t, func(y *yard) {
		lost := wire.CallRecord{State: wire.Claimed, Nonce: "lost", Attempt: 1, ArgsHash: question(y.job(true)).ArgsHash, OnCrash: messages.OnCrashIdempotent, Worker: "w0"}
		seq := y.write(lost, 0)
		y.worker("w", true, func(_ context.Context, job wire.Job, prior *wire.CallRecord, _ call.Claim) (messages.Result, error) {
			if prior == nil || prior.Nonce != "lost" {
				y.Errorf("the call continues from the record %+v", prior)
			}
			return messages.Result{}, question(job)
		})
		job := y.job(true)
		job.TakeOver = seq
		y.publish(job)
		if n := y.notice(); n.Result == nil || n.Result.Status != messages.StatusOutcomeUnknown {
			y.Errorf("got the notice %+v", n)
		}
		y.noJobs()
		if newest, records := y.newest(); newest.Record.State != wire.Ended || records != 2 {
			y.Errorf("%d records, the newest %s", records, newest.Record.State)
		}
	})
}

// The frozen input stays in the journal through claims, renewals and releases, so that the
// next attempt finds it.
func TestFrozenInputIsKept(t *testing.T) {
	for _, approved := range []bool{false, true} {
		t.Run(map[bool]string{false: "patched", true: "approved"}[approved], func(t *testing.T) {
			inYard(t, func(y *yard) {
				want := call.Frozen{
					ArgsHash: messages.Digest([]byte(`{"n":2}`)), Input: json.RawMessage(`{"n":2}`), OnCrash: messages.OnCrashIdempotent, Deadline: time.Minute,
					Hooks: &messages.Hooks{Count: 1, Context: []string{"told"}},
				}
				y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					held, err := claim(ctx, want)
					if err != nil {
						return messages.Result{}, err
					}
					time.Sleep(5 * time.Second) // longer than a third of the lease
					r := done(job, held)
					r.Status, r.Outcome = messages.StatusError, messages.Outcome{Err: &messages.Error{Code: messages.CodeToolError, Message: "busy", Retryable: true}}
					return r, nil
				})
				job := y.job(true)
				if approved {
					q := question(job).Approval
					job.TakeOver = y.write(wire.CallRecord{State: wire.Granted, Nonce: "g", ArgsHash: q.ArgsHash, Approval: &q}, 0)
				}
				y.publish(job)
				n := y.notice()
				y.noJobs()
				newest, records := y.newest()
				if n.Record == nil || n.Record.State != wire.Released || n.Seq != newest.Seq || records < 3 {
					y.Fatalf("got the notice %+v, %d records", n, records)
				}
				r := newest.Record
				if r.Hooks == nil || approved != (r.Approval != nil) || r.Attempt != 1 || r.ArgsHash != want.ArgsHash {
					y.Errorf("released %+v", r)
				}
				input := r.Input
				if approved {
					input = r.Approval.Input
				}
				if string(input) != `{"n":2}` {
					y.Errorf("released with the input %s", input)
				}
			})
		})
	}
}

// The result and the approved arguments are too large for one record: the record of the end
// has the whole result, and leaves the arguments out.
func TestLargeArgumentsLeaveRoomForTheResult(t *testing.T) {
	inYard(t, func(y *yard) {
		y.worker("w", true, func(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			held, err := claim(ctx, call.Frozen{ArgsHash: prior.ArgsHash, Input: prior.Approval.Input, Deadline: time.Minute})
			if err != nil {
				return messages.Result{}, err
			}
			r := done(job, held)
			r.Outcome = messages.Text(strings.Repeat("y", 200<<10))
			return r, nil
		})
		job := y.job(true)
		q := question(job).Approval
		q.Input = json.RawMessage(`{"x":"` + strings.Repeat("x", y.conn.MaxPayload()-100<<10) + `"}`)
		job.TakeOver = y.write(wire.CallRecord{State: wire.Granted, Nonce: "g", ArgsHash: q.ArgsHash, Approval: &q}, 0)
		y.publish(job)
		if n := y.notice(); n.Result == nil || n.Result.Status != messages.StatusOK || len(n.Result.Output) < 200<<10 {
			y.Errorf("got the result %.300v", n.Result)
		}
		y.noJobs()
		if newest, _ := y.newest(); newest.Record.State != wire.Ended || newest.Record.Approval == nil || newest.Record.Approval.ArgsHash != q.ArgsHash {
			y.Errorf("it ended as %s", newest.Record.State)
		}
	})
}
