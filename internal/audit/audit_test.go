package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// When several members need the key of a new fleet at once, one of them makes it.
func TestTheKeyIsMadeOnce(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	conn := connect(t, srv)
	hash := messages.Digest([]byte("{}"))
	hashes := make([]string, 8)
	var members sync.WaitGroup
	for i := range hashes {
		members.Go(func() {
			h, err := open(t, conn, Config{}).Hasher(t.Context())
			if err != nil {
				t.Error(err)
			}
			hashes[i] = h.Of("_", hash)
		})
	}
	members.Wait()
	if len(hashes[0]) != 16 || len(slices.Compact(hashes)) != 1 || hashes[0] == hash[:16] {
		t.Errorf("hashes %v", hashes)
	}
	given, err := open(t, conn, Config{Key: testKey}).Hasher(t.Context())
	if err != nil || given.Of("_", hash) != Keyed([]byte(testKey)).Of("_", hash) {
		t.Errorf("with a key that is given: %v", err)
	}
	plain, err := open(t, conn, Config{Plain: true}).Hasher(t.Context())
	if err != nil || plain.Of("_", hash) != hash[:16] {
		t.Errorf("plain: %v", err)
	}
	if _, err := New(conn, Config{Key: testKey[:31], Include: []string{"x"}}); err == nil || !strings.Contains(err.Error(), "audit.key has 31 bytes") || !strings.Contains(err.Error(), "audit.include") {
		t.Errorf("a short key and a bad entry: %v", err)
	}
}

