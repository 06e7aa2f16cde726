package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// newConversation returns a conversation that holds the first message of a user.
func newConversation(p messages.Provider) *client.Conversation {
	return &client.Conversation{Session: "s", Provider: p, History: []json.RawMessage{[]byte(`{"role":"user","content":"<go on>"}`)}}
}

// alwaysCalls returns a model that makes these calls in each round, with new call ids.
func alwaysCalls(p messages.Provider, calls ...call) client.ModelFunc {
	n := 0
	return func(context.Context, []json.RawMessage) (json.RawMessage, error) {
		n++
		message := batchIn(p, "", "", calls...).Message
		for i := range calls {
			message = bytes.ReplaceAll(message, fmt.Appendf(nil, `"c%d"`, i), fmt.Appendf(nil, `"r%d-c%d"`, n, i))
		}
		return message, nil
	}
}

// noCalls is a model that makes no calls.
func noCalls(context.Context, []json.RawMessage) (json.RawMessage, error) {
	return json.RawMessage(`{"role":"assistant","content":[{"type":"text","text":"done"}]}`), nil
}

// wantLoop checks that a loop has ended with the error want, and that its history has n
// messages.
func wantLoop(t *testing.T, v *client.Conversation, err, want error, n int) {
	t.Helper()
	if !errors.Is(err, want) || len(v.History) != n || v.Message != nil || v.Rounds != 0 {
		t.Errorf("got %v with %d messages, %s and %d rounds; want %v with %d", err, len(v.History), v.Message, v.Rounds, want, n)
	}
}

// runningBank starts a fleet that serves the tools of the bank, with one worker and one
// coordinator.
func runningBank(t *testing.T, srv *devserver.Server) (*fleet, *toolRecord) {
	t.Helper()
	f := newFleet(t, srv)
	ledger := f.addBankTools()
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{})
	return f, ledger
}

// A model makes calls in every round. The loop ends after five rounds, and each of the model's
// messages in the history has its answer.
func TestALoopEndsAfterItsRounds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, ledger := runningBank(t, srv)
		defer f.close()
		chat := newConversation(messages.Anthropic)
		err := f.client.Loop(t.Context(), chat, alwaysCalls(messages.Anthropic, refund("1")))
		wantLoop(t, chat, err, client.ErrMaxRounds, 1+2*5)
		for i := 1; i < len(chat.History); i += 2 {
			id := fmt.Sprintf(`"r%d-c0"`, 1+i/2)
			if !strings.Contains(string(chat.History[i]), `"id":`+id) || !strings.Contains(string(chat.History[i+1]), `"tool_use_id":`+id) {
				t.Errorf("message %d is %s, then %s", i, chat.History[i], chat.History[i+1])
			}
		}
		err = f.client.Loop(t.Context(), chat, noCalls)
		wantLoop(t, chat, err, nil, 12)
		if n := len(ledger.all()); n != 5 {
			t.Errorf("refunded %d times", n)
		}
	})
}

// In every dialect, each round adds the model's message and the answers to the history.
func TestALoopInEachDialect(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, _ := runningBank(t, srv)
		defer f.close()
		for p, grows := range map[messages.Provider]int{
			messages.Anthropic: 2, messages.OpenAIChat: 3, messages.OpenAIResponses: 4, messages.Bedrock: 2, messages.Gemini: 2, messages.Canonical: 2,
		} {
			chat := newConversation(p)
			chat.Session = messages.SessionID(p)
			err := f.client.Loop(t.Context(), chat, alwaysCalls(p, call{"lookup", ""}, call{"lookup", ""}), client.MaxRounds(2))
			wantLoop(t, chat, err, client.ErrMaxRounds, 1+2*grows)
		}
	})
}

// addSlowTool registers the tool slow, which runs for an hour unless it is stopped.
func addSlowTool(f *fleet) {
	f.tool(schemas.Tool{Name: "slow", Kind: messages.KindRead, TimeoutMS: 3_600_000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		select {
		case <-time.After(time.Hour):
			return tool.Text("done"), nil
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		}
	})
}

// A tool or the model takes longer than the loop may. The loop stops it and ends.
func TestALoopEndsWhenItsTimeIsOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		addSlowTool(f)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		chat := newConversation(messages.Anthropic)
		began := time.Now()
		err := f.client.Loop(t.Context(), chat, alwaysCalls(messages.Anthropic, call{"slow", ""}), client.MaxDuration(30*time.Second))
		wantLoop(t, chat, err, client.ErrMaxDuration, 3)
		if took := time.Since(began); took < 30*time.Second || took > 40*time.Second {
			t.Errorf("it took %v", took)
		}
		if last := string(chat.History[2]); !strings.Contains(last, "the time for this turn is over") {
			t.Errorf("the model reads %s", last)
		}
		waits := func(ctx context.Context, _ []json.RawMessage) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		err = f.client.Loop(t.Context(), chat, waits, client.MaxDuration(30*time.Second))
		wantLoop(t, chat, err, client.ErrMaxDuration, 3)
	})
}

