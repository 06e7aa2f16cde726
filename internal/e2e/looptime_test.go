package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// restartingProgram is a program that stores its conversation and may end at any moment.
type restartingProgram struct {
	t      *testing.T
	f      *fleet
	stored []byte
}

// loop runs Loop on the stored conversation, as a new process does.
func (r *restartingProgram) loop(ctx context.Context, ask client.ModelFunc, options ...client.LoopOption) (*client.Conversation, error) {
	r.t.Helper()
	v := newConversation(messages.Anthropic)
	if r.stored != nil {
		v = new(client.Conversation)
		if err := json.Unmarshal(r.stored, v); err != nil {
			r.t.Fatal(err)
		}
	}
	save := client.SaveWith(func(_ context.Context, v client.Conversation) (err error) {
		r.stored, err = json.Marshal(v)
		return err
	})
	return v, r.f.client.Loop(ctx, v, ask, append(options, save)...)
}

// A program ends in the middle of a turn and starts again later. The time in between counts as
// time of the turn. The time that a person took before the crash does not count.
func TestTheTimeOfALoopGoesOnAfterACrash(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		addSlowTool(f)
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		program := &restartingProgram{t: t, f: f}
		began := time.Now()
		ctx, die := context.WithCancel(t.Context())
		go func() {
			var pending []messages.Pending
			f.until("a person is asked", func() bool {
				pending, _ = f.client.Approvals(context.Background())
				return len(pending) == 1
			})
			time.Sleep(10 * time.Minute)
			f.approve(p, "alice", f.question(messages.Batch{Session: "s", ID: pending[0].Batch}, 0))
		}()
		refundNow := alwaysCalls(messages.Anthropic, refund("149.99"))
		_, err := program.loop(ctx, func(ctx context.Context, history []json.RawMessage) (json.RawMessage, error) {
			if len(history) == 1 {
				return refundNow(ctx, history)
			}
			time.Sleep(10 * time.Second) // the program ends while the model thinks
			die()
			return nil, ctx.Err()
		}, client.MaxDuration(30*time.Second))
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		v, err := program.loop(t.Context(), alwaysCalls(messages.Anthropic, call{"slow", ""}), client.MaxDuration(30*time.Second))
		wantLoop(t, v, err, client.ErrMaxDuration, 5)
		if took := time.Since(began) - 10*time.Minute; took < 29*time.Second || took > 45*time.Second {
			t.Errorf("it took %v beside the person", took)
		}
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
		// The next turn may take the full time again.
		v, err = program.loop(t.Context(), noCalls, client.MaxDuration(30*time.Second))
		wantLoop(t, v, err, nil, 6)
	})
}

// A crash interrupts a turn. The turn has five rounds in total, and each batch names its
// round.
func TestTheRoundsOfALoopGoOnAfterACrash(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, ledger := runningBank(t, srv)
		defer f.close()
		program := &restartingProgram{t: t, f: f}
		model := alwaysCalls(messages.Anthropic, refund("1"))
		// The program ends when the calls of the third round have begun.
		ctx, die := context.WithCancel(t.Context())
		batches, seen := []messages.BatchID{}, map[messages.BatchID]bool{}
		hears := client.RunOptions(client.OnEvent(func(e messages.Event) {
			if e.Type != messages.EventRunning || seen[e.Batch] {
				return
			}
			seen[e.Batch] = true
			if batches = append(batches, e.Batch); len(batches) == 3 {
				die()
			}
		}))
		if _, err := program.loop(ctx, model, hears); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		v, err := program.loop(t.Context(), model, hears)
		wantLoop(t, v, err, client.ErrMaxRounds, 1+2*5)
		if n := len(ledger.all()); n != 5 {
			t.Errorf("refunded %d times", n)
		}
		for i, batch := range batches {
			f.awaitGone(messages.Batch{Session: "s", ID: batch})
			lines := f.auditLines(audit.Filter{Session: "s", Batch: batch})
			if len(lines) != 1 || lines[0].Round != i+1 {
				t.Errorf("batch %d has the lines %+v", i+1, lines)
			}
		}
		if len(batches) != 5 {
			t.Errorf("ran %d batches", len(batches))
		}
	})
}

// The model fails with an error, which ends the turn. However long the user then thinks, the
// next turn may take the full time.
func TestAnErrorOfTheModelEndsTheTurn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, _ := runningBank(t, srv)
		defer f.close()
		program := &restartingProgram{t: t, f: f}
		overloaded := errors.New("529: overloaded")
		refundOne := alwaysCalls(messages.Anthropic, refund("1"))
		v, err := program.loop(t.Context(), func(ctx context.Context, history []json.RawMessage) (json.RawMessage, error) {
			if len(history) == 1 {
				return refundOne(ctx, history)
			}
			return nil, overloaded
		}, client.MaxDuration(30*time.Second))
		wantLoop(t, v, err, overloaded, 3)
		time.Sleep(time.Hour)
		v, err = program.loop(t.Context(), noCalls, client.MaxDuration(30*time.Second))
		wantLoop(t, v, err, nil, 4)
	})
}

// A conversation that an earlier version stored has a message whose batch names no round. The
// batch is sent without a round again: with one, it would be another body under the same id.
func TestAMessageOfAnEarlierVersionHasNoRound(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, ledger := runningBank(t, srv)
		defer f.close()
		earlier := newConversation(messages.Anthropic)
		message, err := alwaysCalls(messages.Anthropic, refund("1"))(t.Context(), earlier.History)
		if err != nil {
			t.Fatal(err)
		}
		earlier.Message = message
		stored, err := json.Marshal(earlier)
		if err != nil {
			t.Fatal(err)
		}
		program := &restartingProgram{t: t, f: f, stored: stored}
		var batch messages.BatchID
		v, err := program.loop(t.Context(), noCalls, client.RunOptions(client.OnEvent(func(e messages.Event) {
			if batch == "" { // there is no batch for the model's last message
				batch = e.Batch
			}
		})))
		wantLoop(t, v, err, nil, 4)
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
		f.awaitGone(messages.Batch{Session: "s", ID: batch})
		lines := f.auditLines(audit.Filter{Session: "s", Batch: batch})
		if len(lines) != 1 || lines[0].Round != 0 {
			t.Errorf("the batch has the lines %+v", lines)
		}
	})
}
