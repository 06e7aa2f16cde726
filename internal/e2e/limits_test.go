package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// startBounded starts a fleet with bounded streams, and returns the number of runs of put. The
// tools are echo (a read), blob (a read that returns n bytes) and put (a write). put waits for
// gate if that is not nil.
func startBounded(f *fleet, p provision.Config, gate <-chan struct{}) *atomic.Int32 {
	runs := new(atomic.Int32)
	f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead, MaxOutput: 1 << 30}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	f.tool(schemas.Tool{Name: "blob", Kind: messages.KindRead, MaxOutput: 1 << 30}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		var in struct{ N int }
		err := json.Unmarshal(c.Input, &in)
		return tool.Text(strings.Repeat("x", in.N)), err
	})
	f.tool(schemas.Tool{Name: "put", TimeoutMS: 600_000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		runs.Add(1)
		if gate != nil {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
		return tool.Text("put"), nil
	})
	f.worker(worker.Config{Provision: p})
	f.coordinator(coordinator.Config{Provision: p})
	return runs
}

// The log is full. It refuses further batches with an error that a program can act on, and
// accepts batches again when there is room. Accepted batches run.
func TestAFullLogRefuses(t *testing.T) {
	for name, p := range map[string]provision.Config{
		"messages": {MaxBatches: 2},
		"bytes":    {MaxBytes: map[string]int64{bus.Batches: 800}},
	} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			f := newFleet(t, natstest.Server(t, natstest.Fast))
			defer f.close()
			runs := startBounded(f, p, gate)
			wide := call{"put", `{"filler":"` + strings.Repeat("x", 100) + `"}`}
			var held []messages.Batch
			var err error
			for n := 0; err == nil && n < 20; n++ {
				b := canonical(fmt.Sprint("s", n), "b", wide)
				if err = f.client.Submit(t.Context(), b); err == nil {
					held = append(held, b)
				}
			}
			if !errors.Is(err, bus.ErrFull) || len(held) != 2 {
				t.Fatalf("the publish of batch %d: %v; want two accepted and then a refusal", len(held), err)
			}
			late := canonical("late", "b", wide)
			late.V = messages.Version
			var reply messages.Reply
			m, err := f.conn.Request(t.Context(), f.conn.Names().Of(wire.VerbRun, wire.KeyOf(messages.OneTenant, "late", "b")), nil, rawjson.MustMarshal(late))
			if err == nil {
				err = json.Unmarshal(m.Data, &reply)
			}
			if err != nil || reply.Status != messages.ReplyRefused || reply.Error.Class != messages.ClassBusy || reply.Error.RetryAfterMS == 0 || m.Header.Get(bus.ServiceErrorCodeHeader) != "503" {
				t.Errorf("the run request: %s %v", m.Data, err)
			}
			close(gate)
			for _, b := range held {
				if reply, err := f.await(b, time.Minute); err != nil || reply.Results[0].Status != messages.StatusOK {
					t.Errorf("batch of session %s: %+v, %v", b.Session, reply, err)
				}
			}
			// The client's Run tries again by itself.
			if reply := f.run(late); reply.Status != messages.ReplyCompleted || runs.Load() != 3 {
				t.Errorf("when there is room: %s after %d writes", reply.Status, runs.Load())
			}
		})
	}
}

// fill stores junk under a subject until its stream is full.
func fill(t *testing.T, conn *bus.Conn, subject string) {
	t.Helper()
	for size := 4096; size > 0; {
		_, err := conn.Append(t.Context(), subject, nil, bytes.Repeat([]byte("x"), size))
		switch {
		case errors.Is(err, bus.ErrFull):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
}

// A stream of the journal is full. No call starts, and no end is reported, before the journal
// can record it. Once there is room, the batch goes on.
func TestAFullJournalHoldsTheBatchUp(t *testing.T) {
	for _, tt := range []struct {
		stream, junk string
		calls        []call
		writes       int32 // runs of writes before there is room
	}{
		{bus.Calls, "toolfleet.call._.junk.b.0", []call{{"put", ""}, {"echo", `{"n":1}`}}, 0},
		{bus.Results, "toolfleet.result._.junk.b.0", []call{{"echo", `{"n":1}`}, {"put", ""}}, 0},
		{bus.Replies, "toolfleet.final._.junk.b", []call{{"echo", `{"n":1}`}, {"put", ""}}, 1},
	} {
		t.Run(tt.stream, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				runs := startBounded(f, provision.Config{MaxBytes: map[string]int64{tt.stream: 64 << 10}, Erasable: true}, nil)
				fill(t, f.conn, tt.junk)
				b, next := canonical("s", "b", tt.calls...), canonical("s", "next", call{"put", ""})
				f.submit(b)
				f.submit(next)
				time.Sleep(10 * time.Minute) // simulated
				if reply, err := f.await(b, time.Minute); err == nil {
					t.Fatalf("a reply while %s is full: %s", tt.stream, rawjson.MustMarshal(reply))
				}
				if n := runs.Load(); n != tt.writes {
					t.Errorf("while %s was full the write began %d times, want %d", tt.stream, n, tt.writes)
				}
				jetStream(t, f.conn, "STREAM.PURGE."+f.conn.Names().Stream(tt.stream), map[string]string{"filter": tt.junk})
				reply, err := f.await(b, 5*time.Minute)
				if err != nil {
					t.Fatalf("with room again: %v", err)
				}
				for _, r := range reply.Results {
					if r.Status != messages.StatusOK {
						t.Errorf("with room again: %s", rawjson.MustMarshal(r))
					}
				}
				f.wantStatuses(f.reply(next, 5*time.Minute), "ok")
				if n := runs.Load(); n != 2 {
					t.Errorf("two writes ran %d times", n)
				}
			})
		})
	}
}

