package audit

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// A filter selects the same lines as a simple check of every line.
func TestFilters(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{Plain: true})
	r := rand.New(rand.NewPCG(5, 5))
	tenants, sessions := []messages.TenantID{"_", "acme"}, []messages.SessionID{"s1", "a session"}
	batches, calls := []messages.BatchID{"b1", "b 2"}, []messages.CallID{"c0", "c\"1<\u2028\\/\x01é", ""}
	tools, people, workers := []string{"look", "pay"}, []string{"ann", "bob"}, []string{"w1", "w2"}
	statuses := []messages.Status{messages.StatusOK, messages.StatusDenied}
	types := []messages.AuditType{messages.AuditCall, messages.AuditAsked, messages.AuditDecided}
	for n := range 300 {
		line := messages.AuditRecord{
			V: 1, Type: pick(r, types...), Tenant: pick(r, tenants...), Session: pick(r, sessions...), Batch: pick(r, batches...),
			CallID: pick(r, calls...), Tool: pick(r, tools...), Worker: pick(r, workers...), Status: pick(r, statuses...), TraceID: pick(r, "t1", ""), Round: pick(r, 0, 1, 2),
		}
		if r.IntN(2) == 0 {
			line.Permission = &messages.Permission{Effect: pick(r, "allow", "ask"), By: []string{pick(r, people...)}}
		}
		if r.IntN(4) == 0 && line.Type != messages.AuditCall {
			line.Decision = &messages.Decision{By: pick(r, people...), Input: json.RawMessage(`"canary"`)}
		}
		err := error(nil)
		if key := wire.KeyOf(string(line.Tenant), line.Session, line.Batch); line.Type == messages.AuditCall {
			err = l.Append(t.Context(), key, uint64(n), alone(line))
		} else if n%2 == 0 {
			err = l.WriteQuestion(t.Context(), key.Call(line.Index), line)
		} else {
			err = l.Write(t.Context(), line)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type stored struct {
		Entry
		text string
	}
	var everything []stored
	if err := l.Read(t.Context(), Filter{}, func(e Entry) bool {
		everything = append(everything, stored{e, string(rawjson.MustMarshal(e.Line))})
		return true
	}); err != nil || len(everything) != 300 {
		t.Fatalf("%d lines, %v", len(everything), err)
	}
	none := func(p **messages.Permission) *messages.Permission {
		if *p == nil {
			return &messages.Permission{}
		}
		return *p
	}
	for range 200 {
		f := Filter{
			Tenant: pick(r, "", "_", "acme"), Session: pick(r, "", "", sessions[0], sessions[1]), Batch: pick(r, "", "", batches[0], batches[1]),
			Call: pick(r, "", "", calls[0], calls[1]), Tool: pick(r, "", "", "", "pay"), Status: pick(r, "", "", "", statuses[1]), Type: pick(r, "", "", "", types[0], types[2]),
			Effect: pick(r, "", "", "", "ask"), Approver: pick(r, "", "", "", "ann"), Worker: pick(r, "", "", "", "w2"), Trace: pick(r, "", "", "", "t1"), Round: pick(r, 0, 0, 0, 2),
		}
		if r.IntN(3) == 0 {
			f.Since = everything[r.IntN(300)].Stored
		}
		if r.IntN(3) == 0 {
			f.Until = everything[r.IntN(300)].Stored
		}
		var want, got []string
		for _, e := range everything {
			line := e.Line
			is := func(wanted, has string) bool { return wanted == "" || wanted == has }
			by := none(&line.Permission).By
			if line.Decision != nil {
				by = append(slices.Clone(by), line.Decision.By)
			}
			if is(f.Tenant, string(line.Tenant)) && is(string(f.Session), string(line.Session)) && is(string(f.Batch), string(line.Batch)) &&
				is(string(f.Call), string(line.CallID)) && is(f.Tool, line.Tool) && is(string(f.Status), string(line.Status)) && is(string(f.Type), string(line.Type)) &&
				is(f.Effect, none(&line.Permission).Effect) && (f.Approver == "" || slices.Contains(by, f.Approver)) && is(f.Worker, line.Worker) && is(f.Trace, line.TraceID) && (f.Round == 0 || f.Round == line.Round) &&
				!e.Stored.Before(f.Since) && (f.Until.IsZero() || e.Stored.Before(f.Until)) {
				want = append(want, e.text)
			}
		}
		for _, line := range l.all(t, f) {
			got = append(got, string(rawjson.MustMarshal(line)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", f, diff)
		}
	}
	for _, e := range everything {
		if strings.Contains(e.text, "canary") {
			t.Errorf("the arguments of an edit are on record: %s", e.text)
		}
	}
}
