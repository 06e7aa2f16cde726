package lane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// A claim that is stored leaves room in the journal for its renewals and its release, however
// large the arguments are. A claim that leaves no room is refused before the tool starts.
func TestAClaimLeavesRoomForWhatFollowsIt(t *testing.T) {
	// claims runs a call with an input of this size and returns the size of its claim, or 0 if it
	// was refused.
	claims := func(y *yard, bytes int) (size int) {
		input := json.RawMessage(fmt.Sprintf(`{"x":%q}`, strings.Repeat("x", bytes-len(`{"x":""}`))))
		y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			held, err := claim(ctx, call.Frozen{ArgsHash: messages.Digest(input), Input: input, OnCrash: messages.OnCrashIdempotent, Deadline: time.Minute})
			if err != nil {
				return messages.Result{}, err
			}
			stored, err := y.conn.Last(ctx, y.conn.Names().Stream(bus.Calls), y.conn.Names().OfCall(wire.VerbCall, key))
			if err != nil {
				y.Error(err)
			}
			size = len(stored.Data)
			time.Sleep(15 * time.Second) // longer than a lease
			if ctx.Err() != nil {
				y.Errorf("a claim of %d bytes less than a message was not renewed: %v", y.conn.MaxPayload()-size, context.Cause(ctx))
			}
			r := done(job, held)
			r.Status, r.Outcome = messages.StatusError, messages.Outcome{Err: &messages.Error{Code: messages.CodeToolError, Message: "busy", Retryable: true}}
			return r, nil
		})
		y.publish(y.job(true))
		n := y.notice()
		y.noJobs()
		switch newest, _ := y.newest(); {
		case size > 0 && (n.Record == nil || newest.Record.State != wire.Released):
			y.Errorf("a claim of %d bytes less than a message was not given up: the newest record is %s", y.conn.MaxPayload()-size, newest.Record.State)
		case size == 0 && (n.Result == nil || n.Result.Err == nil || n.Result.Err.Code != messages.CodeTooLarge || !strings.Contains(n.Result.Err.Message, "not run")):
			y.Errorf("told %.300v", n.Result)
		}
		return size
	}
	var limit, fields int
	inYard(t, func(y *yard) {
		limit = y.conn.MaxPayload()
		fields = claims(y, 1000) - 1000
	})
	stored, refused := 0, 0
	for _, left := range []int{0, 60, 70, 80, 90, 100, 110, 120, 300, 600, 1200, 4000} {
		inYard(t, func(y *yard) {
			if claims(y, limit-fields-left) > 0 {
				stored++
			} else {
				refused++
			}
		})
	}
	if stored == 0 || refused == 0 {
		t.Errorf("%d claims were stored, %d refused", stored, refused)
	}
}

// An earlier attempt was lost, and the next attempt cannot claim the call for whatever reason:
// the call ends with an unknown outcome.
func TestLostAttemptThatCannotBeClaimedAgain(t *testing.T) {
	small := json.RawMessage(`{"n":1}`)
	for name, want := range map[string]call.Frozen{
		"other arguments": {ArgsHash: messages.Digest([]byte(`{"n":2}`)), Input: json.RawMessage(`{"n":2}`)},
		"too large":       {ArgsHash: messages.Digest(small), Input: json.RawMessage(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, func(y *yard) {
				seq := y.write(wire.CallRecord{State: wire.Claimed, Nonce: "lost", Attempt: 1, ArgsHash: messages.Digest(small), OnCrash: messages.OnCrashIdempotent, Worker: "w0"}, 0)
				y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					held, err := claim(ctx, want)
					return done(job, held), err
				})
				job := y.job(true)
				job.TakeOver = seq
				y.publish(job)
				if n := y.notice(); n.Result == nil || n.Result.Status != messages.StatusOutcomeUnknown || !strings.Contains(n.Result.Err.Message, "could not be run again") {
					y.Errorf("told %+v", n.Result)
				}
				y.noJobs()
			})
		})
	}
}
