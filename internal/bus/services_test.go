package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// Services describe themselves to every requester.
func TestServicesSayWhatTheyAre(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := connect(t, srv)
		ask := func() []bus.Service {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			all, err := c.Services(ctx, "adder")
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		if all := ask(); len(all) != 0 {
			t.Errorf("nobody is there, and %v answered", all)
		}
		s := bus.Service{
			Name: "adder", Version: "1.2.3", Description: "Adds.", Metadata: map[string]string{"policy": "p"},
			Endpoints: []bus.Endpoint{{Name: "add", Subject: "math.add", Queue: "add", Handle: func(bus.Msg) {}}},
		}
		stop, err := c.Serve(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if diff := cmp.Diff([]bus.Service{s}, ask(), cmpopts.IgnoreFields(bus.Endpoint{}, "Handle"), cmpopts.IgnoreFields(bus.Service{}, "Metadata")); diff != "" {
			t.Error(diff)
		}
		if got := ask()[0].Metadata["policy"]; got != "p" {
			t.Errorf("its policy is %q", got)
		}
	})
}
