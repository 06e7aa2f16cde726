package audit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// turn is a batch of session s that ends.
type turn struct {
	id   string
	seq  uint64
	at   time.Duration // time of acceptance, counted from the variable accepted
	who  string
	many int
	size int
}

func (b turn) key() wire.BatchKey { return wire.KeyOf("_", "s", messages.BatchID(b.id)) }

func (b turn) lines() wire.AuditLines {
	all := lines(max(b.many, 3), b.size, b.who)
	all.About.Batch, all.About.Accepted = messages.BatchID(b.id), accepted.Add(b.at)
	return all
}

func (l *Log) put(t *testing.T, b turn) {
	t.Helper()
	if err := l.Append(t.Context(), b.key(), b.seq, b.lines()); err != nil {
		t.Fatal(err)
	}
	written, err := l.Written(t.Context(), b.key(), b.seq, accepted.Add(b.at), max(b.many, 3))
	if err != nil || !written {
		t.Errorf("batch %+v is not on record: %v", b, err)
	}
}

// tally returns the number of lines of each batch and writer.
func (l *Log) tally(t *testing.T) map[string]int {
	t.Helper()
	tally := map[string]int{}
	for _, line := range l.all(t, Filter{Session: "s"}) {
		tally[fmt.Sprint(line.Batch, " by ", line.Writer)]++
	}
	return tally
}

// The batches of a session end one after another, and several writers store the lines of each
// batch at once: each call has one line. Batches that were accepted in the same ten minutes
// share a subject.
func TestASessionHasOneSubject(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	const batches = 200
	for n := range batches {
		var writers sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			b := turn{id: fmt.Sprint("b", n), seq: uint64(10 + 3*n), at: time.Duration(n), who: fmt.Sprint(i)}
			writers.Go(func() { errs[i] = l.Append(t.Context(), b.key(), b.seq, b.lines()) })
		}
		writers.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	msgs, err := conn.All(t.Context(), conn.Names().Stream(bus.Audit), conn.Names().Ended("_", "s", accepted))
	if err != nil || len(msgs) != batches {
		t.Errorf("%d messages at the session's subject, %v", len(msgs), err)
	}
	var at []string
	for _, line := range l.all(t, Filter{}) {
		at = append(at, fmt.Sprint(line.Batch, " ", line.Index))
	}
	for n := range batches {
		if want := []string{fmt.Sprint("b", n, " 0"), fmt.Sprint("b", n, " 1"), fmt.Sprint("b", n, " 2")}; !slices.Equal(at[3*n:min(3*n+3, len(at))], want) {
			t.Fatalf("lines %v, want %v", at[3*n:min(3*n+3, len(at))], want)
		}
	}
	if got := l.all(t, Filter{Batch: "b7"}); len(at) != 3*batches || len(got) != 3 {
		t.Errorf("%d lines, and %d of one batch", len(at), len(got))
	}
}

