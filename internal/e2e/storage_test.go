package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// jetStream sends a request to the JetStream API and returns the answer. The request has no
// body if body is nil.
func jetStream(t *testing.T, conn *bus.Conn, what string, body any) (answer map[string]any) {
	t.Helper()
	var raw []byte
	if body != nil {
		raw = rawjson.MustMarshal(body)
	}
	m, err := conn.Request(t.Context(), "$JS.API."+what, nil, raw)
	if err == nil {
		err = json.Unmarshal(m.Data, &answer)
	}
	if err != nil || answer["error"] != nil {
		t.Fatalf("%s: %v %v", what, err, answer["error"])
	}
	return answer
}

// A daemon that starts stops with an error if a stream has a wrong configuration. It creates a
// stream that is missing.
func TestStreamsAreCheckedAtStart(t *testing.T) {
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	f.close()
	agent := f.connect("operator")
	defer agent.Close()
	const name = "TOOLFLEET_CALLS"
	config := jetStream(t, agent, "STREAM.INFO."+name, nil)["config"].(map[string]any)
	jetStream(t, agent, "STREAM.DELETE."+name, nil)
	config["discard"] = "old"
	jetStream(t, agent, "STREAM.CREATE."+name, config)

	c, err := coordinator.New(agent, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(agent, f.tools, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for who, run := range map[string]func(context.Context) error{"coordinator": c.Run, "worker": w.Run} {
		err := run(t.Context())
		var mismatch *bus.Mismatch
		if !errors.As(err, &mismatch) {
			t.Errorf("the %s runs on a journal that drops old records: %v", who, err)
			continue
		}
		says(t, who, err.Error(), name, "discard", "DiscardOld", "DiscardNew")
	}
	jetStream(t, agent, "STREAM.DELETE."+name, nil)
	jetStream(t, agent, "STREAM.DELETE.TOOLFLEET_JOBS", nil)

	again, runs := countingFleet(t, f.srv)
	defer again.close()
	again.run(canonical("s", "b", call{"count", ""}))
	if runs.Load() != 1 {
		t.Errorf("after the streams were made again a write ran %d times", runs.Load())
	}
}

// An operator deletes a stream with durable data while the fleet runs. No daemon creates it
// again, not even a daemon that starts later. No reply is made up, and the log names the
// stream until an operator acts.
func TestAStreamIsDeletedWhileTheFleetRuns(t *testing.T) {
	for _, stream := range []string{bus.Batches, bus.Calls, bus.Replies} {
		t.Run(stream, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				log := &lockedBuffer{}
				f := newFleet(t, srv)
				defer f.close()
				f.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				gate := make(chan struct{})
				runs := startBounded(f, provision.Config{}, gate)
				b := canonical("s", "b", call{"put", ""}, call{"echo", `{"n":1}`})
				f.submit(b)
				f.until("the write runs", func() bool { return runs.Load() == 1 })
				name := f.conn.Names().Stream(stream)
				jetStream(t, f.conn, "STREAM.DELETE."+name, nil)
				close(gate)
				// If the batches are deleted, a running batch still ends, and its reply is
				// stored.
				if reply, err := f.await(b, 5*time.Minute); err == nil && (stream != bus.Batches || len(reply.Results) != 2) {
					t.Errorf("a reply without %s: %s", name, rawjson.MustMarshal(reply))
				}
				if _, err := f.conn.First(context.Background(), name, ">"); !errors.Is(err, bus.ErrNoStream) {
					t.Errorf("%s was created again: %v", name, err)
				}
				says(t, "the log", log.String(), "level=WARN", name[len("TOOLFLEET_"):])
				c, err := coordinator.New(f.conn, coordinator.Config{})
				if err != nil {
					t.Fatal(err)
				}
				w, err := worker.New(f.conn, f.tools, worker.Config{})
				if err != nil {
					t.Fatal(err)
				}
				for who, run := range map[string]func(context.Context) error{"coordinator": c.Run, "worker": w.Run} {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					says(t, "a "+who+" that starts", fmt.Sprint(run(ctx)), "stream "+name+" is gone", "restore it from a backup")
					cancel()
				}
				if runs.Load() != 1 {
					t.Errorf("the write ran %d times", runs.Load())
				}
			})
		})
	}
}

// An operator deletes a consumer or the stream of jobs, which the fleet can make again from
// the journal. The daemons that use them log the loss and create them again, and accepted
// batches go on.
func TestDeletedConsumersAndJobsAreMadeAgain(t *testing.T) {
	for _, what := range []string{"CONSUMER.DELETE.TOOLFLEET_BATCHES.coordinators", "CONSUMER.DELETE.TOOLFLEET_JOBS.default", "STREAM.DELETE.TOOLFLEET_JOBS"} {
		t.Run(what, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				log := &lockedBuffer{}
				f := newFleet(t, srv)
				defer f.close()
				f.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				runs := startBounded(f, provision.Config{}, nil)
				jetStream(t, f.conn, what, nil)
				b := canonical("s", "b", call{"put", ""}, call{"echo", `{"n":1}`})
				f.submit(b)
				f.until("the log says that the consumer is missing", func() bool { return strings.Contains(log.String(), "no such consumer") })
				reply, err := f.await(b, 5*time.Minute)
				if err != nil || reply.Results[0].Status != messages.StatusOK || runs.Load() != 1 {
					t.Fatalf("%s, %v, after %d runs of the write", rawjson.MustMarshal(reply), err, runs.Load())
				}
				if read := reply.Results[1]; read.Status != messages.StatusOK {
					t.Errorf("the read: %s", rawjson.MustMarshal(read))
				}
			})
		})
	}
}
