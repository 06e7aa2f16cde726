package bus_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func TestAppendErrors(t *testing.T) {
	srv := natstest.Server(t)
	c := bustest.Connect(t, srv)
	n := c.Names()
	if _, err := c.Append(t.Context(), n.Of(wire.VerbBatch, bustest.Key("s", "b")), nil, nil); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("before Provision: %v", err)
	}
	p := provision.Config{MaxBatches: 2, MaxBytes: map[string]int64{bus.Calls: 4096}}
	if err := provision.Ensure(t.Context(), c, p); err != nil {
		t.Fatal(err)
	}
	batch := func(b string) error {
		_, err := c.Append(t.Context(), n.Of(wire.VerbBatch, bustest.Key("s", b)), nil, []byte("{}"))
		return err
	}
	record := func(size int) error {
		_, err := c.Append(t.Context(), n.OfCall(wire.VerbCall, bustest.Key("s", "b").Call(0)), nil, make([]byte, size))
		return err
	}
	headers := func(size int) error {
		_, err := c.Append(t.Context(), n.Of(wire.VerbFinal, bustest.Key("s", "b")), bus.Header{"X": {strings.Repeat("x", size)}}, nil)
		return err
	}
	for _, step := range []struct {
		what     string
		got      error
		want     error
		terminal bool
	}{
		{"first", batch("1"), nil, false},
		{"same subject again (10077)", batch("1"), bus.ErrExists, true},
		{"second", batch("2"), nil, false},
		{"more messages than the stream takes (10077)", batch("3"), bus.ErrFull, false},
		{"same subject in a full stream", batch("2"), bus.ErrExists, true},
		{"more bytes than the stream takes (10077)", record(5000), bus.ErrFull, false},
		{"over the server's payload", record(c.MaxPayload() + 1), bus.ErrTooLarge, true},
		{"headers over 64 KB (10097)", headers(70_000), bus.ErrTooLarge, true},
	} {
		if !errors.Is(step.got, step.want) || bus.IsTerminal(step.got) != step.terminal {
			t.Errorf("%s: %v (terminal: %v), want %v (%v)", step.what, step.got, bus.IsTerminal(step.got), step.want, step.terminal)
		}
	}
}

func TestAMessageOverTheStreamsSize(t *testing.T) {
	srv := natstest.Server(t)
	c := bustest.Connect(t, srv)
	if _, err := bustest.Raw(t, srv).CreateStream(t.Context(), jetstream.StreamConfig{Name: "SMALL", Subjects: []string{"small"}, MaxMsgSize: 10}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(t.Context(), "small", nil, make([]byte, 11)); !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("10054: %v", err)
	}
}