// A process wrote the newest lines of a session: it writes the next ones without reading
// first. If another process has written in between, the first one gets a conflict and tries
// again, and no line is lost.
func TestTheEndOfASessionIsRemembered(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	conn := connect(t, srv)
	one, other := open(t, conn, Config{}), open(t, connect(t, srv), Config{})
	want := map[string]int{}
	for n := range 12 {
		l, who := one, "one"
		if n%4 == 3 {
			l, who = other, "other"
		}
		b := turn{id: fmt.Sprint("b", n), seq: uint64(n + 1), at: time.Duration(n) * time.Second, who: who}
		want[b.id+" by "+who] = 3
		before := conn.JetStream().Conn().Stats().OutMsgs
		if err := l.Append(t.Context(), b.key(), b.seq, b.lines()); err != nil {
			t.Fatal(err)
		}
		if sent := conn.JetStream().Conn().Stats().OutMsgs - before; n%4 != 3 && n%4 != 0 && sent != 1 {
			t.Errorf("batch %d took %d messages, want its lines alone", n, sent)
		}
		again := turn{id: b.id, seq: b.seq, at: b.at, who: "again"}
		if err := other.Append(t.Context(), again.key(), again.seq, again.lines()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, one.tally(t)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// A writer of a batch's lines is late: later batches of the session already have their lines.
// It writes nothing, because another writer stored the lines before the batch left the log.
func TestAWriterThatComesLate(t *testing.T) {
	l := open(t, connect(t, natstest.Server(t, natstest.Fast)), Config{})
	late := turn{id: "b1", seq: 1, who: "late"}
	want := map[string]int{}
	for n := range 4 {
		b := turn{id: fmt.Sprint("b", n+1), seq: uint64(n + 1), at: time.Duration(n) * time.Second, who: "first"}
		l.put(t, b)
		l.put(t, late)
		want[b.id+" by first"] = 3
	}
	if diff := cmp.Diff(want, l.tally(t)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// A batch left the log before all its lines were stored, and a later batch of its session has
// its lines. A writer that still knows the first batch adds the missing lines, once. The
// batches after that do not count as late.
func TestWhatALaterBatchHides(t *testing.T) {
	for name, parts := range map[string]int{"nothing is stored": 0, "one part is stored": 1} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, natstest.Server(t, natstest.Fast))
			l := open(t, conn, Config{})
			b := turn{id: "b", seq: 2, at: time.Second, who: "w", many: 512, size: 4000}
			l.put(t, turn{id: "a", seq: 1, who: "w"})
			subject := conn.Names().Ended("_", "s", accepted)
			if parts > 0 {
				all := b.lines()
				all.Token, all.Seq = b.key().Batch, b.seq
				_, part := fitting(all, conn.MaxBody())
				if _, err := conn.Append(t.Context(), subject, nil, part); err != nil {
					t.Fatal(err)
				}
			}
			l.put(t, turn{id: "c", seq: 3, at: 2 * time.Second, who: "w"})
			if done, err := l.Written(t.Context(), b.key(), b.seq, accepted.Add(b.at), 512); done || err != nil {
				t.Errorf("Written reports true although lines are missing: %v", err)
			}
			var writers sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				late := b
				late.size += 500 * i
				writers.Go(func() { errs[i] = l.Append(t.Context(), late.key(), late.seq, late.lines()) })
			}
			writers.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			l.put(t, b)
			newest, err := conn.Last(t.Context(), conn.Names().Stream(bus.Audit), subject)
			if part, partErr := partOf(newest); err != nil || partErr != nil || part.Token != "c" {
				t.Errorf("the newest at the session's subject is of %s, %v %v", part.Token, err, partErr)
			}
			l.put(t, turn{id: "d", seq: 4, at: 3 * time.Second, who: "w"})
			if diff := cmp.Diff(map[string]int{"a by w": 3, "b by w": 512, "c by w": 3, "d by w": 3}, l.tally(t)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// A batch whose id was used before is refused. The lines of the refusal and the missing lines
// of the earlier batch go to the same overflow subject: each batch has its lines once.
func TestWhatIsMissingBesideAConflict(t *testing.T) {
	l := open(t, connect(t, natstest.Server(t, natstest.Fast)), Config{})
	again := turn{id: "b", seq: 5, at: 5 * time.Second, who: "again"}
	if err := l.AppendUnordered(t.Context(), again.key(), again.seq, again.lines()); err != nil {
		t.Fatal(err)
	}
	l.put(t, turn{id: "c", seq: 3, at: 3 * time.Second, who: "w"})
	for range 2 {
		l.put(t, turn{id: "b", seq: 2, at: 2 * time.Second, who: "w"})
		if err := l.AppendUnordered(t.Context(), again.key(), again.seq, again.lines()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]int{"b by again": 3, "b by w": 3, "c by w": 3}, l.tally(t)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// Writers store the lines of the oldest batch, come late, or are cancelled in the middle:
// every line is stored once.
func TestWritersInAnyOrder(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	batches, many := 8, 30
	if testing.Short() {
		batches = 4
	}
	var on atomic.Int64 // number of the newest batch that has left the log
	var writers sync.WaitGroup
	for w := range 6 {
		l := open(t, connect(t, srv), Config{})
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 99))
			for done := on.Load(); done < int64(batches) && t.Context().Err() == nil; done = on.Load() {
				n := done + 1
				if late := done > 0 && random.IntN(3) == 0; late {
					n = 1 + random.Int64N(done)
				}
				b := turn{id: fmt.Sprint("b", n), seq: uint64(n), at: time.Duration(n) * time.Second, who: fmt.Sprint(w), many: many, size: 20000 + 10000*random.IntN(6)}
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(2) == 0 {
					time.AfterFunc(time.Duration(random.IntN(12000))*time.Microsecond, cancel)
				}
				if err := l.Append(ctx, b.key(), b.seq, b.lines()); err == nil {
					on.CompareAndSwap(n-1, n)
				}
				cancel()
			}
		})
	}
	writers.Wait()
	got := map[string]int{}
	for _, line := range open(t, connect(t, srv), Config{}).all(t, Filter{Session: "s"}) {
		got[fmt.Sprint(line.Batch, " ", line.Index)]++
	}
	for n := range batches {
		for i := range many {
			if at := fmt.Sprint("b", n+1, " ", i); got[at] != 1 {
				t.Fatalf("%d lines of call %s", got[at], at)
			}
		}
	}
}

// A session is used again after a while: its new lines have another subject, so writers do not
// read the old lines.
func TestASessionComesBack(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	want := map[string]int{}
	for n := range 6 {
		b := turn{id: fmt.Sprint("b", n), seq: uint64(n + 1), at: time.Duration(n) * 5 * time.Minute, who: "w"}
		l.put(t, b)
		want[b.id+" by w"] = 3
	}
	subjects := map[string]int{}
	msgs, err := conn.All(t.Context(), conn.Names().Stream(bus.Audit), conn.Names().All(wire.VerbAudit))
	for _, m := range msgs {
		subjects[m.Subject]++
	}
	if err != nil || len(subjects) != 3 || len(msgs) != 6 {
		t.Errorf("%v, %v", subjects, err)
	}
	if diff := cmp.Diff(want, l.tally(t)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// Workers may write lines about open calls. A worker writes a line about the end of a batch to
// such a subject: it is not part of the audit log.
func TestNobodyEndsABatchAtTheSubjectOfACall(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	l.put(t, turn{id: "b", seq: 1, who: "w"})
	forged := turn{id: "b", many: 1, who: "forger"}.lines()
	forged.Token, forged.Seq, forged.Last = "b", 1, true
	line := forged.Whole()[0]
	refused := line
	refused.Type = messages.AuditBatchRefused
	mine := wire.KeyOf("_", "s", "mine")
	n := 0
	for _, subject := range []string{conn.Names().OfCall(wire.VerbAudit, mine.Call(0)), conn.Names().Of(wire.VerbAudit, mine) + ".lines", conn.Names().Of(wire.VerbAudit, mine) + ".aside"} {
		for _, body := range []any{forged, line, refused} {
			n++
			if _, err := conn.Append(t.Context(), subject, nil, rawjson.MustMarshal(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	asked := line
	asked.Type, asked.Batch = messages.AuditAsked, "mine"
	if err := l.Write(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	if err := l.Read(t.Context(), Filter{Session: "s"}, func(e Entry) bool {
		got[fmt.Sprint(e.Key.Batch, " ", e.Line.Type, " ", e.Err != nil)]++
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"b call false": 3, "mine approval_asked false": 1, "mine  true": n}, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// One writer stops between two parts, and the next one after its first part: the third writer
// stores only the missing lines.
func TestPartsOfSeveralWriters(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	l.put(t, turn{id: "b0", seq: 6, who: "before"})
	b := turn{id: "b", seq: 7, many: 512}
	killed := func(who string, size, parts int) {
		b.who, b.size = who, size
		all, subject := b.lines(), conn.Names().Ended("_", "s", accepted)
		all.Token, all.Seq = b.key().Batch, b.seq
		for range parts {
			found, err := l.findOrdered(t.Context(), b.key(), positionOf(all))
			if err != nil {
				t.Fatal(err)
			}
			all.Lines, all.Earlier = without(all.Lines, found.indices), found.indices
			part, body := fitting(all, conn.MaxBody())
			if part.Last {
				t.Fatalf("all lines by %s fit", who)
			}
			if _, err := conn.CompareAndSet(t.Context(), subject, nil, body, found.newest); err != nil {
				t.Fatal(err)
			}
			if done, err := l.Written(t.Context(), b.key(), b.seq, accepted, 0); done || err != nil {
				t.Errorf("complete after a part by %s: %v", who, err)
			}
		}
	}
	killed("one", 8000, 2)
	killed("two", 6000, 1)
	b.who = "three"
	l.put(t, b)
	l.put(t, b)
	l.put(t, turn{id: "b2", seq: 8, at: time.Second, who: "after"})
	got := indices(l.all(t, Filter{Batch: "b"}))
	slices.Sort(got)
	if len(got) != 512 || len(slices.Compact(got)) != 512 {
		t.Errorf("%d lines", len(got))
	}
	for _, who := range []string{"one", "two", "three"} {
		if l.tally(t)["b by "+who] == 0 {
			t.Errorf("no line by %s", who)
		}
	}
}

// The log is made again, so its sequences begin anew. Lines of a batch in the old log do not
// count for a batch in the new log, even if session, id and sequence are equal.
func TestALogThatWasMadeAnew(t *testing.T) {
	for name, seq := range map[string]uint64{"smaller": 2, "equal": 7, "larger": 9} {
		t.Run(name, func(t *testing.T) {
			l := open(t, connect(t, natstest.Server(t, natstest.Fast)), Config{})
			l.put(t, turn{id: "b", seq: 7, who: "before"})
			anew := turn{id: "b", seq: seq, at: time.Hour, who: "after"}
			if done, err := l.Written(t.Context(), anew.key(), anew.seq, accepted.Add(anew.at), 3); done || err != nil {
				t.Errorf("Written takes the lines of the old log's batch for those of the new one: %v", err)
			}
			l.put(t, anew)
			l.put(t, turn{id: "c", seq: seq + 1, at: 2 * time.Hour, who: "after"})
			l.put(t, anew) // now it comes late
			if diff := cmp.Diff(map[string]int{"b by before": 3, "b by after": 3, "c by after": 3}, l.tally(t)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// The log gets a new leader whose clock is behind, so a later batch has an earlier time: each
// batch still has its lines once.
func TestClocksOfTwoLeaders(t *testing.T) {
	l := open(t, connect(t, natstest.Server(t, natstest.Fast)), Config{})
	l.put(t, turn{id: "one", seq: 1, at: 5 * time.Millisecond, who: "w"})
	l.put(t, turn{id: "two", seq: 2, at: 0, who: "w"})
	l.put(t, turn{id: "three", seq: 3, at: 6 * time.Millisecond, who: "w"})
	l.put(t, turn{id: "one", seq: 1, at: 5 * time.Millisecond, who: "late"})
	if diff := cmp.Diff(map[string]int{"one by w": 3, "two by w": 3, "three by w": 3}, l.tally(t)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// A message in the audit log cannot be read: it blocks no writer, and hides no lines of any
// batch.
func TestForeignBytesInTheAuditLog(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	for n, body := range []string{"", "{", "null", "[]", `{}`, `{"seq":"x"}`, "\xff\x00"} {
		if _, err := conn.Append(t.Context(), conn.Names().Ended("_", "s", accepted), nil, []byte(body)); err != nil {
			t.Fatal(err)
		}
		l.put(t, turn{id: fmt.Sprint("b", n), seq: uint64(n + 1), at: time.Duration(n), who: "w"})
	}
	unread, lines := 0, 0
	if err := l.Read(t.Context(), Filter{Session: "s"}, func(e Entry) bool {
		if e.Err != nil {
			unread++
		} else {
			lines++
		}
		return true
	}); err != nil || unread != 7 || lines != 21 {
		t.Errorf("%d messages that cannot be read and %d lines, %v", unread, lines, err)
	}
}

// A batch is refused before its turn: its lines are stored once. Earlier batches of the
// session still count as batches without lines.
func TestOutOfTurn(t *testing.T) {
	l := open(t, connect(t, natstest.Server(t, natstest.Fast)), Config{})
	aside := func(seq uint64) {
		t.Helper()
		refused := turn{id: "one", seq: seq, at: time.Duration(seq) * time.Second, who: "aside"}
		all := refused.lines()
		all.Lines = all.Lines[:1]
		if err := errors.Join(l.AppendUnordered(t.Context(), refused.key(), seq, all), l.AppendUnordered(t.Context(), refused.key(), seq, all)); err != nil {
			t.Fatal(err)
		}
	}
	l.put(t, turn{id: "one", seq: 1, at: time.Second, who: "w"})
	aside(3)
	aside(4)
	l.put(t, turn{id: "two", seq: 2, at: 2 * time.Second, who: "w"})
	if diff := cmp.Diff(map[string]int{"one by w": 3, "two by w": 3, "one by aside": 2}, l.tally(t)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if got := l.all(t, Filter{Session: "s", Batch: "one"}); len(got) != 5 {
		t.Errorf("%d lines of the id", len(got))
	}
}

// An older version stored lines on a subject for each batch: they are still read.
func TestAnOldAuditLineIsRead(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	key := wire.KeyOf("_", "s", "b")
	if _, err := conn.Append(t.Context(), conn.Names().Of(wire.VerbAudit, key)+".ended.7.0", nil, rawjson.MustMarshal(lines(3, 1, "old"))); err != nil {
		t.Fatal(err)
	}
	if got := l.all(t, Filter{Key: key}); len(got) != 3 {
		t.Errorf("%d lines", len(got))
	}
}

// The context of a writer ends: Append stops. The next Append continues with the lines that
// are missing.
func TestAppendHeedsItsContext(t *testing.T) {
	l := open(t, connect(t, natstest.Server(t, natstest.Fast)), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := turn{id: "b", seq: 1, who: "w"}
	if err := l.Append(ctx, b.key(), b.seq, b.lines()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	l.put(t, b)
}
