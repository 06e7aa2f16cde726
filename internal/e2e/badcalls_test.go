package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// tooDeep returns an input of an object whose member is an array nested this many levels deep.
func tooDeep(levels int) string {
	return `{"a":` + strings.Repeat("[", levels) + strings.Repeat("]", levels) + `}`
}

// One call of a batch names no tool or has an invalid input. That call is answered with an
// error, and the other calls run.
func TestABadCallDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	bad := []struct {
		call   call
		status messages.Status
		code   messages.Code
	}{
		{call{"", `{"n":1}`}, messages.StatusUnknownTool, messages.CodeUnknownTool},
		{call{"count", tooDeep(rawjson.MaxDepth)}, messages.StatusValidationError, messages.CodeInvalidArguments},
		{call{"count", tooDeep(100_000)}, messages.StatusValidationError, messages.CodeInvalidArguments},
		{call{"count", `{"n":1e401}`}, messages.StatusValidationError, messages.CodeInvalidArguments},
		{call{"count", `{"n":` + strings.Repeat("9", rawjson.MaxDigits+1) + `}`}, messages.StatusValidationError, messages.CodeInvalidArguments},
		{call{"count", `{"n":1,"n":2}`}, messages.StatusValidationError, messages.CodeInvalidArguments},
		{call{"count", `[1]`}, messages.StatusValidationError, messages.CodeInvalidArguments},
		{call{strings.Repeat("x", messages.MaxID+1), `{}`}, messages.StatusUnknownTool, messages.CodeUnknownTool},
	}
	for _, p := range messages.Providers {
		t.Run(string(p), func(t *testing.T) {
			metrics := prometheus.NewRegistry()
			f, runs := countingFleetWith(t, natstest.Server(t, natstest.Fast), coordinator.Config{Metrics: coordinator.NewMetrics(metrics)})
			defer f.close()
			calls := []call{{"count", `{"n":1}`}}
			type ended struct {
				Status messages.Status
				Code   messages.Code
			}
			want := []ended{{messages.StatusOK, ""}}
			unknown := 0
			for _, b := range bad {
				if b.call.Name == "" && p == messages.Gemini {
					continue // an answer in this dialect must repeat the tool's name
				}
				calls, want = append(calls, b.call), append(want, ended{b.status, b.code})
				if b.status == messages.StatusUnknownTool {
					unknown++
				}
			}
			calls, want = append(calls, call{"count", `{"n":2}`}), append(want, ended{messages.StatusOK, ""})
			b := batchIn(p, "s", "b", calls...)
			reply := f.run(b)
			var got []ended
			for _, r := range reply.Results {
				e := ended{Status: r.Status}
				if r.Err != nil {
					e.Code = r.Err.Code
				}
				got = append(got, e)
			}
			if diff := cmp.Diff(want, got); diff != "" || reply.Status != messages.ReplyCompleted {
				t.Errorf("%s, results (-want +got):\n%s", reply.Status, diff)
			}
			if n := runs.Load(); n != 2 {
				t.Errorf("%d calls have run, want the first and the last", n)
			}
			for i := range calls {
				if id := fmt.Sprintf(`"c%d"`, i); strings.Count(string(reply.Reinjection), id) != 1 {
					t.Errorf("the reinjection does not answer %s once: %.500s", id, reply.Reinjection)
				}
			}
			f.wantAuditLines(b, reply)
			f.until("the calls are counted", func() bool {
				n := counts(t, metrics)
				return n["toolfleet_batch_calls_total _unknown unknown_tool _unknown"] == float64(unknown) &&
					n["toolfleet_batch_calls_total write ok count"] == 2
			})
		})
	}
}

// A refusal names its batch and session with the ids in the body. If the body cannot be read,
// it uses the ids in the subject, unless a token of the subject is only the hash of an id.
func TestARefusalNamesItsBatch(t *testing.T) {
	f, runs := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	const spaced = "a session" // its token in a subject is a hash
	long := messages.SessionID(strings.Repeat("x", messages.MaxID+1))
	for i, tt := range []struct {
		session messages.SessionID // in the subject; the batches are b0, b1, ...
		body    string             // BATCH stands for the batch's id
		class   messages.Class
		want    messages.Batch
	}{
		{"s", `{"v":1,"id":"BATCH","session":"s","provider":"canonical","message":{}}`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: "s", Provider: "canonical"}},
		{spaced, `{"v":1,"id":"BATCH","session":"a session","provider":"canonical","message":{"calls":[`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: spaced, Provider: "canonical"}},
		{spaced, `{"v":1,"id":"BATCH","session":"a session","provider":"canonical","message":` + strings.Repeat("[", 900_000), messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: spaced, Provider: "canonical"}},
		{spaced, `{"v":"1","labels":[],"id":"BATCH","session":"a session","provider":"canonical","message":{}}`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: spaced, Provider: "canonical"}},
		{spaced, `{"v":1,"v":1,"id":"BATCH","session":"a session","provider":"canonical","message":{}}`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: spaced, Provider: "canonical"}},
		{spaced, `{"v":1,"id":"BATCH","session":"a session","session":"another","message":{}}`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH"}},
		{spaced, `nonsense`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH"}},
		{"s", `nonsense`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: "s"}},
		{"s", `{"v":1,"provider":"canonical","message":{}}`, messages.ClassMalformedMessage, messages.Batch{ID: "BATCH", Session: "s", Provider: "canonical"}},
		{"s", `{"v":1,"id":"` + strings.Repeat("x", messages.MaxID+1) + `","session":"s","provider":"canonical","message":{}}`, messages.ClassSubjectMismatch, messages.Batch{Session: "s", Provider: "canonical"}},
		{long, `{"v":1,"id":"BATCH","session":"` + string(long) + `","provider":"canonical","message":{}}`, messages.ClassTooLarge, messages.Batch{ID: "BATCH", Provider: "canonical"}},
		{"s", `{"v":1,"id":"another","session":"s","provider":"canonical","message":`, messages.ClassSubjectMismatch, messages.Batch{ID: "another", Session: "s", Provider: "canonical"}},
	} {
		id := fmt.Sprint("b", i)
		subject := f.conn.Names().Of(wire.VerbRun, wire.KeyOf(messages.OneTenant, tt.session, messages.BatchID(id)))
		answer, err := f.conn.Request(t.Context(), subject, nil, []byte(strings.ReplaceAll(tt.body, "BATCH", id)))
		if err != nil {
			t.Fatal(err)
		}
		var reply messages.Reply
		if err := json.Unmarshal(answer.Data, &reply); err != nil || reply.Error == nil {
			t.Fatalf("%.100s: %s, %v", tt.body, answer.Data, err)
		}
		tt.want.ID = messages.BatchID(strings.ReplaceAll(string(tt.want.ID), "BATCH", id))
		got := messages.Batch{ID: reply.Batch, Session: reply.Session, Provider: reply.Provider}
		if diff := cmp.Diff(tt.want, got); diff != "" || reply.Error.Class != tt.class {
			t.Errorf("%d: %.100s is refused as %v (-want +got):\n%s", i, tt.body, reply.Error, diff)
		}
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("%d calls have run", n)
	}
}
