package health

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

func TestToolsetDifferences(t *testing.T) {
	// "w1 a=1,b=1 gpu:c=1" is a worker with its toolsets. A name without a digest comes from a
	// worker of an older version.
	present := func(text string) (w wire.Presence) {
		words := strings.Fields(text)
		w.Worker = words[0]
		for _, word := range words[1:] {
			pool, list, named := strings.Cut(word, ":")
			if !named {
				pool, list = schemas.DefaultPool, word
			}
			w.Pools = append(w.Pools, pool)
			for _, entry := range strings.Split(list, ",") {
				name, digest, said := strings.Cut(entry, "=")
				w.Tools = append(w.Tools, name)
				if !said {
					continue
				}
				if w.Toolsets == nil {
					w.Toolsets = map[string]map[string]string{}
				}
				if w.Toolsets[pool] == nil {
					w.Toolsets[pool] = map[string]string{}
				}
				w.Toolsets[pool][name] = digest
			}
		}
		return w
	}
	var tools []schemas.Announcement
	for name, pool := range map[string]string{"a": schemas.DefaultPool, "b": schemas.DefaultPool, "c": "gpu"} {
		tools = append(tools, schemas.Announcement{Tool: schemas.Tool{Name: name, Pool: pool, Digest: "1"}})
	}
	for name, tc := range map[string]struct {
		workers []string
		want    []string
	}{
		"nobody":             {},
		"the same":           {[]string{"w1 a=1,b=1", "w2 a=1,b=1"}, nil},
		"one worker":         {[]string{"w1 a=1"}, nil}, // b's worker is gone
		"pools of their own": {[]string{"w1 a=1", "w2 gpu:c=1", "w3 a=1 gpu:c=1"}, nil},
		"two tools files":    {[]string{"w1 a=1", "w2 b=1"}, []string{"pool default: w1 lacks b", "pool default: w2 lacks a"}},
		"several lack the same": {[]string{"w1 a=1", "w2 a=1", "w3 a=1,b=1"},
			[]string{"pool default: w1, w2 lack b"}},
		"another definition": {[]string{"w1 a=0,b=1", "w2 a=1,b=1"},
			[]string{"pool default: w1 serves a under another definition than calls are planned with"}},
		"both": {[]string{"w1 a=0", "w2 a=1,b=1"},
			[]string{"pool default: w1 lacks b, and serves a under another definition than calls are planned with"}},
		"nobody serves what is planned": {[]string{"w1 a=0,b=1", "w2 a=0,b=1"},
			[]string{"pool default: w1, w2 serve a under another definition than calls are planned with; no worker serves a as planned, so those calls wait and then expire"}},
		"a tool that has moved":     {[]string{"w1 a=1,c=0", "w2 a=1", "w3 gpu:c=1"}, nil},
		"a tool that is not known":  {[]string{"w1 a=1,x=7", "w2 a=1"}, []string{"pool default: w2 lacks x"}},
		"an older version":          {[]string{"w1 a,b", "w2 a=1,b=1"}, nil},
		"an older version, lacking": {[]string{"w1 a", "w2 a=1,b=1"}, []string{"pool default: w1 lacks b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var workers []wire.Presence
			for _, text := range tc.workers {
				workers = append(workers, present(text))
			}
			var got []string
			for _, d := range toolsetDifferences(workers, command.NewFleet(tools, workers)) {
				got = append(got, d.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("workers %q (-want +got)\n%s", tc.workers, diff)
			}
		})
	}
}

// A pool has a bound for some of its workers only, so the bound does not hold.
func TestPoolsWithABoundForSome(t *testing.T) {
	at := func(name string, queues map[string]string) wire.Presence {
		w := wire.Presence{Worker: name, Queues: map[string]wire.Queue{}}
		for pool, token := range queues {
			w.Pools = append(w.Pools, pool)
			w.Queues[pool] = wire.Queue{Token: token}
		}
		return w
	}
	own := wire.QueueToken("p", []string{"a"})
	for name, tc := range map[string]struct {
		workers []wire.Presence
		want    string
	}{
		"all have it":        {[]wire.Presence{at("1", map[string]string{"p": "p"}), at("2", map[string]string{"p": "p"})}, ""},
		"none has it":        {[]wire.Presence{at("1", map[string]string{"p": own}), at("2", map[string]string{"p": own})}, ""},
		"one of two":         {[]wire.Presence{at("2", map[string]string{"p": own}), at("1", map[string]string{"p": "p"})}, "pool p: only 1 takes jobs"},
		"two of three":       {[]wire.Presence{at("3", map[string]string{"p": "p"}), at("2", map[string]string{"p": own}), at("1", map[string]string{"p": "p"})}, "pool p: only 1, 3 take jobs"},
		"another pool":       {[]wire.Presence{at("1", map[string]string{"q": "q", "p": own}), at("2", map[string]string{"p": own})}, ""},
		"the version before": {[]wire.Presence{at("1", map[string]string{"p": own}), {Worker: "2", Pools: []string{"p"}}}, ""},
	} {
		var says string
		for _, s := range splitPools(tc.workers) {
			says += s.String()
		}
		if (says == "") != (tc.want == "") || !strings.HasPrefix(says, tc.want) {
			t.Errorf("%s: %q, want %q", name, says, tc.want)
		}
	}
}

// Two workers of one pool have different tools files. That is no fault if each has a queue of its
// own. If they share one, doctor and status name them and what each lacks. A call whose tool nobody
// serves is named either way.
func TestWorkersThatDiffer(t *testing.T) {
	for name, bound := range map[string]map[string]int{"a queue of their own": nil, "one queue": {schemas.DefaultPool: 10}} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if err := provision.Ensure(t.Context(), conn, provision.Config{}); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 2)
				for name, serves := range map[string][]string{"left": {"both", "a"}, "right": {"both"}} {
					registry := &tool.Registry{}
					for _, name := range serves {
						done := tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
						if err := registry.Add(schemas.Tool{Name: name, Kind: messages.KindRead}, done); err != nil {
							t.Fatal(err)
						}
					}
					w, err := worker.New(conn, registry, worker.Config{Name: name, Pools: bound})
					if err != nil {
						t.Fatal(err)
					}
					go func() { ended <- w.Run(ctx) }()
				}
				time.Sleep(time.Second) // simulated
				var found []string
				examine := func() string {
					e := &examination{ctx: t.Context(), conn: conn}
					e.workers()
					found = nil
					for _, f := range e.findings {
						if f.Check == "workers" && f.Status != "ok" {
							found = append(found, f.Status+" "+f.Detail)
						}
					}
					status, err := statusOf(t.Context(), conn)
					if err != nil {
						t.Fatal(err)
					}
					return status.differ()
				}
				const lacks = "pool default: right lacks a"
				var want []string
				if bound != nil {
					want = []string{"warn " + lacks}
				}
				says := examine()
				if diff := cmp.Diff(want, found); diff != "" || strings.Contains(says, lacks) != (bound != nil) {
					t.Errorf("the status says %q, the doctor (-want +got)\n%s", says, diff)
				}
				job := wire.Job{V: 1, Tool: "gone"}
				key := wire.KeyOf(messages.OneTenant, "s", "b").Call(0)
				if _, err := conn.Append(t.Context(), conn.Names().Lane(false, wire.WaitingQueue(schemas.DefaultPool), key), nil, rawjson.MustMarshal(job)); err != nil {
					t.Fatal(err)
				}
				const waits = "pool default: 1 call waiting for a tool that no worker serves in the planned version; the oldest is of gone"
				says, want = examine(), append([]string{"fail " + waits}, want...)
				if diff := cmp.Diff(want, found); diff != "" || !strings.Contains(says, waits) {
					t.Errorf("the status says %q, the doctor (-want +got)\n%s", says, diff)
				}
				stop()
				for range 2 {
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// Workers serve a tool in several versions. Each is named with its version, and that is no
// difference as long as one has what calls are planned with.
func TestVersionsInStatus(t *testing.T) {
	version := func(name, version, digest string) schemas.Tool {
		return schemas.Tool{Name: name, Version: version, Digest: digest, Pool: schemas.DefaultPool}
	}
	announced := []schemas.Announcement{
		{Tool: version("a", "", "a0")},
		{Tool: version("pay", "1", "p1"), Versions: []schemas.Tool{version("pay", "2", "p2"), version("pay", "3", "p3")}},
	}
	serves := func(name string, newest map[string]string, digests ...string) wire.Presence {
		return wire.Presence{
			Worker: name, Pools: []string{schemas.DefaultPool}, Tools: []string{"a", "pay"}, Slots: 1,
			Toolsets: map[string]map[string]string{schemas.DefaultPool: newest},
			Queues:   map[string]wire.Queue{schemas.DefaultPool: {Token: wire.QueueToken(schemas.DefaultPool, digests), Tools: digests}},
		}
	}
	workers := []wire.Presence{
		serves("old", map[string]string{"a": "a0", "pay": "p1"}, "a0", "p1"),
		serves("new", map[string]string{"a": "a0", "pay": "p2"}, "a0", "p1", "p2"),
	}
	fleet := command.NewFleet(announced, workers)
	var queues []string
	for _, q := range queuesOf(workers, fleet) {
		queues = append(queues, strings.Join(q.Workers, " ")+": "+strings.Join(q.Tools, " "))
	}
	slices.Sort(queues)
	if diff := cmp.Diff([]string{"new: a pay@2 pay@1", "old: a pay@1"}, queues); diff != "" {
		t.Errorf("queues (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"pay@2 pay@1"}, severalVersions(fleet.Tools())); diff != "" {
		t.Errorf("versions (-want +got)\n%s", diff)
	}
	if got := namesOf(fleet.Tools()); got != "a, pay@2, pay@1" {
		t.Errorf("tools: %s", got)
	}
	var differences []string
	for _, d := range toolsetDifferences(workers, fleet) {
		differences = append(differences, d.String())
	}
	if diff := cmp.Diff([]string{"pool default: old serves pay under another definition than calls are planned with"}, differences); diff != "" {
		t.Errorf("differences (-want +got)\n%s", diff)
	}
}
