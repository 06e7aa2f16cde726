package lane_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// The stop of a queued call arrives just before a worker takes the job: the run is cancelled
// from its start. A stop that is older than AckWait has no effect.
func TestAStopIsFasterThanItsJob(t *testing.T) {
	inYard(t, func(y *yard) {
		stops := make(chan *wire.Stop, 1)
		y.worker("w", false, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
			var stop *wire.Stop
			errors.As(context.Cause(ctx), &stop)
			stops <- stop
			held, err := claim(ctx, call.Frozen{})
			return done(job, held), err
		})
		time.Sleep(time.Second) // of simulated time: the worker listens
		for _, tc := range []struct {
			wait    time.Duration
			stopped bool
		}{{time.Millisecond, true}, {time.Minute, false}} {
			body := rawjson.MustMarshal(wire.Stop{V: messages.Version, Reason: "wrong account"})
			if err := y.conn.Publish(y.conn.Names().OfCall(wire.VerbStop, key), nil, body); err != nil {
				y.Fatal(err)
			}
			time.Sleep(tc.wait)
			y.publish(y.job(false))
			stop := <-stops
			if stopped := stop != nil && stop.Reason == "wrong account"; stopped != tc.stopped {
				y.Errorf("a job %v after its stop: stopped %v (%+v), want %v", tc.wait, stopped, stop, tc.stopped)
			}
			y.noJobs()
		}
	})
}
