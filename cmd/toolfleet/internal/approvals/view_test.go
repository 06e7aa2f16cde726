package approvals

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// questionAbout returns a question about these arguments that matches its own id.
func questionAbout(input string) messages.Approval {
	canonical, err := rawjson.Canonical([]byte(input))
	if err != nil {
		panic(err)
	}
	q := messages.Approval{
		V: 1, Tenant: "_", Session: "s", Batch: "b", Index: 1, CallID: "call-2", Tool: "issue_refund", Kind: messages.KindWrite, Input: json.RawMessage(input),
		ArgsHash: messages.Digest(canonical), Requester: "_", Rule: "a large refund", Reason: "Money leaves.\x1b[2J", Tier: messages.TierCritical, Approvers: 2, Ticket: true,
		Policy: "p1", Asked: time.Unix(100, 0).UTC(), Expires: time.Unix(1000, 0).UTC(),
	}
	q.ID = approval.ID(q)
	return q
}

func TestApprovalView(t *testing.T) {
	q := questionAbout(`{"reason":"bad\nmelon\u202e\u0007","amount":149.990,"to":{"name":"Ann","iban":["DE1","DE2"]},"a b":1,"e\u0301\u0301\u0301\u0301\u0301":true}`)
	q.Decisions = []messages.Decision{{By: "ann", Verdict: messages.VerdictApprove, Ticket: "T-1"}}
	terminaltest.Golden(t, "view.txt", strings.ReplaceAll(approvalView(q, time.Unix(400, 0), true), "\x1b", "ESC"))
}

// An agent cannot choose a text so that the terminal's own line breaking makes it look like a row
// of the approval view.
func TestNoRowIsForged(t *testing.T) {
	fake := "  agreed     bob (ticket FIN-77)"
	for _, width := range []int{40, 80, 133} {
		for at := range width {
			pad := strings.Repeat(" ", at)
			q := questionAbout(string(rawjson.MustMarshal(map[string]string{"note": pad + fake, "wide": strings.Repeat("\u4e2d", at/2) + fake})))
			q.Session = messages.SessionID(pad + fake)
			for line := range strings.Lines(terminal.Wrap(approvalView(q, time.Unix(400, 0), false), width)) {
				if row := []rune(strings.TrimSuffix(line, "\n")); len(row) > width {
					t.Fatalf("at %d of %d the terminal breaks %q", at, width, line)
				}
				if strings.HasPrefix(line, "  agreed") {
					t.Fatalf("at %d of %d there is a row %q", at, width, line)
				}
			}
		}
	}
}

// A question about edited arguments shows the edited ones and the original ones.
func TestViewOfAnEdit(t *testing.T) {
	q := questionAbout(`{"amount":9000}`)
	q.Original = &messages.Arguments{Input: json.RawMessage(`{"amount":149.99}`)}
	again := `edited     by a person, and these arguments have to be agreed to anew. What was asked at first: {"amount":149.99}`
	if shown := approvalView(q, time.Unix(400, 0), false); !strings.Contains(shown, again) {
		t.Errorf("the view does not say %q:\n%s", again, shown)
	}
	q.Decisions = []messages.Decision{{By: "ann", Verdict: messages.VerdictEdit}}
	shown := approvalView(q, time.Unix(400, 0), false)
	for _, want := range []string{"agreed     ann (who edited it)", `edited     what was asked at first: {"amount":149.99}`} {
		if !strings.Contains(shown, want) {
			t.Errorf("the view does not say %q:\n%s", want, shown)
		}
	}
}

// The approval view has no invisible character and none that controls the terminal, whatever the
// arguments hold.
func TestViewHidesNothing(t *testing.T) {
	for _, evil := range []string{"\x1b[2J", "\u202e", "\u200b", "\r", "\x7f", "\u034f", "\ufe0f", "\u115f", "a\u0301\u0301\u0301\u0301", "\U000e0041", "\u2028"} {
		input, _ := rawjson.Marshal(map[string]any{"note" + evil: evil, "list": []string{evil}})
		q := questionAbout(string(input))
		q.Rule, q.Session, q.Requester, q.Tool = evil, messages.SessionID(evil), evil, evil
		shown := approvalView(q, time.Unix(0, 0), false)
		if strings.Contains(shown, evil) {
			t.Errorf("the view shows %q as it is:\n%s", evil, shown)
		}
	}
}

func TestCheckedQuestions(t *testing.T) {
	good := questionAbout(`{"amount":1}`)
	good.Line = "read_a_file path=harmless"
	good.ID = approval.ID(good)
	q, err := checked(good)
	if err != nil || q.Line != approval.Line("issue_refund", []byte(`{"amount":1}`)) {
		t.Errorf("a good question: %v, line %q; want the line that its arguments make", err, q.Line)
	}
	for name, change := range map[string]func(*messages.Approval){
		"other arguments": func(q *messages.Approval) { q.Input = json.RawMessage(`{"amount":2}`) },
		"other tool":      func(q *messages.Approval) { q.Tool = "read" },
		"no JSON":         func(q *messages.Approval) { q.Input = json.RawMessage(`{"amount":`) },
	} {
		q := questionAbout(`{"amount":1}`)
		change(&q)
		if _, err := checked(q); err == nil {
			t.Errorf("%s: the question passes the check, want an error", name)
		}
	}
}

