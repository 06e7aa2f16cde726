package handlers

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// fixture is the log of a session and its replies. There is no coordinator.
type fixture struct {
	*testing.T
	conn    *bus.Conn
	journal *journal.Journal
	key     wire.BatchKey
}

func withFixture(t *testing.T, f func(x *fixture)) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL(), InProcess: srv})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		x := &fixture{t, conn, journal.New(conn), wire.KeyOf(messages.OneTenant, "s", "b")}
		x.must(provision.Ensure(t.Context(), conn, provision.Config{}))
		f(x)
	})
}

func (x *fixture) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// accept puts the batch into the log.
func (x *fixture) accept() journal.Accepted {
	x.Helper()
	return x.acceptAs("b")
}

// acceptAs puts a batch with an id into the log.
func (x *fixture) acceptAs(id messages.BatchID) journal.Accepted {
	x.Helper()
	key := wire.KeyOf(messages.OneTenant, "s", id)
	body, err := messages.Batch{ID: id, Session: "s", Provider: messages.Canonical, Message: []byte(`{"calls":[]}`)}.Encode()
	x.must(err)
	_, err = x.conn.Append(x.Context(), x.conn.Names().Of(wire.VerbBatch, key), nil, body)
	x.must(err)
	accepted, _, err := x.journal.Open(x.Context(), key)
	x.must(err)
	return accepted
}

func (x *fixture) reply(a journal.Accepted) {
	x.Helper()
	_, err := x.journal.WriteReply(x.Context(), a, messages.Reply{Batch: messages.BatchID(a.Key.Batch), Session: "s", Status: messages.ReplyCompleted})
	x.must(err)
}

// list returns the list that a new watcher of the session gets.
func (x *fixture) list(j *journal.Journal) messages.BatchList {
	x.Helper()
	return x.get(j, messages.Get{Batches: true})
}

// listAfter returns the list for a watcher whose last list ended at place.
func (x *fixture) listAfter(place uint64) messages.BatchList {
	x.Helper()
	return x.get(x.journal, messages.Get{Batches: true, After: &place})
}

func (x *fixture) get(j *journal.Journal, want messages.Get) (list messages.BatchList) {
	x.Helper()
	h := &Handlers{journal: j, limiter: newPerTenantLimiter(maxHistories)}
	body, err := h.list(x.Context(), x.key, want)
	x.must(err)
	x.must(json.Unmarshal(body, &list))
	return list
}

// The reply of a batch is stored while the batch is still in the log: the list shows the batch
// as ended. If the list showed it as open, with a place after its reply, no later list would
// have it, and a watcher would never learn of its end.
func TestAListHasABatchThatIsEnding(t *testing.T) {
	withFixture(t, func(x *fixture) {
		accepted := x.accept()
		if l := x.list(x.journal); len(l.Batches) != 1 || !l.Batches[0].Open() {
			t.Errorf("before its reply: %+v, want it to be open", l.Batches)
		}
		x.reply(accepted)
		if l := x.list(x.journal); len(l.Batches) != 1 || l.Batches[0].Open() || l.Place != l.Batches[0].Place {
			t.Errorf("after its reply, and in the log: %+v, place %d; want it to have ended at that place", l.Batches, l.Place)
		}
		x.must(x.journal.Remove(x.Context(), accepted))
		if l := x.list(x.journal); len(l.Batches) != 0 || l.Batches == nil { // it has to be an empty list and not null
			t.Errorf("out of the log: %#v, want an empty list", l.Batches)
		}
	})
}

// Two overlapping batches of a session have their replies and are still in the log: a list
// that follows an earlier one does not repeat them.
func TestAListHasEveryBatchThatIsEnding(t *testing.T) {
	withFixture(t, func(x *fixture) {
		first, second := x.acceptAs("first"), x.acceptAs("second")
		x.acceptAs("third")
		x.reply(second)
		x.reply(first)
		got := func(l messages.BatchList) string {
			var all []string
			for _, b := range l.Batches {
				all = append(all, string(b.Batch)+" "+b.Status)
			}
			return strings.Join(all, ", ")
		}
		l := x.list(x.journal)
		if want := "second completed, first completed, third running"; got(l) != want {
			t.Errorf("a new watcher gets %s; want %s", got(l), want)
		}
		if next, want := x.listAfter(l.Place), "third running"; got(next) != want {
			t.Errorf("its next list has %s; want %s", got(next), want)
		}
	})
}

// A batch is accepted after the log was read for a list, and ends before the replies are read:
// the list has it.
func TestAListHasABatchThatRunsMeanwhile(t *testing.T) {
	withFixture(t, func(x *fixture) {
		store := &meanwhile{Conn: x.conn, do: func() {
			accepted := x.accept()
			x.reply(accepted)
			x.must(x.journal.Remove(x.Context(), accepted))
		}}
		if l := x.list(journal.In(store, objects.In(x.conn), clock{})); len(l.Batches) != 1 || l.Batches[0].Open() || l.Place != l.Batches[0].Place {
			t.Errorf("%+v, place %d; want the batch to have ended at that place", l.Batches, l.Place)
		}
	})
}

// meanwhile is a connection that calls do once, right after the log was read.
type meanwhile struct {
	*bus.Conn
	do func()
}

func (m *meanwhile) Scan(ctx context.Context, stream, filter string, from bus.From, each func(bus.Msg) (more bool)) error {
	err := m.Conn.Scan(ctx, stream, filter, from, each)
	if m.do != nil && stream == m.Names().Stream(bus.Batches) {
		m.do()
		m.do = nil
	}
	return err
}

type clock struct{}

func (clock) Now() time.Time { return time.Now() }

func (clock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}