// A deleted key is made again. Hashes with the new key match none that were made with the old one.
func TestADeletedKeyIsMadeAgain(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	before, err := open(t, conn, Config{}).Hasher(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := conn.Bucket(t.Context(), conn.Names().Stream(bus.BucketKeys))
	if err == nil {
		err = keys.Delete(t.Context(), "audit")
	}
	if err != nil {
		t.Fatal(err)
	}
	after, err := open(t, conn, Config{}).Hasher(t.Context())
	if d := messages.Digest(nil); err != nil || after.Of("_", d) == before.Of("_", d) {
		t.Errorf("the same hashes with another key: %v", err)
	}
}

// The bucket of the key is lost while members run. The first member that reads the key again
// decides: if it knows the old key, it stores that key again. A member that has another key takes
// over the stored one.
func TestALostKeyIsOneAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn := connect(t, srv)
		hash := func(l *Log) string {
			h, err := l.Hasher(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return h.Of("_", messages.Digest(nil))
		}
		lose := func() {
			keys, err := conn.Bucket(t.Context(), conn.Names().Stream(bus.BucketKeys))
			if err == nil {
				err = keys.Delete(t.Context(), "audit")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		old := open(t, conn, Config{})
		first := hash(old)
		lose()
		other := open(t, conn, Config{})
		if hash(other) == first || hash(old) != first {
			t.Error("the key was not lost, or is read each time")
		}
		time.Sleep(readAgain + time.Second) // simulated
		second := hash(old)
		if second != hash(other) || second == first {
			t.Error("two members use different keys after readAgain")
		}
		lose()
		time.Sleep(readAgain + time.Second)
		if hash(old) != second || hash(open(t, conn, Config{})) != second {
			t.Error("a member knows the key, and it is not stored again")
		}
		srv.Stop()
		time.Sleep(readAgain + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if h, err := old.Hasher(ctx); err != nil || h.Of("_", messages.Digest(nil)) != second {
			t.Errorf("a key that cannot be read again is forgotten: %v", err)
		}
	})
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

// alone returns a message with one line, in the form that can hold several.
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

// However many writers end a batch, and wherever some of them stop, each of its calls has one line.
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
	killed := func(k wire.BatchKey, all wire.AuditLines) error { // stores the first part of the lines, as a writer that is killed then
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
	// The lines of one writer are longer, so it needs more parts; another stops after its first
	// part.
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

// What all lines have in common is in a message once, however long it is.
func TestLinesDoNotRepeat(t *testing.T) {
	all := lines(512, 10, "a")
	short, _ := fitting(all, 1<<30)
	long := strings.Repeat("\x01", 8<<10)
	all.About.Session, all.About.Batch = messages.SessionID(long), messages.BatchID(long)
	_, body := fitting(all, 1<<30)
	if more := len(body) - len(rawjson.MustMarshal(short)); more > 100_000 {
		t.Errorf("ids of 16 KiB make 512 lines %d bytes longer", more)
	}
	some, body := fitting(all, 110_000) // what lines have in common counts towards the limit of a part
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

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// Filters select the same lines as a check of every line.
func TestFilters(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{Plain: true})
	r := rand.New(rand.NewPCG(5, 5))
	tenants, sessions := []messages.TenantID{"_", "acme"}, []messages.SessionID{"s1", "a session"}
	batches, calls := []messages.BatchID{"b1", "b 2"}, []messages.CallID{"c0", "c\"1<\u2028\\/\x01é", ""}
	tools, people, workers := []string{"look", "pay"}, []string{"ann", "bob"}, []string{"w1", "w2"}
	statuses := []messages.Status{messages.StatusOK, messages.StatusDenied}
	types := []messages.AuditType{messages.AuditCall, messages.AuditAsked, messages.AuditDecided}
	for n := range 300 {
		line := messages.AuditRecord{
			V: 1, Type: pick(r, types...), Tenant: pick(r, tenants...), Session: pick(r, sessions...), Batch: pick(r, batches...),
			CallID: pick(r, calls...), Tool: pick(r, tools...), Worker: pick(r, workers...), Status: pick(r, statuses...), TraceID: pick(r, "t1", ""), Round: pick(r, 0, 1, 2),
		}
		if r.IntN(2) == 0 {
			line.Permission = &messages.Permission{Effect: pick(r, "allow", "ask"), By: []string{pick(r, people...)}}
		}
		if r.IntN(4) == 0 && line.Type != messages.AuditCall {
			line.Decision = &messages.Decision{By: pick(r, people...), Input: json.RawMessage(`"canary"`)}
		}
		err := error(nil)
		if key := wire.KeyOf(string(line.Tenant), line.Session, line.Batch); line.Type == messages.AuditCall {
			err = l.Append(t.Context(), key, uint64(n), alone(line))
		} else if n%2 == 0 {
			err = l.WriteQuestion(t.Context(), key.Call(line.Index), line)
		} else {
			err = l.Write(t.Context(), line)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type stored struct {
		Entry
		text string
	}
	var everything []stored
	if err := l.Read(t.Context(), Filter{}, func(e Entry) bool {
		everything = append(everything, stored{e, string(rawjson.MustMarshal(e.Line))})
		return true
	}); err != nil || len(everything) != 300 {
		t.Fatalf("%d lines, %v", len(everything), err)
	}
	none := func(p **messages.Permission) *messages.Permission {
		if *p == nil {
			return &messages.Permission{}
		}
		return *p
	}
	for range 200 {
		f := Filter{
			Tenant: pick(r, "", "_", "acme"), Session: pick(r, "", "", sessions[0], sessions[1]), Batch: pick(r, "", "", batches[0], batches[1]),
			Call: pick(r, "", "", calls[0], calls[1]), Tool: pick(r, "", "", "", "pay"), Status: pick(r, "", "", "", statuses[1]), Type: pick(r, "", "", "", types[0], types[2]),
			Effect: pick(r, "", "", "", "ask"), Approver: pick(r, "", "", "", "ann"), Worker: pick(r, "", "", "", "w2"), Trace: pick(r, "", "", "", "t1"), Round: pick(r, 0, 0, 0, 2),
		}
		if r.IntN(3) == 0 {
			f.Since = everything[r.IntN(300)].Stored
		}
		if r.IntN(3) == 0 {
			f.Until = everything[r.IntN(300)].Stored
		}
		var want, got []string
		for _, e := range everything {
			line := e.Line
			is := func(wanted, has string) bool { return wanted == "" || wanted == has }
			by := none(&line.Permission).By
			if line.Decision != nil {
				by = append(slices.Clone(by), line.Decision.By)
			}
			if is(f.Tenant, string(line.Tenant)) && is(string(f.Session), string(line.Session)) && is(string(f.Batch), string(line.Batch)) &&
				is(string(f.Call), string(line.CallID)) && is(f.Tool, line.Tool) && is(string(f.Status), string(line.Status)) && is(string(f.Type), string(line.Type)) &&
				is(f.Effect, none(&line.Permission).Effect) && (f.Approver == "" || slices.Contains(by, f.Approver)) && is(f.Worker, line.Worker) && is(f.Trace, line.TraceID) && (f.Round == 0 || f.Round == line.Round) &&
				!e.Stored.Before(f.Since) && (f.Until.IsZero() || e.Stored.Before(f.Until)) {
				want = append(want, e.text)
			}
		}
		for _, line := range l.all(t, f) {
			got = append(got, string(rawjson.MustMarshal(line)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", f, diff)
		}
	}
	for _, e := range everything {
		if strings.Contains(e.text, "canary") {
			t.Errorf("the arguments of an edit are on record: %s", e.text)
		}
	}
}

// A coordinator's line about an open call is on a subject of its own. A build before that subject
// reads it as lines of a batch, so it has their form. The old form stays readable.
func TestLinesOfCoordinatorsAndWorkers(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	key := wire.KeyOf("_", "s", "b").Call(3)
	line := messages.AuditRecord{Type: messages.AuditAsked, Tenant: "_", Session: "s", Batch: "b", Index: 3, Tool: "pay", Approval: "q", Writer: "c1"}
	if err := l.WriteQuestion(t.Context(), key, line); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(t.Context(), line); err != nil { // as a coordinator of the build before, and as a worker
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

// A message that holds no line is reported as an error, and the lines after it are still read.
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

// Read gets many lines a page at a time, and stops when each returns false.
func TestReadStops(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	for n := range 3 {
		if err := l.Append(t.Context(), wire.KeyOf("_", "s", "b"), uint64(n), lines(300, 10, "a")); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	if err := l.Read(t.Context(), Filter{}, func(Entry) bool { seen++; return seen < 450 }); err != nil || seen != 450 {
		t.Errorf("%d lines, %v", seen, err)
	}
}

// A follower gets every line once and in order: earlier ones, those that come while it reads, and
// those that come while its connection is down.
func TestFollow(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn := connect(t, srv)
		l := open(t, conn, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		written := 0
		write := func(n int) {
			t.Helper()
			for range n {
				deadline := time.Now().Add(time.Minute)
				for {
					err := l.Append(t.Context(), wire.KeyOf("_", "s", "b"), uint64(written), alone(messages.AuditRecord{Type: messages.AuditCall, Index: 0, Attempt: written}))
					if err == nil {
						break
					}
					if time.Now().After(deadline) {
						t.Fatal(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				written++
			}
		}
		write(20)
		var mu sync.Mutex
		var got []int
		ended := make(chan error, 1)
		following := connect(t, srv)
		go func() {
			ended <- open(t, following, Config{}).Follow(ctx, Filter{Session: "s"}, func(e Entry) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, e.Line.Attempt)
			})
		}()
		has := func(n int, within time.Duration) {
			t.Helper()
			for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
				mu.Lock()
				have := len(got)
				mu.Unlock()
				if have >= n {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d lines after %v, want %d", have, within, n)
				}
			}
		}
		has(20, time.Second)
		write(5)
		has(25, 200*time.Millisecond)
		for range 3 {
			srv.Stop()
			time.Sleep(3 * time.Second)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			write(10)
			has(written, 10*time.Second)
		}
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for i, n := range got {
			if i != n {
				t.Fatalf("line %d is %d: %v", i, n, got)
			}
		}
		if len(got) != written {
			t.Errorf("%d lines of %d", len(got), written)
		}
	})
}

func TestFollowWithoutAStream(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := open(t, conn, Config{}).Follow(t.Context(), Filter{}, func(Entry) {}); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("%v, want no such stream", err)
	}
}
