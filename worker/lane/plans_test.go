package lane_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// A job of a write is published by hand: it does not run, because a stored plan has to name
// its call with the tool and the input. The job becomes a dead letter with the reason.
func TestAJobThatNoPlanNames(t *testing.T) {
	planned := wire.PlannedCall{Tool: "t", Kind: messages.KindWrite, InputHash: wire.InputHash([]byte(`{"n": 1}`))}
	refused, renamed := planned, planned
	refused.Refused, renamed.Tool = &messages.Result{}, "other"
	for name, tc := range map[string]struct {
		plan *wire.PlannedCall // nil: no plan is stored
		edit func(*wire.Job)
		why  string // the reason in the dead letter; "": the call runs
	}{
		"named":                       {plan: &planned},
		"no plan, and it may overlap": {edit: func(j *wire.Job) { j.ConcurrencySafe = true }}, // as a coordinator of the version before publishes it
		"no plan":                     {why: "its batch has none"},
		"another input":               {&planned, func(j *wire.Job) { j.Input = json.RawMessage(`{"n":2}`) }, "another input"},
		"another tool":                {&renamed, nil, `the plan has the tool "other"`},
		"a call too many":             {&planned, func(j *wire.Job) { j.Index = 1 }, "the plan has 1 calls"},
		"another batch":               {&planned, func(j *wire.Job) { j.BodyDigest = "x" }, "another batch with this id"},
		"a call that is refused":      {&refused, nil, "the plan refuses it"},
		"said to be a read":           {nil, func(j *wire.Job) { j.Kind = messages.KindRead }, "its batch has none"},
		"said to be published again":  {nil, func(j *wire.Job) { j.Dispatch, j.TakeOver = 3, 7 }, "its batch has none"},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, func(y *yard) {
				ran := make(chan struct{}, 1)
				y.worker("w", true, func(ctx context.Context, job wire.Job, _ *wire.CallRecord, claim call.Claim) (messages.Result, error) {
					held, err := claim(ctx, call.Frozen{Input: job.Input, ArgsHash: "h"})
					ran <- struct{}{}
					return done(job, held), err
				})
				if tc.plan != nil {
					y.plan(*tc.plan)
				}
				job := y.job(true)
				if tc.edit != nil {
					tc.edit(&job)
				}
				y.offer(y.Context(), job)
				if tc.why == "" {
					<-ran
					return
				}
				bustest.Until(t, "it is a dead letter", time.Minute, func() bool {
					letters, err := y.journal.DeadLetters(y.Context(), 10)
					return err == nil && len(letters) == 1 && strings.Contains(letters[0].Letter.Reason, tc.why)
				})
				select {
				case <-ran:
					t.Error("it ran")
				default:
				}
			})
		})
	}
}
