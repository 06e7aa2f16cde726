package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/coordinator/catalogue"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// shop serves two tools: look is a read, and pay is a write. Version n of each tool requires
// the argument "vn" and allows any further arguments.
type shop struct {
	f     *fleet
	mu    sync.Mutex
	ran   map[string]string // version that ran each call, by batch and index; guarded by mu
	twice int               // writes that ran again; guarded by mu
	gate  chan struct{}     // closed: calls with the argument "wait" go on
	waits atomic.Int32      // started calls with the argument "wait"
}

func newShop(f *fleet) *shop {
	return &shop{f: f, ran: map[string]string{}, gate: make(chan struct{})}
}

// definitions returns the definitions of both tools in one version. With the version "", the
// tools have no version and require no argument.
func (*shop) definitions(version string) (tools []schemas.Tool) {
	schema := `{"type":"object"}`
	if version != "" {
		schema = fmt.Sprintf(`{"type":"object","required":["v%s"]}`, version)
	}
	for name, kind := range map[string]messages.Kind{"look": messages.KindRead, "pay": messages.KindWrite} {
		tools = append(tools, schemas.Tool{Name: name, Version: version, Kind: kind, TimeoutMS: 600_000, InputSchema: json.RawMessage(schema)})
	}
	return tools
}

// registry returns the tools of a worker that serves these versions.
func (s *shop) registry(versions ...string) *tool.Registry {
	s.f.t.Helper()
	tools := &tool.Registry{}
	for _, version := range versions {
		for _, t := range s.definitions(version) {
			err := tools.Add(t, tool.Func(func(ctx context.Context, c tool.Call) (tool.Output, error) { return s.run(ctx, t, c) }))
			if err != nil {
				s.f.t.Fatal(err)
			}
		}
	}
	return tools
}

func (s *shop) run(ctx context.Context, t schemas.Tool, c tool.Call) (tool.Output, error) {
	if strings.Contains(string(c.Input), "wait") {
		s.waits.Add(1)
		select {
		case <-s.gate:
		case <-ctx.Done():
			return tool.Output{}, ctx.Err()
		}
	} else {
		time.Sleep(20 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprint(c.Batch, " ", c.Index)
	if s.ran[key] != "" && t.Kind == messages.KindWrite {
		s.twice++
	}
	s.ran[key] = "version " + t.Version
	return tool.Text(t.Version), nil
}

// serve starts a worker that serves these versions.
func (s *shop) serve(versions ...string) part {
	s.f.t.Helper()
	return s.f.workerWith(s.registry(versions...), worker.Config{Slots: 3})
}

// storeCatalogue stores the catalogue of an agent that fetched the definitions while only this
// version was served. names limits it to some of the tools.
func (s *shop) storeCatalogue(version string, names ...string) (digest string) {
	s.f.t.Helper()
	var tools []schemas.Tool
	for _, t := range s.definitions(version) {
		if len(names) == 0 || strings.Contains(strings.Join(names, " "), t.Name) {
			tools = append(tools, t)
		}
	}
	catalog, err := schemas.NewCatalog(tools...)
	if err == nil {
		digest, err = catalogue.NewStore(objects.In(s.f.conn), nil).Put(s.f.t.Context(), catalog)
	}
	if err != nil {
		s.f.t.Fatal(err)
	}
	return digest
}

// versionsOf returns, for each call of a batch, the version that ran it, or its status and
// error code.
func (s *shop) versionsOf(r messages.Reply) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for _, result := range r.Results {
		if result.Status == messages.StatusOK {
			words = append(words, s.ran[fmt.Sprint(r.Batch, " ", result.Index)])
		} else {
			words = append(words, fmt.Sprintf("%s %s", result.Status, result.Err.Code))
		}
	}
	return strings.Join(words, ", ")
}

// lookAndPay returns a batch with one call of look and one of pay.
func lookAndPay(session, id, catalogue, input string) messages.Batch {
	b := canonical(session, id, call{"look", input}, call{"pay", input})
	b.Catalogue = catalogue
	return b
}

const (
	fitsBoth = `{"v1":1,"v2":1}`
	fitsV1   = `{"v1":1}`
	fitsV2   = `{"v2":1}`
)

// A worker serves two versions of its tools. A call gets the version in the catalogue that its
// batch names, as long as a worker serves that version. Otherwise it gets the newest version,
// if its input fits.
func TestVersionsOfACall(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		s := newShop(f)
		c := f.coordinator(coordinator.Config{})
		w := s.serve("1", "2")
		first, second, part := s.storeCatalogue("1"), s.storeCatalogue("2"), s.storeCatalogue("1", "pay")
		never, none := messages.Digest(nil), s.storeCatalogue("3")
		f.until("the tools are announced", func() bool { return len(f.announced()) == 2 })
		n := 0
		check := func(when, catalogue, input, want string) {
			t.Helper()
			n++
			if got := s.versionsOf(f.run(lookAndPay(fmt.Sprint("s", n), fmt.Sprint("b", n), catalogue, input))); got != want {
				t.Errorf("%s, %s: got %s, want %s", when, input, got, want)
			}
		}
		const v1, v2, v1v2 = "version 1, version 1", "version 2, version 2", "version 2, version 1"
		const gone = "validation_error tool_version_gone, validation_error tool_version_gone"
		const unfit = "validation_error invalid_arguments, validation_error invalid_arguments"
		check("no catalogue", "", fitsBoth, v2)
		check("no catalogue", "", fitsV1, unfit)
		check("catalogue of 1", first, fitsBoth, v1)
		check("catalogue of 1", first, fitsV2, unfit)
		check("catalogue of 2", second, fitsBoth, v2)
		check("catalogue of 1, pay only", part, fitsBoth, v1v2)
		check("an unknown catalogue", never, fitsBoth, v2)
		check("an unknown catalogue", never, fitsV1, gone)
		check("a version that nobody ever served", none, fitsBoth, v2)

		b := lookAndPay("bad", "bad", "no digest", fitsBoth)
		f.submit(b)
		var refusal *messages.Refusal
		if r, err := f.await(b, time.Minute); !errors.As(err, &refusal) || refusal.Class != messages.ClassMalformedMessage || !strings.Contains(refusal.Message, "64 hex digits") {
			t.Errorf("a catalogue that is no digest: %+v, %v", r, err)
		}

		// Another coordinator reads the catalogue from the store, and no worker serves version
		// 1.
		w.stop()
		c.stop()
		f.coordinator(coordinator.Config{})
		w = s.serve("2")
		f.awaitWorkers(1)
		check("1 is gone", first, fitsBoth, v2)
		check("1 is gone", first, fitsV1, gone)
		check("1 is gone", second, fitsBoth, v2)
		r := f.run(lookAndPay("told", "told", first, fitsV1)).Results[1]
		f.wantWords(r, "pay", "definition", "v2")
		if details, _ := json.Marshal(r.Err.Details); !strings.Contains(string(details), `"violations"`) || r.Err.Retryable {
			t.Errorf("details %s, retryable %v", details, r.Err.Retryable)
		}

		// The update is rolled back: workers serve only version 1 again.
		w.stop()
		s.serve("1")
		f.awaitWorkers(1)
		check("rolled back", "", fitsV1, v1)
		check("rolled back", first, fitsV1, v1)
		check("rolled back", second, fitsBoth, v1)
		check("rolled back", second, fitsV2, gone)
	})
}

