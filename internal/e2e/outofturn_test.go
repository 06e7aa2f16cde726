package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A batch runs, and the id of an earlier batch of the session is used again with another body.
// The new batch is refused at once, and the refusal is in the audit log before the lines of
// the running batch. The running batch still gets its lines.
func TestAConflictDoesNotWaitForItsTurn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "put", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) {
			time.Sleep(20 * time.Second) // simulated
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		one, two := canonical("s", "one", call{"put", ""}), canonical("s", "two", call{"put", ""}, call{"nothing_like_that", ""})
		other := canonical("s", "one", call{"put", `{"n":2}`})
		f.wantAuditLines(one, f.run(one))
		f.submit(two)
		time.Sleep(5 * time.Second) // simulated: the second batch runs
		f.submit(other)
		f.until("the refusal is in the audit log", func() bool { return len(f.auditLines(audit.Filter{Session: "s", Batch: "one"})) == 2 })
		if got := f.auditLines(audit.Filter{Session: "s", Batch: "two"}); len(got) != 0 {
			t.Fatalf("the running batch already has audit lines: %+v", got)
		}
		f.wantAuditLines(two, f.reply(two, time.Minute))
		lines := f.auditLines(audit.Filter{Session: "s"})
		if len(lines) != 4 || lines[1].Type != messages.AuditBatchRefused || lines[1].Refusal.Class != messages.ClassBatchConflict {
			t.Errorf("the audit log has %+v", lines)
		}
	})
}

// addSlowAndFast registers two writes: slow takes 20 seconds, and put takes no time.
func (f *fleet) addSlowAndFast() {
	for name, wait := range map[string]time.Duration{"slow": 20 * time.Second, "put": 0} {
		f.tool(schemas.Tool{Name: name, Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) {
			time.Sleep(wait) // simulated
			return tool.Text("done"), nil
		})
	}
}

// The log is deleted and created again, so it uses the same sequence numbers, and old replies
// still exist. A batch is submitted again and gets the same sequence as before. It must not be
// taken for the old message: no audit line is written before its turn.
func TestALogThatIsCreatedAgainReusesSequences(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.addSlowAndFast()
		f.worker(worker.Config{})
		first := f.coordinator(coordinator.Config{})
		a, b := canonical("s", "a", call{"put", ""}), canonical("s", "b", call{"put", ""})
		f.run(a)
		f.run(b)
		f.awaitGone(b)
		first.stop()
		batches := f.conn.Names().Stream(bus.Batches)
		made := jetStream(t, f.conn, "STREAM.INFO."+batches, nil)["config"]
		jetStream(t, f.conn, "STREAM.DELETE."+batches, nil)
		jetStream(t, f.conn, "STREAM.CREATE."+batches, made)
		f.coordinator(coordinator.Config{})
		n := canonical("s", "n", call{"slow", ""})
		f.submit(n)
		time.Sleep(2 * time.Second)
		f.submit(b)
		time.Sleep(2 * time.Second)
		f.wantAuditLines(n, f.reply(n, time.Minute))
		f.awaitGone(n)
		f.awaitGone(b)
		if got := f.auditLines(audit.Filter{Session: "s"}); len(got) != 3 {
			t.Errorf("the audit log has %+v", got)
		}
	})
}

// An operator deletes a batch from the log while it runs. The next batch of its session still
// waits for its end, and both have audit lines.
func TestABatchThatIsTakenOutOfTheLog(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.addSlowAndFast()
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		n, m := canonical("s", "n", call{"put", ""}, call{"slow", ""}), canonical("s", "m", call{"put", ""})
		f.submit(n)
		time.Sleep(2 * time.Second)
		if err := f.conn.Delete(context.Background(), f.conn.Names().Stream(bus.Batches), 1); err != nil {
			t.Fatal(err)
		}
		f.wantAuditLines(m, f.run(m))
		f.wantAuditLines(n, f.reply(n, time.Minute))
		if got := f.auditLines(audit.Filter{Session: "s"}); len(got) != 3 {
			t.Errorf("the audit log has %+v", got)
		}
		history, err := journal.New(f.conn).History(context.Background(), wire.KeyOf("_", "s", "n"), journal.SmallOutputs)
		if err != nil || len(history.Lines.Lines) != 2 {
			t.Errorf("%d lines in the history, %v", len(history.Lines.Lines), err)
		}
	})
}

// A reply cannot be stored for 15 minutes, but its audit lines can. The history of the batch
// includes those lines.
func TestTheHistoryOfABatchWhoseReplyWasStoredLate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.addSlowAndFast()
		f.worker(worker.Config{})
		cfg, freeSpace := fullStream(f, bus.Replies)
		f.coordinator(cfg)
		n := canonical("s", "n", call{"put", ""})
		f.submit(n)
		time.Sleep(15 * time.Minute)
		if got := f.auditLines(audit.Filter{Session: "s"}); len(got) != 1 {
			t.Fatalf("the audit log has, without a reply: %+v", got)
		}
		freeSpace()
		f.wantAuditLines(n, f.reply(n, 5*time.Minute))
		f.awaitGone(n)
		history, err := journal.New(f.conn).History(context.Background(), wire.KeyOf("_", "s", "n"), journal.SmallOutputs)
		if err != nil || len(history.Lines.Lines) != 1 {
			t.Errorf("%d lines in the history, %v", len(history.Lines.Lines), err)
		}
	})
}

// Two coordinators are cut off in turn, many times. Each session has several batches in the
// log, and some have more audit lines than fit into one message. Each line is in the audit log
// once.
func TestSessionsWhoseCoordinatorsTakeTurns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "put", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) {
			time.Sleep(7 * time.Second) // simulated
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{Slots: 50})
		links := []*link{newLink(t, srv), newLink(t, srv)}
		for _, l := range links {
			f.coordinatorOver(l)
		}
		var batches []messages.Batch
		var want []string
		for s := range 4 {
			for n := range 4 {
				calls := []call{{"put", ""}, {"nothing_like_that", ""}}
				if n == 1 {
					for range 500 {
						calls = append(calls, call{strings.Repeat("x", 1000), ""})
					}
				}
				b := canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), calls...)
				for i := range calls {
					want = append(want, fmt.Sprint(b.Session, b.ID, " ", i))
				}
				batches = append(batches, b)
				f.submit(b)
			}
		}
		for n := range 16 {
			l := links[n%2]
			l.set(conditions{silent: true}, conditions{silent: true})
			time.Sleep(time.Duration(3+n%7) * time.Second)
			l.cut() // end the wait for an answer that never comes
			l.set(conditions{}, conditions{})
		}
		for _, b := range batches {
			f.reply(b, 10*time.Minute)
			f.awaitGone(b)
		}
		time.Sleep(time.Minute)
		var got []string
		for _, line := range f.auditLines(audit.Filter{}) {
			got = append(got, fmt.Sprint(line.Session, line.Batch, " ", line.Index))
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
	})
}
