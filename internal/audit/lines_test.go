package audit

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

const testKey = "0123456789abcdef0123456789abcdef"

func digest(t *testing.T, input string) string {
	t.Helper()
	canonical, err := messages.CanonicalJSON([]byte(input))
	if err != nil {
		t.Fatal(err)
	}
	return messages.Digest(canonical)
}

// The vectors were made by another program.
func TestHashes(t *testing.T) {
	keyed := Keyed([]byte(testKey))
	for name, tc := range map[string]struct {
		hash   Hasher
		tenant messages.TenantID
		input  string
		want   string
	}{
		"keyed":         {keyed, "_", `{"a":1,"b":2}`, "12b478e3b6dad468"},
		"other order":   {keyed, "_", `{ "b": 2, "a": 1 }`, "12b478e3b6dad468"},
		"other tenant":  {keyed, "acme", `{"a":1,"b":2}`, "de440290479d57c2"},
		"plain":         {Hasher{}, "_", `{"b":2,"a":1}`, "43258cff783fe703"},
		"plain, acme":   {Hasher{}, "acme", `{"b":2,"a":1}`, "43258cff783fe703"},
		"no tenant yet": {keyed, "", `{"a":1,"b":2}`, keyed.Of("", digest(t, `{"a":1,"b":2}`))},
	} {
		if got := tc.hash.Of(tc.tenant, digest(t, tc.input)); got != tc.want || len(got) != 16 {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	for _, none := range []string{"", "x", "abc=", strings.Repeat("é", 40), strings.Repeat("a", 63)} {
		if got := keyed.Of("_", none); got != "" {
			t.Errorf("the hash of %q is %q, want none", none, got)
		}
	}
}

func TestLines(t *testing.T) {
	accepted := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	began := accepted.Add(time.Second)
	b := Batch{
		Key: messages.KeyOf("acme", "a session", "b"), Session: "a session", ID: "b", Digest: "d", Provider: messages.Anthropic, Round: 3,
		Accepted: accepted, Writer: "c1", Now: accepted.Add(time.Minute),
	}
	sent, edited := `{"order_id":7,"customer":"x","secret":"canary"}`, `{"order_id":8,"secret":"canary"}`
	permission := &messages.Permission{Effect: "ask", Source: "person", Rule: "big", By: []string{"ann"}, Approval: "q"}
	calls := []Call{
		{Result: messages.Result{
			Index: 0, CallID: "c0", Tool: "refund", Kind: messages.Write, Status: messages.StatusOK, Outcome: messages.Text("canary"), Attempt: 2, Worker: "w",
			Started: began, DurationMS: 250, QueueMS: 4, Permission: permission,
			Trail: &messages.Trail{
				ArgsHash: digest(t, edited), ResultHash: digest(t, `"r"`), ToolHash: digest(t, `"raw"`), PhasesMS: messages.PhasesMS{Execute: 2},
				Span: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			},
		}, ToolDigest: "t0", Input: json.RawMessage(edited)},
		{Result: messages.Result{Index: 1, CallID: "c1", Tool: "admin_override", Status: messages.StatusUnknownTool,
			Outcome: messages.Failed(messages.CodeUnknownTool, "canary")}, Input: json.RawMessage(sent)},
		{Result: messages.Result{Index: 2, CallID: "c2", Tool: "refund", Status: messages.StatusOutcomeUnknown}, Input: json.RawMessage(sent), ArgsHash: digest(t, edited)},
		{Result: messages.Result{Index: 3, CallID: "c3", Tool: "refund", Status: messages.StatusValidationError}, Input: json.RawMessage(`{"order_id"`)},
	}
	include, err := ParseInclude([]string{"refund.order_id", "*.customer"})
	if err != nil {
		t.Fatal(err)
	}
	hash := Keyed([]byte(testKey))
	h := func(input string) string { return hash.Of("acme", digest(t, input)) }
	about := messages.AuditRecord{
		V: 1, Type: messages.AuditCall, Time: b.Now, Tenant: "acme", Session: "a session", Batch: "b", Digest: "d", Provider: messages.Anthropic,
		Round: 3, Accepted: accepted, Writer: "c1",
	}
	want := []messages.AuditRecord{about, about, about, about}
	w := &want[0]
	w.CallID, w.Tool, w.ToolDigest, w.Kind, w.Status, w.Attempt, w.Worker = "c0", "refund", "t0", messages.Write, messages.StatusOK, 2, "w"
	w.Time, w.Started, w.DurationMS, w.QueueMS, w.Permission, w.Approval = began.Add(250*time.Millisecond), began, 250, 4, permission, "q"
	w.ArgsHash, w.ResultHash, w.ToolHash, w.PhasesMS = h(edited), h(`"r"`), h(`"raw"`), messages.PhasesMS{Execute: 2}
	w.TraceID, w.Arguments = "0af7651916cd43dd8448eb211c80319c", map[string]json.RawMessage{"order_id": json.RawMessage("8")}
	w = &want[1]
	w.Index, w.CallID, w.Tool, w.Status, w.Code, w.ArgsHash = 1, "c1", "admin_override", messages.StatusUnknownTool, messages.CodeUnknownTool, h(sent)
	w.Arguments = map[string]json.RawMessage{"customer": json.RawMessage(`"x"`)}
	w = &want[2] // it ran with other arguments than were sent, which are not known, so no field is shown
	w.Index, w.CallID, w.Tool, w.Status, w.ArgsHash = 2, "c2", "refund", messages.StatusOutcomeUnknown, h(edited)
	w = &want[3]
	w.Index, w.CallID, w.Tool, w.Status = 3, "c3", "refund", messages.StatusValidationError
	got := Lines(b, calls, hash, include)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if body := string(messages.MustMarshal(append(got, Refused(b, messages.MalformedMessage)))); strings.Contains(body, "canary") {
		t.Errorf("what nobody listed is on record: %s", body)
	}
}

func TestInclude(t *testing.T) {
	for _, bad := range []string{"", "refund", ".x", "refund.", "a b.c", "**.x"} {
		if _, err := ParseInclude([]string{bad}); err == nil {
			t.Errorf("%q is read as an entry", bad)
		}
	}
	include, err := ParseInclude([]string{"refund.id", "refund.a.b", "*.who"})
	if err != nil {
		t.Fatal(err)
	}
	long := `"` + strings.Repeat("x", maxField) + `"`
	for input, want := range map[string]map[string]json.RawMessage{
		`{"id":1,"a.b":2,"who":null,"a":{"b":3}}`: {"id": json.RawMessage("1"), "a.b": json.RawMessage("2"), "who": json.RawMessage("null")},
		`{"ID":1,"id ":2}`:                        nil,
		`["id"]`:                                  nil,
		`{"id":` + long + `}`:                     {"id": json.RawMessage(`"(4098 bytes, too long to be shown)"`)},
	} {
		if diff := cmp.Diff(want, include.of("refund", json.RawMessage(input))); diff != "" {
			t.Errorf("of %.60s (-want +got):\n%s", input, diff)
		}
	}
	if got := include.of("other", json.RawMessage(`{"id":1}`)); got != nil {
		t.Errorf("another tool shows %v", got)
	}
}

func TestTraceOf(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for parent, want := range map[string]string{
		"00-" + id + "-b7ad6b7169203331-01": id, "": "", "00-" + id: "", "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01": "",
		"00-" + strings.ToUpper(id) + "-b7ad6b7169203331-01": "", "a-b-c-d": "",
	} {
		if got := TraceOf(parent); got != want {
			t.Errorf("%q is of the trace %q, want %q", parent, got, want)
		}
	}
}
