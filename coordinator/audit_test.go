package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The full audit lines of a batch cannot be stored: the batch gets bare lines, which say less.
func TestBareLinesAreBetterThanNone(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		results := []messages.Result{{Index: 0, CallID: messages.CallID("c" + strings.Repeat("x", messages.MaxID)), Tool: "pay", Status: messages.StatusOK, Attempt: 2}}
		for n, calls := range []func(context.Context) ([]audit.Call, error){
			func(context.Context) ([]audit.Call, error) { panic("while lines are made") },
			func(context.Context) ([]audit.Call, error) { return nil, fmt.Errorf("so: %w", bus.ErrTooLarge) },
		} {
			key := wire.KeyOf("_", "bare", messages.BatchID(fmt.Sprint(n)))
			e := audit.Ending{Accepted: journal.Accepted{Key: key, Seq: uint64(n + 1), Stored: time.Now()}, Calls: calls, Results: results}
			if err := c.recorder.Write(t.Context(), c.log, e); err != nil {
				t.Fatal(err)
			}
			var got []messages.AuditRecord
			o.must(c.auditLog.Read(t.Context(), audit.Filter{Key: key}, func(e audit.Entry) bool { got = append(got, e.Line); return true }))
			if len(got) != 1 || got[0].Index != 0 || !strings.HasPrefix(string(got[0].CallID), "cx") || got[0].Tool != "pay" || got[0].Status != messages.StatusOK || got[0].Attempt != 2 {
				t.Errorf("%d: on record: %+v", n, got)
			}
		}
	})
}

// The audit line of a refused batch cannot be stored: the batch stays in the log, like any
// batch whose lines are missing.
func TestARefusalWaitsForItsRecord(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		lost := o.connect("lost")
		lost.Close()
		record, err := audit.New(lost, audit.Config{Plain: true})
		o.must(err)
		refuse := func(c *Coordinator, id messages.BatchID) (finished, open bool) {
			key := wire.KeyOf(messages.OneTenant, "aside", id)
			// The coordinator believes that a peer drives the batch, so it does not take the
			// batch's delivery.
			o.pretendElsewhere(c, key)
			body := []byte(`{"v":1,"id":"elsewhere","session":"s","provider":"canonical","message":{"calls":[]}}`)
			_, err := o.conn.Append(t.Context(), o.names.Of(wire.VerbBatch, key), nil, body)
			o.must(err)
			a, found, err := o.journal.Open(t.Context(), key)
			o.must(err)
			if !found {
				t.Fatal("the batch is not in the log")
			}
			s := c.newSessionRun(a.Key)
			s.begin(t.Context(), a, nil, nil)
			finished = (<-s.left).finished
			_, open, err = o.journal.Open(t.Context(), key)
			o.must(err)
			return finished, open
		}
		if finished, open := refuse(c, "kept"); !finished || open {
			t.Errorf("with a record: finished %v, open %v", finished, open)
		}
		c.recorder = audit.NewRecorder(record, c.journal, audit.RecorderConfig{Failed: func() {}})
		if finished, open := refuse(c, "lost"); finished || !open {
			t.Errorf("without a record: finished %v, open %v", finished, open)
		}
	})
}

// The audit log shows the trace id of a batch. This id is made from the batch's place in the
// log and not from a hash of the agent's message, so it tells nothing about the message.
func TestATraceSaysNothingOfItsBatch(t *testing.T) {
	r := newTraces()
	id := func(a journal.Accepted) string {
		c := &Coordinator{cfg: Config{Tracer: r.Tracer}.withDefaults(), toolsets: &toolsets{}}
		c.log = c.cfg.Logger
		return tracing.ID(c.newRun(c.newSessionRun(a.Key), a, nil).beginSpans(t.Context()))
	}
	a := journal.Accepted{Key: wire.KeyOf("_", "s", "b"), Seq: 7, Stored: time.Unix(1, 2), Body: []byte("one")}
	other, later := a, a
	other.Body, later.Seq = []byte("other"), 8
	if id(a) == "" || id(a) != id(other) || id(a) == id(later) {
		t.Errorf("traces %s, %s of another body, and %s at another place", id(a), id(other), id(later))
	}
}
