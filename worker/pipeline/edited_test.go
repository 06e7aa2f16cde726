package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A person changes the arguments and approves: they are checked like all arguments, and the
// model reads about the change.
func TestEditedCall(t *testing.T) {
	small := with(write, func(t *schemas.Tool) {
		t.Semantic = []schemas.SemanticRule{{Require: "input.n < 100", Message: "n must be below 100."}}
	})
	edit := func(input string) func(*messages.Decision) {
		return func(d *messages.Decision) { d.Input = json.RawMessage(input) }
	}
	t.Run("runs", func(t *testing.T) {
		d := deskFor(t, Config{Rules: rules(t, "", "ask w")}, small, &probe{})
		job := askJob(`{"n":1}`)
		parked := d.asks(job, nil)
		granted := d.says(parked, "bob", messages.VerdictEdit, edit(`{"n":42}`))
		r, claimed := d.runs(job, &granted)
		if r.Status != messages.StatusOK || len(claimed) != 1 || string(claimed[0].Input) != `{"n":42}` || !r.Permission.Edited {
			t.Fatalf("got %s %v, %+v, claimed %+v", r.Status, r.Err, r.Permission, claimed)
		}
		want := []messages.Block{
			{Type: "text", Text: `{"n":42}`},
			{Type: "text", Text: `A person (bob) changed the arguments before this ran. It ran with: {"n":42}`},
		}
		if diff := cmp.Diff(want, r.Content); diff != "" {
			t.Error(diff)
		}
		if len(d.lines) != 1 || d.lines[0].Original != parked.ArgsHash || d.lines[0].ArgsHash == parked.ArgsHash {
			t.Errorf("audited %+v", d.lines)
		}
	})
	t.Run("fails, and the model is told all the same", func(t *testing.T) {
		d := deskFor(t, Config{Rules: rules(t, "", "ask w")}, small, &probe{run: func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Output{}, errors.New("no luck")
		}})
		job := askJob(`{"n":1}`)
		granted := d.says(d.asks(job, nil), "bob", messages.VerdictEdit, edit(`{"n":42}`))
		if r, _ := d.runs(job, &granted); r.Err == nil || !strings.Contains(r.Err.Message, "changed the arguments") {
			t.Errorf("got %s %+v", r.Status, r.Err)
		}
	})
	t.Run("and asked about again", func(t *testing.T) {
		d := deskFor(t, Config{Rules: rules(t, "", "ask w")}, small, &probe{})
		job := askJob(`{"n":1}`)
		first := d.asks(job, nil)
		granted := d.says(first, "bob", messages.VerdictEdit, edit(`{"n":42}`))
		d.pipe.cfg.Rules = policy(t, permission.Config{Version: "v2", Default: permission.Ask})
		again := d.asks(job, &granted)
		if o := again.Approval.Original; o == nil || o.ArgsHash != first.ArgsHash || string(again.Approval.Input) != `{"n":42}` {
			t.Fatalf("the question is %+v", again.Approval)
		}
		granted = d.agrees(again)
		r, _ := d.runs(job, &granted)
		if r.Status != messages.StatusOK || !r.Permission.Edited || !strings.HasPrefix(r.Content[1].Text, "A person changed the arguments") {
			t.Errorf("got %s %+v %+v", r.Status, r.Permission, r.Content)
		}
	})
	for name, input := range map[string]string{"breaks the schema": `{"n":"x"}`, "breaks a rule": `{"n":100}`} {
		t.Run(name, func(t *testing.T) {
			d := deskFor(t, Config{Rules: rules(t, "", "ask w")}, small, &probe{})
			job := askJob(`{"n":1}`)
			granted := d.says(d.asks(job, nil), "bob", messages.VerdictEdit, edit(input))
			r, claimed := d.runs(job, &granted)
			if r.Err == nil || r.Err.Code != messages.CodeInvalidArguments || len(claimed) > 0 {
				t.Fatalf("got %s %+v", r.Status, r.Err)
			}
			if want := "A person changed the arguments. They now are: " + input; !strings.Contains(r.Err.Message, want) {
				t.Errorf("the model reads %q, want %q", r.Err.Message, want)
			}
			d.wantVoid(granted)
		})
	}
	t.Run("is denied, and the model is told", func(t *testing.T) {
		d := deskFor(t, Config{Rules: rules(t, "", "ask w", "deny w(n=13)")}, small, &probe{})
		job := askJob(`{"n":1}`)
		granted := d.says(d.asks(job, nil), "bob", messages.VerdictEdit, edit(`{"n":13}`))
		r, _ := d.runs(job, &granted)
		if r.Status != messages.StatusDenied || !r.Permission.Edited || !strings.Contains(r.Err.Message, "changed the arguments") {
			t.Errorf("got %s %+v %+v", r.Status, r.Permission, r.Err)
		}
		d.wantVoid(granted)
	})
	t.Run("is refused by a gate", func(t *testing.T) {
		gate := before("gate", func(c hook.Call) hook.Verdict {
			if strings.Contains(string(c.Input), "13") {
				return hook.Verdict{Opinion: hook.Deny, Reason: "unlucky"}
			}
			return hook.Verdict{}
		})
		d := deskFor(t, Config{Rules: rules(t, "", "ask w"), Hooks: hooks(t, gate)}, small, &probe{})
		job := askJob(`{"n":1}`)
		granted := d.says(d.asks(job, nil), "bob", messages.VerdictEdit, edit(`{"n":13}`))
		r, _ := d.runs(job, &granted)
		want := &messages.Permission{Effect: "deny", Source: "hook", Rule: "gate", Approval: granted.Approval.ID, Edited: true}
		if diff := cmp.Diff(want, r.Permission); diff != "" || r.Status != messages.StatusDenied {
			t.Errorf("got %s %v\n%s", r.Status, r.Err, diff)
		}
		d.wantVoid(granted)
	})
}

