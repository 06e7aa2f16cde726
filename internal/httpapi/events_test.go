package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/messages"
)

// event is a server-sent event.
type event struct{ id, kind, data string }

// eventsIn yields the events of a stream until the stream ends.
func eventsIn(r io.Reader) iter.Seq[event] {
	return func(yield func(event) bool) {
		var e event
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch {
			case lines.Text() == "" && e.kind != "":
				if !yield(e) {
					return
				}
				e = event{}
			case name == "id":
				e.id = value
			case name == "event":
				e.kind = value
			case name == "data":
				e.data = value
			}
		}
	}
}

// events is an open stream.
type events struct {
	t     testing.TB
	next  func() (event, bool)
	close func()
	last  string // the id of the last event that had one
}

// stream opens a stream of events. Events that happen after stream returns are not missed.
func (f *testFleet) stream(path, last string, headers ...string) *events {
	f.t.Helper()
	if last != "" {
		headers = append(headers, "Last-Event-ID", last)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	res, err := f.send(ctx, "GET", path, nil, headers...)
	must(f.t, err)
	if res.StatusCode != http.StatusOK {
		cancel()
		f.t.Fatalf("%s: %d", path, res.StatusCode)
	}
	next, stop := iter.Pull(eventsIn(res.Body))
	e := &events{t: f.t, next: next, last: last}
	e.close = sync.OnceFunc(func() {
		cancel()
		stop()
		_ = res.Body.Close()
		f.opened.Delete(e)
	})
	f.opened.Store(e, true)
	return e
}

// until reads events until an event of a batch has the text enough. It returns all of them as
// short texts.
func (s *events) until(enough string) (all []string) {
	s.t.Helper()
	for {
		e, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended before %q; it had %q", enough, all)
		}
		if e.id != "" {
			s.last = e.id
		}
		m := decode[messages.Event](s.t, []byte(e.data))
		text := fmt.Sprintf("%s %s %d", m.Batch, e.kind, m.Index)
		if all = append(all, text); text == enough {
			return all
		}
	}
}

// whole returns the events of a batch with one call.
func whole(batch string) []string {
	return []string{batch + " start 0", batch + " running 0", batch + " end 0", batch + " result 0", batch + " reply -1"}
}

// The stream of a session has each event once: first those of open batches from their
// beginning, then new ones. A client that reconnects continues where it was, at the same
// server or a new one.
func TestTheEventsOfASession(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		const path = "/v1/sessions/s/events"
		put := func(batch, tool string) {
			t.Helper()
			if a := f.retry("PUT", "/v1/sessions/s/batches/"+batch, message(tool)); a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
		expect := func(what string, got []string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", what, diff)
			}
		}
		put("before", "note")
		time.Sleep(time.Millisecond) // a batch that ends in this very instant would count as one from before the stream
		first := f.stream(path, "")
		put("one", "note")
		expect("live", first.until("one reply -1"), whole("one")...)

		if a := f.do("PUT", "/v1/sessions/s/batches/two", message("note", "gate"), "Prefer", "wait=0"); a.Status != http.StatusAccepted {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		f.waitEntered()
		begun := []string{"two start 0", "two start 1", "two running 0", "two end 0"}
		expect("the open batch", first.until("two end 0"), begun...)
		later := f.stream(path, "")
		expect("a stream that begins meanwhile", later.until("two end 0"), begun...)

		first.close()
		f.http.stop()
		f.startHTTP()
		elsewhere := f.stream(path, first.last)
		f.open()
		rest := []string{"two running 1", "two end 1", "two result 0", "two result 1", "two reply -1"}
		expect("at another server", elsewhere.until("two reply -1"), rest...)
		put("three", "note")
		expect("at another server, later", elsewhere.until("three reply -1"), whole("three")...)
		here := f.stream(path, first.last)
		expect("once more", here.until("three reply -1"), append(rest, whole("three")...)...)
	})
}

// A client reconnects again and again: it misses no event and gets none twice. With
// TOOLFLEET_HTTP_ROUNDS, which `make soak` sets, it reconnects 10,000 times.
func TestManyReconnects(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		if longRounds() > 0 {
			manyReconnects(t, f, 10_000, 1, 100)
		} else {
			manyReconnects(t, f, 90, 3, 20)
		}
	})
}

