package main

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// dev forgets the announcement that its worker has made: the one of the worker's tenant, unless
// another worker of that tenant has the tool. Workers of others do not count.
func TestDevForgetsToolsOfItsTenant(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := provision.Ensure(t.Context(), conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		for tenant, want := range map[string][]string{
			"acme": {"acme.both", "both", "mine"},
			"":     {"acme.both", "acme.mine", "both"},
		} {
			put := func(bucket, key string, v any) {
				b, err := conn.Bucket(t.Context(), conn.Names().Stream(bucket))
				if err == nil {
					err = b.Put(t.Context(), key, rawjson.MustMarshal(v))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, key := range []string{"acme.mine", "acme.both", "mine", "both"} {
				put(bus.BucketTools, key, struct{}{})
			}
			for key, tools := range map[string][]string{"acme.dev": {"mine", "both"}, "acme.beside": {"both"}, "dev": {"mine", "both"}, "beside": {"both"}} {
				put(bus.BucketWorkers, key, wire.Presence{Tools: tools})
			}
			r := &reloading{cfg: &config.Config{}, conn: conn, open: func(context.Context) (*localtools.Serving, error) { return nil, nil }}
			r.cfg.Workers.Tenant = tenant
			if err := r.forget(t.Context(), []string{"mine", "both"}); err != nil {
				t.Fatal(err)
			}
			left, err := conn.Values(t.Context(), conn.Names().Stream(bus.BucketTools))
			if err != nil {
				t.Fatal(err)
			}
			got := rawjson.SortedKeys(left)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("a worker of the tenant %q: %s", tenant, diff)
			}
		}
	})
}
