package lane_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// busy is the result of an attempt that failed and may be tried again.
func busy(job wire.Job, held call.Grant) messages.Result {
	r := done(job, held)
	r.Status, r.Outcome = messages.StatusError, messages.Outcome{Err: &messages.Error{Code: messages.CodeToolError, Message: "busy", Retryable: true}}
	return r
}

// A read fails and may be tried again: its job stays in the queue until the coordinator has
// the notice of the failed attempt. Otherwise the coordinator's poll could publish a job that
// does not count this attempt.
func TestAFailedReadKeepsItsPlaceInTheQueue(t *testing.T) {
	inYard(t, func(y *yard) {
		runs := 0
		y.worker("w", false, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			runs++
			held, err := claim(ctx, call.Frozen{})
			return busy(job, held), err
		})
		job := y.job(false)
		y.publish(job)
		n := y.notice()
		if n.LetGo == nil || n.LetGo.Attempt != 1 {
			y.Fatalf("got the notice %+v, want a failed attempt", n)
		}
		time.Sleep(time.Second) // of simulated time: everything that the worker sent has arrived
		job.Dispatch = 1        // a poll that does not know of the failed attempt publishes the job again
		subject := y.conn.Names().Lane(false, "default", key)
		if _, err := y.conn.Append(y.Context(), subject, nil, rawjson.MustMarshal(job)); !errors.Is(err, bus.ErrExists) {
			y.Errorf("a second job beside the one of the failed attempt: %v, want %v", err, bus.ErrExists)
		}
		if err := y.conn.Delete(y.Context(), y.conn.Names().Stream(bus.Jobs), n.LetGo.Job); err != nil {
			y.Fatal(err)
		}
		job.Attempt = n.LetGo.Attempt
		y.publish(job)
		if n := y.notice(); n.Result == nil || n.Result.Attempt != 2 {
			y.Errorf("got the notice %+v, want the result of the second attempt, which is the last", n)
		}
		y.noJobs()
		if runs != 2 {
			y.Errorf("%d runs of a tool with 2 attempts", runs)
		}
	})
}

// No coordinator gets the notice of a failed read: the broker delivers the job again, and this
// delivery is the next attempt.
func TestAFailedReadGoesOnWithoutACoordinator(t *testing.T) {
	inYard(t, func(y *yard) {
		y.worker("w", false, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			held, err := claim(ctx, call.Frozen{})
			return busy(job, held), err
		})
		y.publish(y.job(false))
		y.notice()
		if n := y.notice(); n.Result == nil || n.Result.Attempt != 2 {
			y.Errorf("got the notice %+v, want the result of the second attempt", n)
		}
		y.noJobs()
	})
}
