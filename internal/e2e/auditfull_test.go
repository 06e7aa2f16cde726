package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// fullAuditLog returns the configuration of a coordinator that makes the audit log too small
// for any line. freeSpace removes the limit.
func fullAuditLog(f *fleet) (cfg coordinator.Config, freeSpace func()) {
	return fullStream(f, bus.Audit)
}

// fullStream makes the named stream too small for any message, as fullAuditLog does with the
// audit log.
func fullStream(f *fleet, name string) (cfg coordinator.Config, freeSpace func()) {
	cfg.Provision.MaxBytes = map[string]int64{name: 1}
	return cfg, func() {
		f.t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stream := f.conn.Names().Stream(name)
		var info struct {
			Config map[string]any `json:"config"`
		}
		m, err := f.conn.Request(ctx, "$JS.API.STREAM.INFO."+stream, nil, nil)
		if err == nil {
			err = json.Unmarshal(m.Data, &info)
		}
		if err == nil {
			info.Config["max_bytes"] = -1
			m, err = f.conn.Request(ctx, "$JS.API.STREAM.UPDATE."+stream, nil, rawjson.MustMarshal(info.Config))
		}
		if err != nil || bytes.Contains(m.Data, []byte(`"error"`)) {
			f.t.Fatalf("make room in %s: %v, %s", stream, err, m.Data)
		}
	}
}

// The audit log is full when a batch ends. Its reply is published, but the batch stays in the
// log, no matter which coordinator drives it. With a lookahead of 1 the next batch of the
// session waits. Once there is room, both batches have their audit lines, and no call has run
// twice.
func TestABatchWaitsForItsAuditLines(t *testing.T) {
	for name, lost := range map[string]func(f *fleet, p part, l *link){
		"the coordinator goes on":                 func(*fleet, part, *link) {},
		"another coordinator gets the delivery":   func(_ *fleet, p part, _ *link) { p.stop() },
		"another coordinator finds it in the log": func(f *fleet, _ part, l *link) { l.set(conditions{silent: true}, conditions{silent: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var runs atomic.Int64
				count := func(_ context.Context, c tool.Call) (tool.Output, error) {
					runs.Add(1)
					return tool.Text("done"), nil
				}
				f.tool(schemas.Tool{Name: "look", Kind: messages.KindRead}, count)
				f.tool(schemas.Tool{Name: "put", Kind: messages.KindWrite}, count)
				cfg, freeSpace := fullAuditLog(f)
				l := newLink(t, srv)
				conn := l.connect(f, "coordinator")
				cfg.Logger, cfg.Drain, cfg.Lookahead = f.log, time.Millisecond, 1
				c, err := coordinator.New(conn, cfg)
				if err != nil {
					t.Fatal(err)
				}
				first := f.start(conn, c.Run)
				f.worker(worker.Config{})
				f.until("the coordinator is ready", c.Ready)
				one := canonical("s", "one", call{"look", ""}, call{"put", ""}, call{"nothing_like_that", ""})
				two := canonical("s", "two", call{"put", ""})
				f.submit(one)
				f.submit(two)
				reply := f.reply(one, time.Minute)
				f.wantStatuses(reply, "ok ok unknown_tool")
				time.Sleep(time.Minute) // simulated: the coordinator tries again and again
				if got := f.auditLines(audit.Filter{}); len(got) != 0 || runs.Load() != 2 {
					t.Fatalf("%d lines, %d runs", len(got), runs.Load())
				}
				lost(f, first, l)
				if name != "the coordinator goes on" {
					f.coordinator(coordinator.Config{Provision: cfg.Provision, Lookahead: 1})
					// JetStream does not deliver the batch again so soon.
					if strings.HasPrefix(name, "another coordinator finds") {
						// A request goes to one of two coordinators, of which one is silent.
						// So the test asks until the other coordinator answers.
						f.until("a coordinator wakes the session", func() bool {
							ctx, cancel := context.WithTimeout(context.Background(), time.Second)
							defer cancel()
							_, err := f.client.Abort(ctx, "s", "no such batch", byOps)
							return err == nil
						})
					}
					time.Sleep(30 * time.Second)
					if got := f.auditLines(audit.Filter{}); len(got) != 0 || runs.Load() != 2 {
						t.Fatalf("%d lines, %d runs", len(got), runs.Load())
					}
				}
				freeSpace()
				// Wait for the event of the reply: a request for the reply may reach the
				// silent coordinator.
				second := f.reply(two, time.Minute)
				f.wantStatuses(second, "ok")
				f.wantAuditLines(one, reply)
				f.wantAuditLines(two, second)
				if runs.Load() != 3 {
					t.Errorf("%d runs, want 3", runs.Load())
				}
				f.submit(one) // submitting a finished batch again makes no other batch
				f.awaitGone(one)
				if got := f.auditLines(audit.Filter{}); len(got) != 4 {
					t.Errorf("%d lines after a batch was submitted again, want 4", len(got))
				}
				l.set(conditions{}, conditions{})
			})
		})
	}
}

// Two coordinators drive the same batches. The audit log has each line once.
func TestCoordinatorsRaceForTheAuditLines(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "put", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) {
			time.Sleep(20 * time.Second) // the first coordinator is cut off before the end
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{Slots: 50})
		l := newLink(t, srv)
		f.coordinatorOver(l)
		var batches []messages.Batch
		for n := range 20 {
			b := canonical(fmt.Sprint("s", n), "b", call{"put", ""}, call{"nothing_like_that", ""})
			batches = append(batches, b)
			f.submit(b)
		}
		time.Sleep(5 * time.Second) // simulated: all calls run
		// The link of the first coordinator is silent, and the second coordinator finishes the
		// batches. Then the link works again, and the first coordinator finishes the same
		// batches.
		l.set(conditions{silent: true}, conditions{silent: true})
		f.coordinator(coordinator.Config{})
		for _, b := range batches {
			f.wantAuditLines(b, f.reply(b, 5*time.Minute))
		}
		l.set(conditions{}, conditions{})
		time.Sleep(time.Minute)
		if got := f.auditLines(audit.Filter{}); len(got) != 40 {
			t.Errorf("%d lines, want 40", len(got))
		}
	})
}
