package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// Any requester gets the description of each service.
func TestServicesSayWhatTheyAre(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		ask := func() []service.Service {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			all, err := service.Find(ctx, c, "adder")
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		if all := ask(); len(all) != 0 {
			t.Errorf("nobody is there, and %v answered", all)
		}
		s := service.Service{
			Name: "adder", Version: "1.2.3", Description: "Adds.", Metadata: map[string]string{"policy": "p"},
			Endpoints: []service.Endpoint{{Name: "add", Subject: "math.add", Queue: "add", Handle: func(bus.Msg) {}}},
		}
		stop, err := service.Serve(t.Context(), c, s)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if diff := cmp.Diff([]service.Service{s}, ask(), cmpopts.IgnoreFields(service.Endpoint{}, "Handle"), cmpopts.IgnoreFields(service.Service{}, "Metadata")); diff != "" {
			t.Error(diff)
		}
		if got := ask()[0].Metadata["policy"]; got != "p" {
			t.Errorf("its policy is %q", got)
		}
	})
}