// A person changes the arguments so that the rules would allow the call without asking: it
// still runs only on a valid approval of these arguments.
func TestEditedToWhatNobodyIsAskedAbout(t *testing.T) {
	above := func(version string) Config {
		return Config{Rules: policy(t, permission.Config{Version: version, Layers: []permission.Layer{{Source: "platform", Rules: schemas.Rules{
			Risk: []schemas.RiskEntry{{Name: "above-50", Tool: "w", When: "input.n > 50", Tier: messages.TierHigh}},
		}}}})}
	}
	job := askJob(`{"n":149}`)
	change := func(d *messages.Decision) { d.Input = json.RawMessage(`{"n":40}`) }
	edited := func(t *testing.T) (*desk, wire.CallRecord) {
		d := deskFor(t, above("v1"), write, &probe{})
		return d, d.says(d.asks(job, nil), "alice", messages.VerdictEdit, change)
	}
	t.Run("holds", func(t *testing.T) {
		d, granted := edited(t)
		r, claimed := d.runs(job, &granted)
		if r.Status != messages.StatusOK || len(claimed) != 1 || string(claimed[0].Input) != `{"n":40}` {
			t.Fatalf("got %s %v, claimed %+v", r.Status, r.Err, claimed)
		}
		want := &messages.Permission{
			Effect: "ask", Source: "person", Tier: messages.TierLow, Policy: "v1", Approval: granted.Approval.ID, By: []string{"alice"}, Edited: true,
		}
		if diff := cmp.Diff(want, r.Permission); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]messages.AuditType{messages.AuditGranted}, d.audited()); diff != "" {
			t.Error(diff)
		}
	})
	for name, forge := range map[string]func(*desk, *wire.CallRecord){
		"signature": func(_ *desk, r *wire.CallRecord) { r.Approval.Decisions[0].Sig = "AAAA" },
		"nobody":    func(_ *desk, r *wire.CallRecord) { r.Approval.Decisions = nil },
		"other arguments": func(_ *desk, r *wire.CallRecord) {
			r.Approval.Input = json.RawMessage(`{"n":41}`)
			r.Approval.ArgsHash = messages.Digest(r.Approval.Input)
			r.ArgsHash, r.Approval.ID = r.Approval.ArgsHash, approval.ID(*r.Approval)
		},
		"policy": func(d *desk, _ *wire.CallRecord) { d.pipe.cfg.Rules = above("v2").Rules },
	} {
		t.Run(name, func(t *testing.T) {
			d, granted := edited(t)
			forge(d, &granted)
			again := d.asks(job, &granted)
			q := again.Approval
			if q.Approvers != 1 || q.Rule != "person" || q.Reason == "" || q.Original == nil || string(q.Original.Input) != `{"n":149}` || len(q.Decisions) > 0 {
				t.Errorf("the question is %+v", q)
			}
			d.wantVoid(granted)
			granted = d.says(again, "bob", messages.VerdictApprove, nil)
			if r, _ := d.runs(job, &granted); r.Status != messages.StatusOK || !slices.Equal(r.Permission.By, []string{"bob"}) {
				t.Errorf("got %s %v %+v", r.Status, r.Err, r.Permission)
			}
		})
	}
	t.Run("too late", func(t *testing.T) {
		d, granted := edited(t)
		d.now = asked.Add(ttl + approval.StartWithin)
		if r, _ := d.runs(job, &granted); r.Status != messages.StatusExpired || d.probe.effects.Load() > 0 {
			t.Errorf("got %s %v", r.Status, r.Err)
		}
		d.wantVoid(granted)
	})
	t.Run("nobody can be asked any more", func(t *testing.T) {
		d, granted := edited(t)
		d.pipe.cfg.Approvals = nil
		if r, _ := d.runs(job, &granted); r.Status != messages.StatusDenied || r.Err.Code != messages.CodeApprovalRequired || d.probe.effects.Load() > 0 {
			t.Errorf("got %s %v", r.Status, r.Err)
		}
		d.wantVoid(granted)
	})
}
