package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// The policy of a worker denies a tool altogether. The tool is not offered, not even after the
// last worker has left. If the policies of workers differ, the tool is not offered either, no
// matter which worker came first.
func TestDeniedToolsAreNotOffered(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		for _, name := range []string{"pay", "look", "sum"} {
			f.gated(schemas.Tool{Name: name})
		}
		f.coordinator(coordinator.Config{})
		deny := func(tools ...string) worker.Config {
			var rules schemas.Rules
			for _, name := range tools {
				rules.Deny = append(rules.Deny, schemas.RuleEntry{Tool: name})
			}
			rules.Deny = append(rules.Deny, schemas.RuleEntry{Tool: "look", Argument: "secret"})
			all, err := permission.New(permission.Config{Layers: []permission.Layer{{Source: "test", Rules: rules}}})
			if err != nil {
				t.Fatal(err)
			}
			return worker.Config{Rules: all}
		}
		before := f.worker(deny())
		f.wantOffered("look pay sum")
		strict := f.worker(deny("pay"))
		f.wantOffered("look sum")
		digest := f.announced()[0].Digest
		again := f.worker(deny()) // the last worker to announce its tools
		f.wantOffered("look sum")
		if got := f.announced()[0].Digest; got != digest {
			t.Errorf("the digest of a definition changed with the policy: %s, %s", digest, got)
		}
		strict.stop()
		f.wantOffered("look pay sum")
		before.stop()
		again.stop()
		last := f.worker(deny("pay", "su*"))
		f.wantOffered("look")
		last.stop()
		f.wantOffered("look")
	})
}

func (f *fleet) announced() []schemas.Announcement {
	f.t.Helper()
	return values[schemas.Announcement](f, bus.BucketTools)
}

// wantOffered checks which tools are offered, once every worker has announced its tools or its
// end.
func (f *fleet) wantOffered(want string) {
	f.t.Helper()
	time.Sleep(time.Second) // simulated
	var names []string
	present := values[wire.Presence](f, bus.BucketWorkers)
	queues := toolset.New(present)
	serves := func(t schemas.Tool) bool {
		return queues.Serves(toolset.Tool{Pool: t.Pool, Name: t.Name, Digest: t.Digest})
	}
	for _, tool := range schemas.Offered(f.announced(), present, serves) {
		names = append(names, tool.Name)
	}
	if got := strings.Join(names, " "); got != want {
		f.t.Errorf("offered are %q, want %q", got, want)
	}
}

// values returns the decoded values of a bucket in the order of their keys.
func values[T any](f *fleet, bucket string) []T {
	f.t.Helper()
	found, err := f.conn.Values(f.t.Context(), f.conn.Names().Stream(bucket))
	if err != nil {
		f.t.Fatal(err)
	}
	all := make([]T, len(found))
	for i, key := range rawjson.SortedKeys(found) {
		if err := json.Unmarshal(found[key], &all[i]); err != nil {
			f.t.Fatalf("%s in %s: %v", key, bucket, err)
		}
	}
	return all
}
