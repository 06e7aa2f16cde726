package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Run waits for a batch that may have been accepted, however long no coordinator answers, and emits
// one EventWaiting. The first coordinator either answers that it shuts down, or loses its
// connection while the agent loses its own. A second one then answers.
func TestRunWaitsForACoordinatorToComeBack(t *testing.T) {
	busy := messages.Reply{V: 1, Status: messages.ReplyRefused, Error: &messages.Refusal{Class: messages.ClassBusy}}
	for name, answers := range map[string]bool{"it shuts down": true, "the connection is lost": false} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				coordinator := func(answer *messages.Reply) (came <-chan struct{}, goes func()) {
					visits := make(chan struct{}, 100)
					goes, err := s.conn.Subscribe(s.conn.Names().Of(wire.VerbRun, s.key), "", func(m bus.Msg) {
						if answer != nil {
							_ = s.conn.Respond(m, nil, rawjson.MustMarshal(answer))
						}
						visits <- struct{}{}
					})
					if err != nil {
						t.Fatal(err)
					}
					return visits, goes
				}
				first := &busy
				if !answers {
					first = nil
				}
				came, goes := coordinator(first)
				type outcome struct {
					reply messages.Reply
					err   error
				}
				ran := make(chan outcome, 1)
				go func() {
					reply, err := s.c.Run(ctx, batchB, client.OnEvent(s.take))
					ran <- outcome{reply, err}
				}()
				<-came
				goes()
				if !answers {
					srv.Stop()
					if err := srv.Restart(); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Hour)
				if diff := cmp.Diff([]string{"waiting -1 #0"}, s.all()); diff != "" {
					t.Errorf("after an hour with nobody: %s", diff)
				}
				_, goes = coordinator(&messages.Reply{V: 1, Status: messages.ReplyCompleted})
				defer goes()
				if got := <-ran; got.err != nil || got.reply.Status != messages.ReplyCompleted {
					t.Errorf("got %+v, %v; want it completed", got.reply, got.err)
				}
			})
		})
	}
}

func TestRunWithoutAFleet(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		if _, err := s.c.Run(t.Context(), batchB, client.OnEvent(s.take)); !errors.Is(err, client.ErrNoFleet) || len(s.all()) > 0 {
			t.Errorf("got %v, and was told %v; want %v", err, s.all(), client.ErrNoFleet)
		}
	})
}

// A coordinator that shuts down refuses the batches that it was to answer later. Run gives up a
// batch only if the fleet does not have it, however often coordinators are replaced.
func TestRunGivesUpOnlyABatchThatTheFleetDoesNotHave(t *testing.T) {
	busy := messages.Reply{V: 1, Status: messages.ReplyRefused, Error: &messages.Refusal{Class: messages.ClassBusy, RetryAfterMS: 500}}
	for status, want := range map[string]messages.ReplyStatus{"running": messages.ReplyCompleted, "unknown": messages.ReplyRefused} {
		t.Run(status, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				conn, err := bus.Connect(ctx, bus.Options{InProcess: srv, Name: "test"})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				key, asked := wire.KeyOf("_", "s", "b"), 0
				door(t, conn, conn.Names().Of(wire.VerbGet, key), 1<<19, func(bus.Msg) any { return messages.State{Status: status} })
				door(t, conn, conn.Names().Of(wire.VerbRun, key), 1<<19, func(bus.Msg) any {
					asked++
					switch asked {
					case 2, 3: // the second and the third coordinator wait for it for a while
						time.Sleep(5 * time.Second)
					case 4:
						return messages.Reply{V: 1, Status: messages.ReplyCompleted}
					}
					return busy
				})
				reply, err := over(t, conn).Run(ctx, batchB, client.RetryBusy(2*time.Second))
				var refusal *messages.Refusal
				if reply.Status != want || errors.As(err, &refusal) != (want == messages.ReplyRefused) {
					t.Errorf("got %+v, %v after %d requests; want %s", reply, err, asked, want)
				}
			})
		})
	}
}
