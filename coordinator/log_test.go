package coordinator

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// written is a log that can be read while lines are added.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

// lines returns the log lines with this message.
func (w *written) lines(message string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(line, `msg="`+message+`"`) || strings.Contains(line, "msg="+message+" ") {
			found = append(found, line)
		}
	}
	return found
}

func (o *office) logs() *written {
	w := &written{}
	o.log = slog.New(slog.NewTextHandler(w, nil))
	return w
}

// A batch waits for a person: it is not logged as taken over, and its duration includes the
// wait. Log lines about a decision have the same fields as other lines about the call.
func TestTheLogOfABatchThatWaited(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		log := o.logs()
		key, q := o.asked()
		time.Sleep(12 * time.Minute) // the coordinator looks at the batch several times meanwhile
		o.decide(key, o.decision(q, messages.VerdictApprove, "alice"))
		o.reply(key.BatchKey, soon)
		o.until("it is said that it is replied to", soon, func() bool { return len(log.lines("replied")) == 1 })
		if taken := log.lines("batch taken over"); len(taken) > 0 {
			t.Errorf("a batch that rested looks like one that was lost: %s", taken)
		}
		if on := log.lines("batch goes on after an answer"); len(on) != 1 {
			t.Errorf("goes on: %s, want one line", on)
		}
		took := regexp.MustCompile(`took=(\S+)`).FindStringSubmatch(log.lines("replied")[0])
		if d, err := time.ParseDuration(took[1]); err != nil || d < 12*time.Minute || d > 12*time.Minute+soon {
			t.Errorf("took %s, want some 12 minutes", took[1])
		}
		decided := log.lines("decided")
		if want := fmt.Sprintf(" batch=b session=s tenant=%s call=%s ", messages.OneTenant, q.CallID); len(decided) != 1 || !strings.Contains(decided[0], want) {
			t.Errorf("decided: %s, want one line with%s", decided, want)
		}
	})
}

// A refused decision is logged as often as it has an audit line, and without arguments.
func TestTheLogOfRefusedDecisions(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		log := o.logs()
		key, q := o.asked()
		o.decide(key, o.decision(q, messages.VerdictApprove, "agent"))
		o.decide(key, []byte("{"))
		lines := log.lines("decision refused")
		for i, want := range []string{
			fmt.Sprintf("level=WARN msg=\"decision refused\" batch=b session=s tenant=%s call=%s class=self_approval approval=%s verdict=approve by=agent\n", messages.OneTenant, q.CallID, q.ID),
			fmt.Sprintf("level=WARN msg=\"decision refused\" batch=b session=s tenant=%s index=0 class=invalid_decision\n", messages.OneTenant),
		} {
			if len(lines) != 2 || !strings.HasSuffix(lines[i], want) {
				t.Fatalf("log\n%s\nwant in line %d\n%s", lines, i, want)
			}
		}
		forged := o.decision(q, messages.VerdictApprove, "alice", func(d *messages.Decision) { d.By = "bob" })
		for range 2 * refusalBurst {
			o.decide(key, forged)
		}
		if n := len(log.lines("decision refused")); n < refusalBurst || n > refusalBurst+30 {
			t.Errorf("%d lines of a flood, want some %d", n, refusalBurst)
		}
	})
}

// A refused batch has one log line, which quotes nothing of the batch. If the fleet itself
// caused the refusal, the line is written where the cause is found.
func TestTheLogOfARefusedBatch(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		log := o.logs()
		_, stop := o.coordinator(Config{})
		for id, message := range map[string]string{
			"twice": `{"calls":[{"id":"SECRET","name":"refund","input":{}},{"id":"SECRET","name":"refund","input":{}}]}`, "none": `{"SECRET":[]}`,
		} {
			b := messages.Batch{V: 1, ID: messages.BatchID(id), Session: "s", Provider: messages.Canonical, Message: []byte(message)}
			key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
			_, err := o.conn.Append(t.Context(), o.names.Of(wire.VerbBatch, key), nil, rawjson.MustMarshal(b))
			o.must(err)
			o.reply(key, soon)
		}
		stop()
		lines := log.lines("refused")
		slices.Sort(lines)
		if all := strings.Join(lines, ""); len(lines) != 2 || !strings.Contains(all, "class=duplicate_id place=calls[1]\n") || !strings.Contains(all, "class=malformed_message") {
			t.Errorf("refused: %s", lines)
		}
		if text := log.text.String(); len(log.lines("replied")) > 0 || strings.Contains(text, "SECRET") {
			t.Errorf("log %s", text)
		}
	})
}

func TestHowABatchGoesOn(t *testing.T) {
	denied := &messages.Result{Outcome: messages.Failed(messages.CodeDeniedByUser, "no")}
	record := func(state wire.CallState, r *messages.Result) journal.CallEntry {
		return journal.CallEntry{Record: wire.CallRecord{State: state, Result: r}}
	}
	parked, granted, claimed := record(wire.Parked, nil), record(wire.Granted, nil), record(wire.Claimed, nil)
	const taken, answered, waits = "INFO batch taken over", "INFO batch goes on after an answer", "DEBUG batch that waits for people is looked at"
	for _, tt := range []struct {
		records []journal.CallEntry
		want    string
	}{
		{nil, taken},
		{[]journal.CallEntry{claimed}, taken},
		{[]journal.CallEntry{record(wire.Ended, &messages.Result{})}, taken},
		{[]journal.CallEntry{granted}, answered},
		{[]journal.CallEntry{parked, granted}, answered},
		{[]journal.CallEntry{record(wire.Ended, denied)}, answered},
		{[]journal.CallEntry{parked}, waits},
		{[]journal.CallEntry{parked, record(wire.Ended, denied)}, waits},
		{[]journal.CallEntry{granted, claimed}, taken},
	} {
		level, what := describeResume(tt.records)
		if got := level.String() + " " + what; got != tt.want {
			t.Errorf("%+v: got %s, want %s", tt.records, got, tt.want)
		}
	}
}
