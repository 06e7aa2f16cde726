package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestServe(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		server, agent := bustest.Connect(t, srv), bustest.Connect(t, srv)
		var running atomic.Int32
		stop, err := service.Serve(t.Context(), server, service.Service{
			Name: "toolfleet", Version: "1.0.0", Description: "runs tool calls",
			Endpoints: []service.Endpoint{
				{Name: "run", Subject: server.Names().EveryBatch(wire.VerbRun), Handle: func(m bus.Msg) {
					running.Add(1)
					defer running.Add(-1)
					time.Sleep(2 * time.Second)
					_ = server.Respond(m, bus.Header{"Toolfleet-Event": {"start"}}, []byte(m.Subject))
					_ = server.Respond(m, nil, m.Data)
				}},
				{Name: "get", Subject: server.Names().EveryBatch(wire.VerbGet), Handle: func(m bus.Msg) {
					h := bus.Header{bus.ServiceErrorCodeHeader: {"404"}, bus.ServiceErrorHeader: {"unknown"}}
					_ = server.Respond(m, h, []byte(`{"status":"unknown"}`))
				}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}

		// This is the request that `nats micro info` sends.
		var info struct {
			Name      string `json:"name"`
			Endpoints []struct{ Name, Subject string }
		}
		m, err := agent.Request(t.Context(), "$SRV.INFO.toolfleet", nil, nil)
		if err == nil {
			err = json.Unmarshal(m.Data, &info)
		}
		if err != nil || info.Name != "toolfleet" || len(info.Endpoints) != 2 || info.Endpoints[0].Subject != "toolfleet.run.*.*.*" {
			t.Errorf("info: %+v, %v", info, err)
		}

		// Requests are handled at the same time.
		answers := make(chan []string, 3)
		began := time.Now()
		for range 3 {
			go func() {
				var got []string
				err := agent.Stream(context.WithoutCancel(t.Context()), agent.Names().Of(wire.VerbRun, bustest.Key("s", "b")), nil, []byte("reply"), func(m bus.Msg) bool {
					got = append(got, m.Header.Get("toolfleet-event")+":"+string(m.Data))
					return len(got) < 2
				})
				if err != nil {
					t.Error(err)
				}
				answers <- got
			}()
		}
		for range 3 {
			got := bustest.Receive(t, answers)
			if len(got) != 2 || got[0] != "start:toolfleet.run._.s.b" || got[1] != ":reply" {
				t.Errorf("answers: %q", got)
			}
		}
		if waited := time.Since(began).Round(time.Second); waited != 2*time.Second {
			t.Errorf("three requests of 2 s took %v", waited)
		}

		m, err = agent.Request(t.Context(), agent.Names().Of(wire.VerbGet, bustest.Key("s", "b")), nil, nil)
		if err != nil || m.Header.Get("Nats-Service-Error-Code") != "404" {
			t.Errorf("get: %+v, %v", m, err)
		}

		// stop returns only after the running requests.
		if err := agent.Publish(agent.Names().Of(wire.VerbRun, bustest.Key("s", "b")), nil, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		stop()
		stop()
		if running.Load() != 0 {
			t.Error("stopped with a request running")
		}
		if _, err := agent.Request(t.Context(), agent.Names().Of(wire.VerbGet, bustest.Key("s", "b")), nil, nil); !errors.Is(err, bus.ErrNoResponders) {
			t.Errorf("after the stop: %v", err)
		}
	})
}

func TestServeRefusesABadService(t *testing.T) {
	c := bustest.Connect(t, natstest.Server(t))
	for _, s := range []service.Service{
		{Name: "a b", Version: "1.0.0"},
		{Name: "a", Version: "one"},
		{Name: "a", Version: "1.0.0", Endpoints: []service.Endpoint{{Name: "e", Subject: "a..b", Handle: func(bus.Msg) {}}}},
	} {
		if stop, err := service.Serve(t.Context(), c, s); err == nil {
			stop()
			t.Errorf("served %+v", s)
		}
	}
}