// manyReconnects reconnects after every so many events, and restarts the server after every so
// many reconnects.
func manyReconnects(t *testing.T, f *testFleet, reconnects, after, restart int) {
	const path = "/v1/sessions/s/events"
	of := []string{"start 0", "start 1", "running 0", "running 1", "end 0", "end 1", "result 0", "result 1", "reply -1"}
	batches := reconnects*after/len(of) + 1
	stream := f.stream(path, "")
	ahead := make(chan struct{}, 8) // bounds the batches that were not yet shown to their end
	var putting sync.WaitGroup
	putting.Go(func() {
		for i := range batches {
			ahead <- struct{}{}
			_ = f.retry("PUT", fmt.Sprintf("/v1/sessions/s/batches/b%d", i), message("look", "note"))
			time.Sleep(500 * time.Millisecond) // if more than 32 batches come in 10 s, another server may show some twice
		}
	})
	seen := map[string]int{}
	back := 0
	for n, replies := 0, 0; replies < batches; { // a batch may be shown after a later one
		e, ok := stream.next()
		if !ok || e.kind == "error" {
			t.Fatalf("a stream ended after %d reconnects and %d events: %s", back, n, e.data)
		}
		m := decode[messages.Event](t, []byte(e.data))
		if e.id == "" {
			continue
		}
		seen[fmt.Sprintf("%s %s %d", m.Batch, e.kind, m.Index)]++
		if m.Type == messages.EventReply {
			replies++
			<-ahead
		}
		if n++; n%after == 0 {
			stream.close()
			if back++; back%restart == 0 {
				f.http.stop()
				f.startHTTP()
			}
			stream = f.stream(path, e.id)
		}
	}
	putting.Wait()
	for i := range batches {
		for _, what := range of {
			if text := fmt.Sprintf("b%d %s", i, what); seen[text] != 1 {
				t.Errorf("%s was shown %d times", text, seen[text])
			}
		}
	}
	t.Logf("%d reconnects", back)
}

// The live stream has the events of all sessions of its tenant and of no other tenant. It
// reports a gap.
func TestTheEventsOfATenant(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		f.http.stop()
		f.access = byHeader{}
		f.startHTTP()
		red := f.stream("/v1/events", "", "Tenant", "red")
		for _, row := range []struct{ tenant, session string }{{"blue", "s"}, {"red", "s1"}, {"blue", "s1"}, {"red", "s2"}} {
			if a := f.do("PUT", "/v1/sessions/"+row.session+"/batches/"+row.tenant, message("note"), "Tenant", row.tenant); a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
		seen := map[messages.SessionID]bool{}
		for !seen["s2"] {
			e, ok := red.next()
			if !ok {
				t.Fatal("the stream ended")
			}
			m := decode[messages.Event](t, []byte(e.data))
			if m.Batch != "red" {
				t.Fatalf("an event of another tenant: %s", e.data)
			}
			seen[m.Session] = true
		}
		if !seen["s1"] {
			t.Error("no event of session s1")
		}
		f.nats.Stop()
		must(t, f.nats.Restart())
		for {
			if e, ok := red.next(); !ok || e.kind == "gap" {
				break
			}
		}
		back := f.stream("/v1/events", "7", "Tenant", "red")
		if e, _ := back.next(); e.kind != "gap" {
			t.Errorf("a client that comes back is told of %+v", e)
		}
	})
}

// byHeader is an access control that takes the tenant from a header of the request.
type byHeader struct{}

func (byHeader) Who(r *http.Request) (access.Principal, error) {
	return access.Principal{Tenant: r.Header.Get("Tenant")}, nil
}

// The number of sessions that a tenant may stream at a server is bounded, and the streams of
// other tenants do not count. When a session has no stream any more, another session can be
// streamed.
func TestReadersOfATenantAreBounded(t *testing.T) {
	f := newFleet(t)
	f.http.stop()
	f.access = byHeader{}
	f.startHTTP()
	f.server.Readers(2)
	one := f.stream("/v1/sessions/s1/events", "", "Tenant", "red")
	f.stream("/v1/sessions/s1/events", "", "Tenant", "red") // a stream of the same session counts as the same reader
	f.stream("/v1/sessions/s2/events", "", "Tenant", "red")
	a := f.do("GET", "/v1/sessions/s3/events", "", "Tenant", "red")
	if a.Status != http.StatusTooManyRequests || a.code() != "busy" || a.Header.Get("Retry-After") == "" {
		t.Errorf("a third session: %d %s", a.Status, a.Body)
	}
	f.stream("/v1/sessions/s3/events", "", "Tenant", "blue")
	f.server.Readers(3)
	f.stream("/v1/sessions/s3/events", "", "Tenant", "red")
	one.close()
	if a := f.do("GET", "/v1/sessions/s4/events", "", "Tenant", "red"); a.Status != http.StatusTooManyRequests {
		t.Errorf("a fourth session while the first has a stream: %d %s", a.Status, a.Body)
	}
	f.http.stop()
	f.startHTTP()
	f.server.Readers(1)
	first := f.stream("/v1/sessions/s1/events", "", "Tenant", "red")
	first.close()
	for { // the server notices the end of the stream some time later
		res, err := f.send(t.Context(), "GET", "/v1/sessions/s2/events", nil, "Tenant", "red")
		must(t, err)
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			break
		}
	}
}

// An invalid event id is refused, and so is a stream over the bound.
func TestStreamsThatAreRefused(t *testing.T) {
	f := newFleet(t)
	a := f.do("GET", "/v1/sessions/s/events", "", "Last-Event-ID", "nonsense")
	if a.Status != http.StatusUnprocessableEntity || a.code() != "invalid_event_id" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

// The server cannot subscribe to live events: it answers that they are unavailable, and not
// that it is shutting down.
func TestNoLiveEvents(t *testing.T) {
	f := newFleet(t)
	f.conn.Close()
	if a := f.do("GET", "/v1/events", ""); a.Status != http.StatusServiceUnavailable || a.code() != "unavailable" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}