// An agent fetches the definitions, and then workers serve a newer version. The digest of the
// first answer still names the old version. The next answer has the new definitions and
// another digest. After a rollback, the answer is the first one again.
func TestTheDigestOfAnAnswerNamesItsVersions(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		s := newShop(f)
		f.coordinator(coordinator.Config{})
		s.serve("1")
		f.until("the tools are announced", func() bool { return len(f.announced()) == 2 })
		fetch := func() messages.ToolList {
			t.Helper()
			list, err := f.client.Tools(t.Context(), messages.GetTools{Provider: messages.Anthropic})
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		given := fetch()
		newer := s.serve("2")
		f.awaitWorkers(2)
		if got := s.versionsOf(f.run(lookAndPay("s", "before", "", fitsBoth))); got != "version 2, version 2" {
			t.Errorf("no catalogue: %s", got)
		}
		if got := s.versionsOf(f.run(lookAndPay("s", "named", given.Digest, fitsBoth))); got != "version 1, version 1" {
			t.Errorf("the catalogue of the answer: %s", got)
		}
		next := fetch()
		if next.Digest == given.Digest || !strings.Contains(string(next.Tools), `"v2"`) || strings.Contains(string(next.Tools), `"v1"`) {
			t.Errorf("the next answer: %s", next.Tools)
		}
		if got := s.versionsOf(f.run(lookAndPay("s", "next", next.Digest, fitsBoth))); got != "version 2, version 2" {
			t.Errorf("the catalogue of the next answer: %s", got)
		}
		newer.stop()
		f.awaitWorkers(1)
		if again := fetch(); again.Digest != given.Digest || string(again.Tools) != string(given.Tools) {
			t.Errorf("after the rollback: %s", again.Tools)
		}
	})
}