func TestCompareAndSet(t *testing.T) {
	c := bustest.Fleet(t)
	stream := c.Names().Stream(bus.Calls)
	subject := c.Names().OfCall(wire.VerbCall, bustest.Key("s", "b").Call(0))
	h := bus.Header{"traceparent": {"00-1"}}

	first, err := c.CompareAndSet(t.Context(), subject, h, []byte("claimed"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(h) != 1 {
		t.Errorf("the caller's headers were changed: %v", h)
	}
	if _, err := c.CompareAndSet(t.Context(), subject, nil, nil, 0); !errors.Is(err, bus.ErrConflict) || !bus.IsTerminal(err) {
		t.Errorf("create twice (10071): %v", err)
	}
	// A record of another call changes nothing, because the expected sequence is that of the
	// message's own subject.
	other := c.Names().OfCall(wire.VerbCall, bustest.Key("s", "b").Call(1))
	if _, err := c.CompareAndSet(t.Context(), other, nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	second, err := c.CompareAndSet(t.Context(), subject, nil, []byte("ended"), first)
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Last(t.Context(), stream, subject)
	if err != nil || m.Seq != second || m.Subject != subject || string(m.Data) != "ended" || time.Since(m.Time) > time.Minute {
		t.Errorf("newest record is %+v, %v; want sequence %d", m, err, second)
	}
	m, err = c.First(t.Context(), stream, c.Names().All(wire.VerbCall))
	if err != nil || m.Seq != first || m.Header.Get("Traceparent") != "00-1" {
		t.Errorf("oldest record is %+v, %v; want sequence %d", m, err, first)
	}
}

func TestOneWriterWins(t *testing.T) {
	c := bustest.Fleet(t)
	for round := range 30 {
		subject := c.Names().OfCall(wire.VerbCall, bustest.Key("s", "b").Call(round))
		var last uint64
		for range 3 { // the first record of the subject, and then two after it
			var winners []uint64
			var mu sync.Mutex
			var writers sync.WaitGroup
			for range 16 {
				writers.Go(func() {
					seq, err := c.CompareAndSet(t.Context(), subject, nil, []byte("mine"), last)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						winners = append(winners, seq)
					} else if !errors.Is(err, bus.ErrConflict) {
						t.Error(err)
					}
				})
			}
			writers.Wait()
			if len(winners) != 1 {
				t.Fatalf("%d writers won on %s over %d", len(winners), subject, last)
			}
			last = winners[0]
		}
	}
}

func TestSendAndDelete(t *testing.T) {
	c := bustest.Fleet(t)
	stream, subject := c.Names().Stream(bus.Jobs), c.Names().Lane(false, "default", bustest.Key("s", "b").Call(0))
	for range 2 { // the stream refuses the second message, and Send returns no error
		if err := c.Send(subject, nil, []byte("job")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var jobs []bus.Msg
	var err error
	// Send does not wait for an acknowledgement. So read until the job is stored.
	for len(jobs) == 0 && err == nil && t.Context().Err() == nil {
		jobs, err = c.All(t.Context(), stream, c.Names().All(wire.VerbRead))
	}
	if err != nil || len(jobs) != 1 || string(jobs[0].Data) != "job" {
		t.Fatalf("jobs: %+v, %v", jobs, err)
	}
	for range 2 {
		if err := c.Delete(t.Context(), stream, jobs[0].Seq); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if err := c.Delete(t.Context(), stream, 4711); err != nil {
		t.Errorf("delete a message that never existed: %v", err)
	}
	if err := c.Delete(t.Context(), "NO_SUCH", 1); err == nil {
		t.Error("deleted from a stream that is not there")
	}
}

func TestReadingWhatIsNotThere(t *testing.T) {
	c := bustest.Fleet(t)
	stream := c.Names().Stream(bus.Calls)
	subject := c.Names().OfCall(wire.VerbCall, bustest.Key("s", "b").Call(0))
	for what, read := range map[string]func(stream string) (any, error){
		"last":  func(s string) (any, error) { return c.Last(t.Context(), s, subject) },
		"first": func(s string) (any, error) { return c.First(t.Context(), s, subject) },
	} {
		if _, err := read(stream); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := read("NO_SUCH"); !errors.Is(err, bus.ErrNoStream) {
			t.Errorf("%s of no stream: %v", what, err)
		}
	}
	for what, read := range map[string]func(stream string) ([]bus.Msg, error){
		"last of each":             func(s string) ([]bus.Msg, error) { return c.LastOfEach(t.Context(), s, subject) },
		"all":                      func(s string) ([]bus.Msg, error) { return c.All(t.Context(), s, subject) },
		"last of each of nothing":  func(string) ([]bus.Msg, error) { return c.LastOfEach(t.Context(), stream) },
		"last of each, 600 absent": func(string) ([]bus.Msg, error) { return c.LastOfEach(t.Context(), stream, calls(c, 600)...) },
	} {
		if got, err := read(stream); err != nil || len(got) != 0 {
			t.Errorf("%s: %d messages, %v", what, len(got), err)
		}
		if _, err := read("NO_SUCH"); err != nil && !errors.Is(err, bus.ErrNoStream) {
			t.Errorf("%s of no stream: %v", what, err)
		}
	}
}

// calls returns the record subjects of n calls.
func calls(c *bus.Conn, n int) []string {
	subjects := make([]string, n)
	for i := range subjects {
		subjects[i] = c.Names().OfCall(wire.VerbCall, bustest.Key("session", "batch").Call(i))
	}
	return subjects
}

// fill stores records for all subjects in turn, in so many rounds. Each record holds its
// round, and has size bytes.
func fill(t *testing.T, c *bus.Conn, rounds, size int, subjects []string) {
	t.Helper()
	for round := range rounds {
		body := make([]byte, max(size, 8))
		binary.BigEndian.PutUint64(body, uint64(round))
		for _, s := range subjects {
			if err := c.Send(s, bus.Header{"Round": {fmt.Sprint(round)}}, body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := c.Append(t.Context(), c.Names().OfCall(wire.VerbCall, bustest.Key("other", "batch").Call(0)), nil, nil); err != nil {
		t.Fatal(err)
	}
}

func TestLastOfEach(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	stream, subjects := c.Names().Stream(bus.Calls), calls(c, messages.MaxCalls)
	fill(t, c, 3, 8, subjects)
	wildcard := c.Names().Of(wire.VerbCall, bustest.Key("session", "batch")) + ".*"
	for what, filters := range map[string][]string{"512 subjects": subjects, "a wildcard": {wildcard}, "both halves and absent ones": append(calls(c, 700), "toolfleet.plan.x.y.z")} {
		got, err := c.LastOfEach(t.Context(), stream, filters...)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		checkNewest(t, what, got, subjects, 2)
	}
}

func TestLastOfEachBeyondTheServersLimit(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	stream, subjects := c.Names().Stream(bus.Calls), calls(c, 2500)
	fill(t, c, 2, 8, subjects)
	for what, filters := range map[string][]string{
		"2,500 subjects": subjects,
		"a wildcard":     {c.Names().Of(wire.VerbCall, bustest.Key("session", "batch")) + ".*"},
	} {
		got, err := c.LastOfEach(t.Context(), stream, filters...)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		checkNewest(t, what, got, subjects, 1)
	}
}

func checkNewest(t *testing.T, what string, got []bus.Msg, subjects []string, round uint64) {
	t.Helper()
	if len(got) != len(subjects) {
		t.Fatalf("%s: %d messages, want %d", what, len(got), len(subjects))
	}
	for i, m := range got {
		if m.Subject != subjects[i] || binary.BigEndian.Uint64(m.Data) != round || m.Header.Get("round") != fmt.Sprint(round) {
			t.Fatalf("%s: message %d is %s of round %x, want %s of round %d", what, i, m.Subject, m.Data[:8], subjects[i], round)
		}
	}
}

func TestAll(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	stream := c.Names().Stream(bus.Calls)
	subjects := calls(c, 10)
	fill(t, c, 100, 8, subjects) // 1,000 records: several requests
	got, err := c.All(t.Context(), stream, c.Names().Of(wire.VerbCall, bustest.Key("session", "batch"))+".*")
	if err != nil || len(got) != 1000 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	if !slices.IsSortedFunc(got, func(a, b bus.Msg) int { return int(a.Seq) - int(b.Seq) }) {
		t.Error("not in stream order")
	}
	got, err = c.All(t.Context(), stream, subjects[3])
	if err != nil || len(got) != 100 {
		t.Fatalf("of one subject: %d messages, %v", len(got), err)
	}
	for i, m := range got {
		if binary.BigEndian.Uint64(m.Data) != uint64(i) {
			t.Fatalf("record %d is of round %x", i, m.Data)
		}
	}
}

// Together the bodies are larger than what the server sends at once, or the client holds at
// once: all of them are read.
func TestReadingLargeBodies(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	stream, subjects := c.Names().Stream(bus.Calls), calls(c, 30)
	fill(t, c, 1, 900_000, subjects)
	for what, read := range map[string]func() ([]bus.Msg, error){
		"last of each": func() ([]bus.Msg, error) { return c.LastOfEach(t.Context(), stream, subjects...) },
		"all": func() ([]bus.Msg, error) {
			return c.All(t.Context(), stream, c.Names().Of(wire.VerbCall, bustest.Key("session", "batch"))+".*")
		},
	} {
		got, err := read()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		checkNewest(t, what, got, subjects, 0)
		for _, m := range got {
			if len(m.Data) != 900_000 {
				t.Fatalf("%s: %d bytes", what, len(m.Data))
			}
		}
	}
}

// An answer is lost: the request gives up before the caller's deadline.
func TestALostAnswerIsGivenUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		for _, subject := range []string{"void", "$JS.API.STREAM.INFO.VOID", "$JS.API.STREAM.MSG.GET.VOID", "$JS.API.DIRECT.GET.VOID"} {
			stop, err := c.Subscribe(subject, "", func(bus.Msg) {}) // a listener that never answers
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for what, call := range map[string]func() error{
			"append": func() error { _, err := c.Append(ctx, "void", nil, nil); return err },
			"last":   func() error { _, err := c.Last(ctx, "VOID", "x"); return err },
			"all":    func() error { _, err := c.All(ctx, "VOID", "x"); return err },
			"glance": func() error { _, err := c.Glance(ctx, "VOID", "x"); return err },
		} {
			began := time.Now()
			err := call()
			if took := time.Since(began); err == nil || bus.IsTerminal(err) || took > 15*time.Second {
				t.Errorf("%s: %v after %v", what, err, took)
			}
			if what == "append" && !errors.Is(err, bus.ErrUnknown) {
				t.Errorf("append: %v", err)
			}
		}
	})
}