// The object store is full. A call with a large output ends with an error that names the
// reason, and the other calls of its batch end normally.
func TestAFullObjectStoreIsReported(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	startBounded(f, provision.Config{MaxBytes: map[string]int64{bus.Objects: 1 << 20}}, nil)
	r := f.run(canonical("s", "b", call{"blob", `{"n":3000000}`}, call{"echo", `{"n":1}`}, call{"blob", `{"n":1000}`})).Results
	if r[0].Err == nil || r[0].Err.Code != messages.CodeTooLarge {
		t.Fatalf("a large output without room: %s", rawjson.MustMarshal(r[0]))
	}
	says(t, "the error", r[0].Err.Message, "the store of large results is full", "The call itself was done")
	if left, err := f.conn.LastOfEach(t.Context(), "OBJ_"+f.conn.Names().Stream(bus.Objects), "$O.>"); err != nil || len(left) > 0 {
		t.Errorf("parts of the object that found no room stay: %d, %v", len(left), err)
	}
	for _, sibling := range r[1:] {
		if sibling.Status != messages.StatusOK || sibling.Err != nil {
			t.Errorf("beside it: %s", rawjson.MustMarshal(sibling))
		}
	}
}

// Outputs around each size limit come back whole, or as an error that names the reason.
func TestOutputsOfEverySize(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	startBounded(f, provision.Config{}, nil)
	const cut = 64 << 20 // the worker's limit, which includes the two quotes of a text
	message := f.conn.MaxPayload()
	for _, size := range []int{
		0, 1, journal.MaxInline - 3, journal.MaxInline - 2, journal.MaxInline - 1, journal.MaxInline, journal.MaxInline + 1,
		message - 64<<10 - 1, message - 64<<10, message - 64<<10 + 1, message - 1, message, message + 1, 16 << 20, cut - 2,
	} {
		if testing.Short() && size > 2*message {
			continue // slow with the race detector; smaller sizes suffice
		}
		reply := f.run(canonical("s", fmt.Sprint("whole", size), call{"blob", fmt.Sprintf(`{"n":%d}`, size)}))
		if n := bytes.Count(reply.Reinjection, []byte("x")); n != size || reply.Results[0].Status != messages.StatusOK {
			t.Errorf("an output of %d bytes: %d came back, %s", size, n, reply.Results[0].Status)
		}
	}
	for _, size := range []int{cut - 1, cut + 1} {
		if testing.Short() {
			break
		}
		r := f.run(canonical("s", fmt.Sprint("over", size), call{"blob", fmt.Sprintf(`{"n":%d}`, size)})).Results[0]
		if r.Status != messages.StatusError || r.Err.Code != messages.CodeTooLarge || !strings.Contains(r.Err.Message, fmt.Sprint(cut)) {
			t.Errorf("an output of %d bytes: %s %+v; want the cap named", size, r.Status, r.Err)
		}
	}
}

// A batch may have as many bytes as the limit, and not one more.
func TestBatchesAroundTheLimit(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	startBounded(f, provision.Config{}, nil)
	limit := f.conn.MaxPayload() - 64<<10
	sized := func(size int) messages.Batch {
		b := canonical("s", fmt.Sprint("b", size), call{"echo", `{"v":""}`})
		b.V = messages.Version
		filler := size - len(rawjson.MustMarshal(b))
		return canonical("s", fmt.Sprint("b", size), call{"echo", `{"v":"` + strings.Repeat("x", filler) + `"}`})
	}
	for _, size := range []int{limit - 1, limit} {
		b := sized(size)
		b.V = messages.Version
		if n := len(rawjson.MustMarshal(b)); n != size {
			t.Fatalf("made a batch of %d bytes for one of %d", n, size)
		}
		reply := f.run(b)
		if want := bytes.Count(b.Message, []byte("x")); bytes.Count(reply.Reinjection, []byte("x")) != want {
			t.Errorf("a batch of %d bytes: %d of %d came back, %s", size, bytes.Count(reply.Reinjection, []byte("x")), want, rawjson.MustMarshal(reply.Results))
		}
	}
	over := sized(limit + 1)
	over.V = messages.Version
	_, err := f.client.Run(t.Context(), over)
	says(t, "the client", fmt.Sprint(err), fmt.Sprint(limit), fmt.Sprint(limit+1))
	m, err := f.conn.Request(t.Context(), f.conn.Names().Of(wire.VerbRun, wire.KeyOf(messages.OneTenant, "s", over.ID)), nil, rawjson.MustMarshal(over))
	if err != nil {
		t.Fatal(err)
	}
	says(t, "the door", string(m.Data), `"too_large"`, fmt.Sprint(limit), fmt.Sprint(limit+1))
}