// A batch names an older version while no worker runs. It gets the newest version only after
// workers had the time to start.
func TestAVersionWhoseWorkersAreStarting(t *testing.T) {
	for name, tc := range map[string]struct {
		come  []string
		after time.Duration
		input string
		want  string
	}{
		"both versions come":              {[]string{"1", "2"}, 10 * time.Second, fitsBoth, "version 1, version 1"},
		"only version 2 comes":            {[]string{"2"}, 10 * time.Second, fitsBoth, "version 2, version 2"},
		"only version 2 comes, no fit":    {[]string{"2"}, 10 * time.Second, fitsV1, "validation_error tool_version_gone, validation_error tool_version_gone"},
		"both versions come late":         {[]string{"1", "2"}, 45 * time.Second, fitsBoth, "version 2, version 2"},
		"both versions come late, no fit": {[]string{"1", "2"}, 45 * time.Second, fitsV1, "validation_error tool_version_gone, validation_error tool_version_gone"},
		"version 1 comes just in time":    {[]string{"1"}, 29 * time.Second, fitsBoth, "version 1, version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				s := newShop(f)
				f.coordinator(coordinator.Config{})
				w := s.serve("1", "2")
				first := s.storeCatalogue("1")
				f.until("the tools are announced", func() bool { return len(f.announced()) == 2 })
				w.stop()
				f.awaitWorkers(0)
				b := lookAndPay("s", "b", first, tc.input)
				f.submit(b)
				time.Sleep(tc.after)
				s.serve(tc.come...)
				if got := s.versionsOf(f.reply(b, time.Minute)); got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// A coordinator is killed in the middle of a batch, and a newer version comes. The next
// coordinator keeps the versions of the plan.
func TestATakeoverKeepsTheVersions(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		s := newShop(f)
		s.serve("1")
		kill := f.killableCoordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"v1":1,"v2":1,"wait":1}`}, call{"pay", fitsBoth}, call{"look", fitsBoth})
		f.submit(b)
		f.until("the first write runs", func() bool { return s.waits.Load() == 1 })
		kill()
		s.serve("2")
		f.awaitWorkers(2)
		f.coordinator(coordinator.Config{})
		if got := s.versionsOf(f.run(lookAndPay("other", "other", "", fitsBoth))); got != "version 2, version 2" {
			t.Errorf("a new batch: %s", got)
		}
		close(s.gate)
		if got := s.versionsOf(f.reply(b, time.Minute)); got != "version 1, version 1, version 1" {
			t.Errorf("the batch that was taken over: %s", got)
		}
	})
}

// interval is a time in which a version was served.
type interval struct{ from, to time.Time }

// Four workers are replaced one after another under load by workers of version 2, and then by
// workers of version 1 again. Each batch names the catalogue of version 1, that of version 2,
// or none. If a batch names a version that is served until its reply, its calls get that
// version. Otherwise they get a version that is served, or fail because the version is gone.
func TestARollingUpdateOfVersions(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		s := newShop(f)
		served := map[string][]interval{}
		workers, versions := []part{}, []string{}
		for range 4 {
			workers, versions = append(workers, s.serve("1")), append(versions, "1")
		}
		for range 2 {
			f.coordinator(coordinator.Config{})
		}
		catalogues := map[string]string{"": "", "1": s.storeCatalogue("1"), "2": s.storeCatalogue("2")}
		f.run(lookAndPay("warm", "warm", "", fitsBoth))
		bounced := f.bounces()
		began := time.Now()
		opened := map[string]time.Time{"1": began}
		roll := func(to string) {
			for i := range workers {
				time.Sleep(time.Second)
				came := s.serve(to)
				time.Sleep(500 * time.Millisecond)
				if i == 0 {
					opened[to] = time.Now()
				}
				if i == len(workers)-1 {
					from := versions[i]
					served[from] = append(served[from], interval{opened[from], time.Now()})
				}
				workers[i].stop()
				workers[i], versions[i] = came, to
			}
			time.Sleep(time.Second)
		}
		type sent struct {
			batch     messages.Batch
			named     string
			submitted time.Time
			replied   time.Time
			reply     messages.Reply
		}
		var load []*sent
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(context.Background())
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				named := []string{"", "1", "2"}[n%3]
				input := fitsBoth
				if n%2 == 0 && named != "" {
					input = map[string]string{"1": fitsV1, "2": fitsV2}[named]
				}
				one := &sent{batch: lookAndPay(fmt.Sprint("s", n%41), fmt.Sprint("b", n), catalogues[named], input), named: named, submitted: time.Now()}
				load = append(load, one)
				running.Go(func() {
					one.reply = f.run(one.batch)
					one.replied = time.Now()
				})
				time.Sleep(10 * time.Millisecond)
			}
		})
		roll("2")
		roll("1")
		stop()
		running.Wait()
		served["1"] = append(served["1"], interval{opened["1"], time.Now()})
		within := func(version string, one *sent) bool {
			for _, i := range served[version] {
				if one.submitted.After(i.from) && one.replied.Before(i.to) {
					return true
				}
			}
			return false
		}
		count := map[string]int{}
		for _, one := range load {
			got := s.versionsOf(one.reply)
			want := fmt.Sprintf("version %s, version %[1]s", one.named)
			count[one.named+": "+got]++
			switch {
			case strings.Contains(got, string(messages.StatusExpired)):
				t.Errorf("batch %s: %s", one.batch.ID, got)
			case one.named != "" && within(one.named, one) && got != want:
				t.Errorf("batch %s names version %s, which is served: %s", one.batch.ID, one.named, got)
			case one.named == "" && strings.Contains(got, "error"):
				t.Errorf("batch %s names no catalogue: %s", one.batch.ID, got)
			}
		}
		t.Log(count)
		for _, want := range []string{
			"1: version 1, version 1", "2: version 2, version 2", "1: version 2, version 2", "2: version 1, version 1", ": version 1, version 1", ": version 2, version 2",
			"2: validation_error tool_version_gone, validation_error tool_version_gone",
		} {
			if count[want] == 0 {
				t.Errorf("no batch ended with %q, so the load missed something: %v", want, count)
			}
		}
		if n := bounced.check(t); n > 0 {
			t.Errorf("%d jobs of %d batches were given back", n, len(load))
		}
		if s.twice > 0 {
			t.Errorf("%d writes ran twice", s.twice)
		}
		f.until("no job is left", func() bool { return f.messageCount(bus.Jobs) == 0 })
	})
}

// A coordinator is lost when one call of a batch has ended and another call runs. Workers of
// version 2 start, and the worker of version 1 ends. The input of the calls does not fit
// version 2. Both calls keep version 1, and the next write of the session waits for them.
func TestACallThatMayHaveRunKeepsItsVersion(t *testing.T) {
	for _, kind := range []messages.Kind{messages.KindRead, messages.KindWrite} {
		t.Run(string(kind), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				gate, safe := make(chan struct{}), true
				var began, ended atomic.Int32
				registry := func(version string) *tool.Registry {
					tools := &tool.Registry{}
					note := schemas.Tool{
						Name: "note", Version: version, Kind: kind, ConcurrencySafe: &safe, TimeoutMS: 600_000,
						InputSchema: json.RawMessage(fmt.Sprintf(`{"type":"object","required":["v%s"]}`, version)),
					}
					err := tools.Add(note, tool.Func(func(_ context.Context, c tool.Call) (tool.Output, error) {
						began.Add(1)
						if strings.Contains(string(c.Input), "wait") {
							<-gate
						}
						return tool.Text(fmt.Sprint(ended.Add(1))), nil
					}))
					if err == nil {
						err = tools.Add(schemas.Tool{Name: "pay"}, tool.Func(func(context.Context, tool.Call) (tool.Output, error) {
							return tool.Text(fmt.Sprintf("after %d", ended.Load())), nil
						}))
					}
					if err != nil {
						t.Fatal(err)
					}
					return tools
				}
				first := f.workerWith(registry("1"), worker.Config{Drain: 5 * time.Minute})
				kill := f.killableCoordinator(coordinator.Config{})
				f.until("the tools are known", func() bool { return len(f.announced()) == 2 })
				catalog, err := schemas.NewCatalog(schemas.Tool{Name: "note", Version: "1", Kind: kind, ConcurrencySafe: &safe, TimeoutMS: 600_000, InputSchema: json.RawMessage(`{"type":"object","required":["v1"]}`)})
				if err != nil {
					t.Fatal(err)
				}
				b := canonical("s", "b", call{"note", `{"v1":1}`}, call{"note", `{"v1":1,"wait":1}`})
				if b.Catalogue, err = catalogue.NewStore(objects.In(f.conn), nil).Put(t.Context(), catalog); err != nil {
					t.Fatal(err)
				}
				f.submit(b)
				f.until("one call has ended and one runs", func() bool { return ended.Load() == 1 && began.Load() == 2 })
				f.workerWith(registry("2"), worker.Config{})
				f.awaitWorkers(2)
				drained := make(chan struct{})
				go func() { first.stop(); close(drained) }()
				time.Sleep(time.Second)
				kill()
				f.coordinator(coordinator.Config{})
				time.AfterFunc(time.Minute, func() { close(gate) })
				pay := canonical("s", "pay", call{"pay", ""})
				f.submit(pay)
				f.wantStatuses(f.reply(b, 5*time.Minute), "ok ok")
				if got := outputsOf(t, f.reply(pay, 5*time.Minute)); got[0] != "after 2" {
					t.Errorf("the write ran %s of the calls before it", got[0])
				}
				<-drained
			})
		})
	}
}
