package e2e

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A batch says with labels what it is for, and an HTTP server signs for which user it was
// sent. Rules, hooks, tools, questions, start events and the audit log show both. A user
// without a valid signature is ignored.
func TestWhoAsks(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		api, stranger := newSigner(t), newSigner(t)
		var mu sync.Mutex
		seen := map[string]messages.Principal{} // by observer and batch
		labelled := map[string]map[string]string{}
		saw := func(who string, batch messages.BatchID, tenant messages.TenantID, user string, labels map[string]string) {
			mu.Lock()
			defer mu.Unlock()
			seen[who+" "+string(batch)], labelled[who+" "+string(batch)] = messages.Principal{Tenant: tenant, User: user}, labels
		}
		f.tool(schemas.Tool{Name: "act", Kind: messages.KindWrite}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			saw("tool", c.Batch, c.Tenant, c.User, c.Labels)
			return tool.Text("done"), nil
		})
		hooks, err := hook.NewSet(hook.Hook{Name: "look", Match: "act", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			saw("hook", c.Batch, c.Tenant, c.User, c.Labels)
			return hook.Verdict{}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		f.worker(worker.Config{Hooks: hooks, Rules: rules(t, "default: allow\ndeny:\n  - {tool: act, when: \"principal.user != 'ann' && has(labels.env) && labels.env == 'prod'\", name: prod}\n")})
		f.coordinator(coordinator.Config{HTTPKeys: []string{api.Key()}})

		start := map[messages.BatchID]messages.Event{}
		run := func(id string, signer *principal.Signer, user string, labels map[string]string) messages.Status {
			t.Helper()
			c := f.client
			if signer != nil {
				c = fleettest.AgentOver(f.conn, messages.OneTenant).OnBehalf(func(digest string) string {
					statement, err := signer.Sign(digest, messages.Principal{Tenant: messages.OneTenant, User: user})
					if err != nil {
						t.Error(err)
					}
					return statement
				})
			}
			b := canonical("s", id, call{"act", "{}"})
			b.Labels = labels
			reply, err := c.Run(t.Context(), b, client.OnEvent(func(e messages.Event) {
				if e.Type == messages.EventStart {
					start[e.Batch] = e
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			return reply.Results[0].Status
		}
		prod := map[string]string{"env": "prod", "cost-center": "7"}
		for _, row := range []struct {
			id     string
			signer *principal.Signer
			user   string
			labels map[string]string
			status messages.Status
			known  string
		}{
			{"ann", api, "ann", prod, messages.StatusOK, "ann"},
			{"bob", api, "bob", prod, messages.StatusDenied, "bob"},
			{"forged", stranger, "ann", prod, messages.StatusDenied, ""},
			{"unsigned", nil, "", prod, messages.StatusDenied, ""},
			{"unlabelled", api, "bob", nil, messages.StatusOK, "bob"},
		} {
			if got := run(row.id, row.signer, row.user, row.labels); got != row.status {
				t.Errorf("%s: got %s, want %s", row.id, got, row.status)
			}
			want := messages.Principal{Tenant: messages.OneTenant, User: row.known}
			for _, who := range []string{"hook", "tool"} {
				key := who + " " + row.id
				if _, ran := seen[key]; !ran && row.status == messages.StatusDenied {
					continue
				}
				if seen[key] != want || !cmp.Equal(labelled[key], row.labels) {
					t.Errorf("%s: the %s saw %v and %v, want %v and %v", row.id, who, seen[key], labelled[key], want, row.labels)
				}
			}
			e := start[messages.BatchID(row.id)]
			var lines []messages.AuditRecord
			f.until("the call of "+row.id+" has its line", func() bool { // it is stored after the reply
				lines = f.auditLines(audit.Filter{Session: "s", Batch: messages.BatchID(row.id)})
				return len(lines) == 1
			})
			for where, got := range map[string]struct {
				who    *messages.Principal
				labels map[string]string
			}{"the start event": {e.Principal, e.Labels}, "the audit log": {lines[0].Principal, lines[0].Labels}} {
				if !cmp.Equal(got.labels, row.labels) || (got.who != nil) != (row.known != "") || got.who != nil && *got.who != want {
					t.Errorf("%s: %s says %v and %v, want %v and %v", row.id, where, got.who, got.labels, want, row.labels)
				}
			}
		}
		if got := run("ann", api, "bob", prod); got != messages.StatusOK { // the first user counts
			t.Errorf("the same batch of another user: %s", got)
		}
	})
}

func newSigner(t *testing.T) *principal.Signer {
	t.Helper()
	s, err := principal.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
