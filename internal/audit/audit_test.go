package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func connect(t *testing.T, srv *devserver.Server) *bus.Conn {
	t.Helper()
	conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := provision.Ensure(t.Context(), conn, provision.Config{}); err != nil {
		t.Fatal(err)
	}
	return conn
}

func open(t *testing.T, conn *bus.Conn, cfg Config) *Log {
	t.Helper()
	l, err := New(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var accepted = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func lines(n, size int, writer string) wire.AuditLines {
	all := wire.AuditLines{V: 1, About: messages.AuditRecord{
		V: 1, Type: messages.AuditCall, Index: -1, Tenant: "_", Session: "s", Batch: "b", Writer: writer, Accepted: accepted,
	}}
	for i := range n {
		all.Lines = append(all.Lines, messages.AuditRecord{V: 1, Type: messages.AuditCall, Index: i, CallID: messages.CallID(fmt.Sprint("c", i)), Tool: strings.Repeat("x", size)})
	}
	return all
}

// alone returns a message with one line, in the form for several lines.
func alone(l messages.AuditRecord) wire.AuditLines {
	return wire.AuditLines{V: 1, About: l, Lines: []messages.AuditRecord{l}}
}

func (l *Log) all(t *testing.T, f Filter) (all []messages.AuditRecord) {
	t.Helper()
	err := l.Read(t.Context(), f, func(e Entry) bool {
		if e.Err != nil {
			t.Error(e.Err)
		}
		all = append(all, e.Line)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func indices(all []messages.AuditRecord) (out []int) {
	for _, l := range all {
		out = append(out, l.Index)
	}
	return out
}

// Several writers end a batch, and some of them stop in the middle: each call of the batch has
// one line.
func TestAppendIsDoneOnce(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	some := func(all wire.AuditLines, indices ...int) wire.AuditLines {
		whole := all.Lines
		all.Lines = nil
		for _, i := range indices {
			all.Lines = append(all.Lines, whole[i])
		}
		return all
	}
	killed := func(k wire.BatchKey, all wire.AuditLines) error { // stores only the first part of the lines, like a writer that is killed then
		all.Token, all.Seq = k.Batch, 7
		first, body := fitting(all, conn.MaxBody())
		if first.Last {
			t.Error("all of it fits into one message")
		}
		_, err := conn.Append(t.Context(), conn.Names().Ended(k.Tenant, k.Session, accepted), nil, body)
		if done, writtenErr := l.Written(t.Context(), k, 7, accepted, 0); done || writtenErr != nil {
			t.Errorf("complete after the first part: %v", writtenErr)
		}
		return err
	}
	// The lines of writer "a" are longer, so it needs more parts. In some stories it stops
	// after its first part.
	for name, story := range map[string]func(wire.BatchKey) error{
		"twice": func(k wire.BatchKey) error {
			return errors.Join(l.Append(t.Context(), k, 7, lines(512, 4000, "a")), l.Append(t.Context(), k, 7, lines(512, 4000, "a")))
		},
		"another goes on": func(k wire.BatchKey) error {
			return errors.Join(killed(k, lines(512, 4000, "a")), l.Append(t.Context(), k, 7, lines(512, 3000, "b")))
		},
		"at once": func(k wire.BatchKey) error {
			var writers sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				writers.Go(func() { errs[i] = l.Append(t.Context(), k, 7, lines(512, 2000+500*i, fmt.Sprint(i))) })
			}
			writers.Wait()
			return errors.Join(errs...)
		},
		"one knew of few": func(k wire.BatchKey) error {
			err := l.Append(t.Context(), k, 7, some(lines(512, 10, "a"), 0, 2, 511))
			if done, writtenErr := l.Written(t.Context(), k, 7, accepted, 512); done || writtenErr != nil {
				t.Errorf("complete with three lines: %v", writtenErr)
			}
			return errors.Join(err, l.Append(t.Context(), k, 7, lines(512, 10, "b")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want []int
			for i := range 512 {
				want = append(want, i)
			}
			key := wire.KeyOf("_", messages.SessionID(name), "b")
			written := func(calls int) bool {
				done, err := l.Written(t.Context(), key, 7, accepted, calls)
				if err != nil {
					t.Fatal(err)
				}
				return done
			}
			if written(0) {
				t.Error("Written reports true before any line is stored")
			}
			if err := story(key); err != nil {
				t.Fatal(err)
			}
			got := indices(l.all(t, Filter{Session: messages.SessionID(name)}))
			slices.Sort(got)
			if !cmp.Equal(got, want) {
				t.Errorf("%d lines: %v", len(got), got)
			}
			if !written(512) || written(513) {
				t.Error("Written: want true for 512 calls and false for 513")
			}
			// A later batch has the same id.
			if err := l.Append(t.Context(), key, 8, lines(1, 1, "later")); err != nil {
				t.Fatal(err)
			}
			if got := l.all(t, Filter{Session: messages.SessionID(name)}); len(got) != 513 {
				t.Errorf("%d lines with the later batch", len(got))
			}
		})
	}
}

// The members that all lines of a message share stand in it once, however long they are.
func TestLinesDoNotRepeat(t *testing.T) {
	all := lines(512, 10, "a")
	short, _ := fitting(all, 1<<30)
	long := strings.Repeat("\x01", 8<<10)
	all.About.Session, all.About.Batch = messages.SessionID(long), messages.BatchID(long)
	_, body := fitting(all, 1<<30)
	if more := len(body) - len(rawjson.MustMarshal(short)); more > 100_000 {
		t.Errorf("ids of 16 KiB make 512 lines %d bytes longer", more)
	}
	some, body := fitting(all, 110_000) // the shared members count towards the limit of a part
	if len(body) > 110_000 || len(some.Lines) < 10 {
		t.Errorf("a part of %d bytes with %d lines", len(body), len(some.Lines))
	}
}

func TestALineThatIsTooLarge(t *testing.T) {
	big := lines(2, 100, "a")
	big.Lines[1].Permission = &messages.Permission{Rule: strings.Repeat("y", 5000)}
	for n, size := range []int{1, 1, 0} {
		some, body := fitting(big, 1000)
		if len(some.Lines) != size || len(body) > 1000 || some.Last != (n == 1) && size > 0 {
			t.Errorf("part %d: %d lines, %d bytes, last %v", n, len(some.Lines), len(body), some.Last)
		}
		if size > 0 && some.Lines[0].CallID != big.Lines[0].CallID {
			t.Errorf("part %d: %+v", n, some.Lines)
		}
		big.Lines = big.Lines[size:]
	}
}

// A coordinator's line about an open call has its own subject. Builds from before that subject
// read it as lines of a batch, so it has the form of such lines. The older form of the line
// stays readable.
func TestLinesOfCoordinatorsAndWorkers(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	key := wire.KeyOf("_", "s", "b").Call(3)
	line := messages.AuditRecord{Type: messages.AuditAsked, Tenant: "_", Session: "s", Batch: "b", Index: 3, Tool: "pay", Approval: "q", Writer: "c1"}
	if err := l.WriteQuestion(t.Context(), key, line); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(t.Context(), line); err != nil { // as a coordinator of the build before does, and a worker
		t.Fatal(err)
	}
	msg, err := conn.Last(t.Context(), conn.Names().Stream(bus.Audit), conn.Names().Question(key))
	if err != nil {
		t.Fatal(err)
	}
	part, err := partOf(msg)
	if err != nil || part.Token != "b" || len(part.Whole()) != 1 || part.Whole()[0].Type != messages.AuditAsked {
		t.Errorf("an earlier build reads %s as %+v, %v", msg.Data, part, err)
	}
	var found []Entry
	if err := l.Read(t.Context(), Filter{Session: "s"}, func(e Entry) bool { found = append(found, e); return true }); err != nil || len(found) != 2 {
		t.Fatalf("%d lines, %v", len(found), err)
	}
	for i, byWorker := range []bool{false, true} {
		e := found[i]
		if e.Err != nil || e.ByWorker != byWorker || e.Key != key.BatchKey || e.Line.Index != 3 || e.Line.Type != messages.AuditAsked || e.Line.Writer != "c1" {
			t.Errorf("line %d: %+v", i, e)
		}
	}
}

// A message that holds no audit line is reported as an error, and the lines after it are still
// read.
func TestWhatIsNoLine(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	key := wire.KeyOf("_", "s", "b")
	for _, body := range []string{"{", "[]", "{}", `"x"`} {
		if _, err := conn.Append(t.Context(), conn.Names().OfCall(wire.VerbAudit, key.Call(0)), nil, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Append(t.Context(), key, 1, lines(1, 1, "a")); err != nil {
		t.Fatal(err)
	}
	bad, good := 0, 0
	err := l.Read(t.Context(), Filter{Session: "s"}, func(e Entry) bool {
		if e.Err != nil {
			bad++
		} else {
			good++
		}
		return true
	})
	if err != nil || bad != 4 || good != 1 {
		t.Errorf("%d and %d lines, %v", bad, good, err)
	}
}