// People take minutes to decide. Their time does not count as time of the loop, neither in the
// running batch nor in earlier batches.
func TestTheTimeOfPeopleDoesNotCountInALoop(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		addSlowTool(f)
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		chat := newConversation(messages.Anthropic)
		ended := make(chan error, 1)
		began := time.Now()
		slowNow := alwaysCalls(messages.Anthropic, call{"slow", ""})
		refundNow := alwaysCalls(messages.Anthropic, refund("149.99"))
		go func() {
			ended <- f.client.Loop(context.Background(), chat, func(ctx context.Context, history []json.RawMessage) (json.RawMessage, error) {
				if len(history) > 1 {
					return slowNow(ctx, history)
				}
				return refundNow(ctx, history)
			}, client.MaxDuration(30*time.Second))
		}()
		var pending []messages.Pending
		f.until("a person is asked", func() bool {
			pending, _ = f.client.Approvals(context.Background())
			return len(pending) == 1
		})
		time.Sleep(10 * time.Minute)
		f.approve(p, "alice", f.question(messages.Batch{Session: "s", ID: pending[0].Batch}, 0))
		wantLoop(t, chat, <-ended, client.ErrMaxDuration, 5)
		if took := time.Since(began) - 10*time.Minute; took < 29*time.Second || took > 45*time.Second {
			t.Errorf("it took %v beside the person", took)
		}
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
	})
}

// A program ends at any step of a loop and starts again, from the conversation that it saved
// or from the first one. No call runs twice, not even if the saved conversation has other
// bytes for the same JSON.
func TestALoopGoesOnAfterACrash(t *testing.T) {
	crash := errors.New("the program ends")
	for dies := range 5 {
		for _, saves := range []bool{true, false} {
			t.Run(fmt.Sprint("at step ", dies, ", saves ", saves), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f, ledger := runningBank(t, srv)
					defer f.close()
					chat := newConversation(messages.Anthropic)
					stored, _ := json.Marshal(chat)
					answers := 0
					steps := 0
					for again := true; again; {
						var v client.Conversation
						if err := json.Unmarshal(stored, &v); err != nil {
							t.Fatal(err)
						}
						ctx, die := context.WithCancel(context.Background())
						step := func() error {
							if steps++; steps == dies+1 {
								die()
								return crash
							}
							return nil
						}
						err := f.client.Loop(ctx, &v, func(ctx context.Context, history []json.RawMessage) (json.RawMessage, error) {
							answers++
							if len(history) >= 5 {
								return noCalls(ctx, history)
							}
							words := "<same>"
							if saves { // the model answers differently each time
								words = fmt.Sprint("<answer> & ", answers)
							}
							return json.RawMessage(fmt.Sprintf(`{"role":"assistant","content":[{"type":"text","text":%q},{"type":"tool_use","name":"refund","input":{"amount":1.0},"id":"c%d"}]}`, words, len(history))), nil
						}, client.SaveWith(func(_ context.Context, v client.Conversation) error {
							if saves {
								stored, _ = json.Marshal(v) // json.Marshal escapes "<"
							}
							return step()
						}), client.RunOptions(client.OnEvent(func(e messages.Event) {
							if !saves && e.Type == messages.EventRunning {
								_ = step()
							}
						})))
						die()
						if err != nil && !errors.Is(err, crash) && !errors.Is(err, context.Canceled) {
							t.Fatal(err)
						}
						if again = err != nil; !again {
							wantLoop(t, &v, err, nil, 6)
						}
					}
					if n := len(ledger.all()); n != 2 {
						t.Errorf("refunded %d times, want 2", n)
					}
				})
			})
		}
	}
}

// A message that a user sends to the session is added to the history, a refused message of the
// model is removed, and an abort ends the turn.
func TestSteeringRefusalAndAbortInALoop(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		addSlowTool(f)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		chat := newConversation(messages.Anthropic)
		if _, err := f.client.Steer(t.Context(), "s", json.RawMessage(`{"role":"user","content":"and then?"}`), "", client.Reason{}); err != nil {
			t.Fatal(err)
		}
		wantLoop(t, chat, f.client.Loop(t.Context(), chat, noCalls), nil, 4)

		err := f.client.Loop(t.Context(), chat, func(context.Context, []json.RawMessage) (json.RawMessage, error) {
			return json.RawMessage(`{"role":"assistant","content":7}`), nil
		})
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) || refusal.Class != messages.ClassMalformedMessage {
			t.Errorf("a malformed message: %v", err)
		}
		wantLoop(t, chat, err, err, 4)

		chat.History = append(chat.History, json.RawMessage(`{"role":"user","content":"again"}`))
		err = f.client.Loop(t.Context(), chat, alwaysCalls(messages.Anthropic, call{"slow", ""}), client.RunOptions(client.OnEvent(func(e messages.Event) {
			if e.Type == messages.EventRunning {
				go func() { _, _ = f.client.Abort(context.Background(), "s", e.Batch, client.Reason{}) }()
			}
		})))
		wantLoop(t, chat, err, client.ErrAborted, 7)
	})
}