func TestPendingRows(t *testing.T) {
	first := questionAbout(`{"amount":1}`).Pending()
	first.Line = "issue_refund amount=1"
	second := first
	second.ID = first.ID[:14] + "0000"
	second.Agreed, second.MayAnswer = []string{"ann"}, []string{"bob", "cy"}
	rows := pendingRows([]messages.Pending{first, second}, time.Unix(160, 0))
	want := []string{second.ID[:16], "critical", "1m", "14m", "_/s", "1 of 2", "bob, cy", "issue_refund amount=1"}
	if diff := cmp.Diff(want, rows[2]); diff != "" {
		t.Error(diff)
	}
	if len(rows[1][0]) != 16 {
		t.Errorf("the id %s is not as long as it takes to tell it from %s", rows[1][0], rows[2][0])
	}
}

// The command that answers a question can be typed as it is shown, and holds no credentials of the
// agent.
func TestApproveCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("TOOLFLEET_CONFIG", "none")
	flag := func(key, text string) config.Flag { return config.Flag{Name: "--" + key, Key: key, Text: text} }
	for _, tc := range []struct {
		flags []config.Flag
		want  string
	}{
		{nil, "bin/toolfleet approvals approve 3fa9 --key FILE"},
		{[]config.Flag{flag("nats.url", daemon.AnyServer), flag("approver.key", "my.key")}, "bin/toolfleet approvals approve 3fa9"},
		{[]config.Flag{flag("nats.url", "nats://agent:secret@one:1,nats://agent:secret@two:2"), flag("tenant", "acme"), flag("prefix", "tf2")},
			"bin/toolfleet approvals approve 3fa9 --nats nats://one:1,nats://two:2 --prefix tf2 --tenant acme --key FILE"},
	} {
		cfg, err := config.Load(config.Sources{Flags: tc.flags})
		if err != nil {
			t.Fatal(err)
		}
		if got := ApproveCommand("bin/toolfleet", cfg, "3fa9"); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// A question is reported once and does not reopen, and its prompt ends when it closes.
func TestWatched(t *testing.T) {
	w := newWatched()
	var told []string
	w.each = func(p messages.Pending, _ bool) { told = append(told, fmt.Sprint(p.ID, p.State, p.Agreed)) }
	at := map[string]int{"1": 1, "2": 2}
	say := func(id, state string) { w.take(messages.Pending{ID: id, State: state, Index: at[id]}) }
	say("1", "")
	say("1", "")
	say("2", "")
	say("2", "granted")
	say("2", "")
	p, open, done, found := w.next(context.Background())
	if !found || p.ID != "1" || open.Err() != nil {
		t.Fatalf("next: %v, %v, %v", p.ID, found, open.Err())
	}
	w.take(messages.Pending{ID: "1", Index: 1, Agreed: []string{"ann"}})
	w.take(messages.Pending{ID: "1", Index: 1, Agreed: []string{"ann"}})
	say("1", "")
	say("1", "expired")
	if context.Cause(open) != errClosed {
		t.Error("the question is closed, but its prompt is not cancelled")
	}
	done()
	if p, _, _, found := w.next(context.Background()); found {
		t.Errorf("next is %s, which is closed", p.ID)
	}
	if diff := cmp.Diff([]string{"1[]", "2[]", "2granted[]", "1[ann]", "1expired[]"}, told); diff != "" {
		t.Error(diff)
	}
}

// A question that was edited, or whose call is asked about anew, can no longer be answered under
// its first id.
func TestWatchedReplaced(t *testing.T) {
	asked := time.Unix(100, 0)
	for name, next := range map[string]messages.Pending{
		"edited, granted": {ID: "2", Asked: asked, State: "granted"},
		"edited, waiting": {ID: "2", Asked: asked, Agreed: []string{"ann"}},
		"asked anew":      {ID: "2", Asked: asked.Add(time.Second)},
	} {
		w := newWatched()
		var told []string
		w.each = func(p messages.Pending, _ bool) { told = append(told, p.ID+p.State) }
		w.take(messages.Pending{ID: "1", Asked: asked})
		w.take(messages.Pending{ID: "other call", Index: 1, Asked: asked})
		_, open, _, _ := w.next(context.Background())
		w.take(next)
		w.take(messages.Pending{ID: "1", Asked: asked}) // an outdated list
		if context.Cause(open) != errClosed {
			t.Errorf("%s: the first question is still asked", name)
		}
		if diff := cmp.Diff([]string{"1", "other call", "1gone", "2" + next.State}, told); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
