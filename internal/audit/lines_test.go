package audit

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

const testKey = "0123456789abcdef0123456789abcdef"

func digest(t *testing.T, input string) string {
	t.Helper()
	canonical, err := rawjson.Canonical([]byte(input))
	if err != nil {
		t.Fatal(err)
	}
	return messages.Digest(canonical)
}

// The hashes are right. Another program has made the expected ones.
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
		Key: wire.KeyOf("acme", "a session", "b"), Session: "a session", ID: "b", Digest: digest(t, `{"the":"batch"}`), Provider: messages.Anthropic, Round: 3,
		Accepted: accepted, Writer: "c1", Now: accepted.Add(time.Minute),
	}
	sent, edited := `{"order_id":7,"customer":"x","secret":"canary"}`, `{"order_id":8,"secret":"canary"}`
	permission := &messages.Permission{Effect: "ask", Source: "person", Rule: "big", By: []string{"ann"}, Approval: "q"}
	calls := []Call{
		{Result: messages.Result{
			Index: 0, CallID: "c0", Tool: "refund", Kind: messages.KindWrite, Status: messages.StatusOK, Outcome: messages.Text("canary"), Attempt: 2, Worker: "w",
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
		V: 1, Type: messages.AuditCall, Time: b.Now, Tenant: "acme", Session: "a session", Batch: "b", Digest: h(`{"the":"batch"}`), Provider: messages.Anthropic,
		Round: 3, Accepted: accepted, Writer: "c1",
	}
	want := []messages.AuditRecord{about, about, about, about}
	w := &want[0]
	w.CallID, w.Tool, w.ToolDigest, w.Kind, w.Status, w.Attempt, w.Worker = "c0", "refund", "t0", messages.KindWrite, messages.StatusOK, 2, "w"
	w.Time, w.Started, w.DurationMS, w.QueueMS, w.Permission, w.Approval = began.Add(250*time.Millisecond), began, 250, 4, permission, "q"
	w.ArgsHash, w.ResultHash, w.ToolHash, w.PhasesMS = h(edited), h(`"r"`), h(`"raw"`), messages.PhasesMS{Execute: 2}
	w.TraceID, w.Arguments = "0af7651916cd43dd8448eb211c80319c", map[string]json.RawMessage{"order_id": json.RawMessage("8")}
	w = &want[1]
	w.Index, w.CallID, w.Tool, w.Status, w.Code, w.ArgsHash = 1, "c1", "admin_override", messages.StatusUnknownTool, messages.CodeUnknownTool, h(sent)
	w.Arguments = map[string]json.RawMessage{"customer": json.RawMessage(`"x"`)}
	// The call ran with other arguments than the agent sent, and these are not known. So no
	// field is shown.
	w = &want[2]
	w.Index, w.CallID, w.Tool, w.Status, w.ArgsHash = 2, "c2", "refund", messages.StatusOutcomeUnknown, h(edited)
	w = &want[3]
	w.Index, w.CallID, w.Tool, w.Status = 3, "c3", "refund", messages.StatusValidationError
	all := Lines(b, calls, hash, include)
	if diff := cmp.Diff(want, all.Whole()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	for _, l := range all.Lines {
		if l.Tenant != "" || l.Session != "" || l.Batch != "" || l.Digest != "" || l.Provider != "" || l.Round != 0 || !l.Accepted.IsZero() || l.Writer != "" {
			t.Errorf("a line repeats what About says of all lines: %+v", l)
		}
	}
	b.Refused = messages.ClassMalformedMessage
	all = Lines(b, calls, hash, include)
	if l := all.Whole()[0]; len(all.Lines) != 5 || l.Type != messages.AuditBatchRefused || l.Index != -1 || l.Session != "a session" || l.Refusal.Class != messages.ClassMalformedMessage {
		t.Errorf("the line of a refused batch: %+v", l)
	}
	body := string(rawjson.MustMarshal(all))
	if strings.Contains(body, "canary") {
		t.Errorf("the lines show a field that Include does not list: %s", body)
	}
	if strings.Contains(body, b.Digest) {
		t.Errorf("the digest of the batch is on record, from which anybody finds its arguments by trying: %s", body)
	}
}

// A call may have run with unknown arguments: no hash is shown, not even that of the sent
// arguments.
func TestUnknownArguments(t *testing.T) {
	call := Call{Result: messages.Result{Tool: "refund", Status: messages.StatusOutcomeUnknown, Attempt: 1}, Input: json.RawMessage(`{"order_id":7}`)}
	b := Batch{Key: wire.KeyOf("acme", "s", "b")}
	show := func() messages.AuditRecord {
		return Lines(b, []Call{call}, Hasher{}, Include{"*": {"order_id"}}).Lines[0]
	}
	if l := show(); l.ArgsHash != "" || l.Arguments != nil {
		t.Errorf("arguments that may be others are shown: %+v", l)
	}
	call.Result.Trail = &messages.Trail{} // a worker refused it before the arguments were frozen
	if l := show(); l.ArgsHash == "" || l.Arguments == nil {
		t.Errorf("arguments as they were sent are not shown: %+v", l)
	}
}

// A worker sends absurd values, such as times that cannot be encoded and impossible durations:
// the lines can still be encoded.
func TestAbsurdNumbers(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	worst := messages.PhasesMS{Validate: -1, Execute: 1e308}
	b := Batch{Key: wire.KeyOf("acme", "s", "b"), Now: now}
	for _, r := range []messages.Result{
		{Started: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), DurationMS: 1e308, QueueMS: -5, Attempt: -1, Trail: &messages.Trail{PhasesMS: worst}},
		{Started: now, DurationMS: 1e308, QueueMS: 1e308},
		{Started: now.AddDate(-1000, 0, 0), DurationMS: -1e308},
	} {
		all := Lines(b, []Call{{Result: r}}, Hasher{}, nil)
		l := all.Lines[0]
		rawjson.MustMarshal(all) // would panic on a time that cannot be encoded
		if l.Time.Sub(now).Abs() > implausible || l.DurationMS < 0 || l.QueueMS < 0 || l.Attempt < 0 || l.PhasesMS.Validate < 0 || max(l.DurationMS, l.QueueMS, l.PhasesMS.Execute) > 4e10 {
			t.Errorf("on record of %+v: %+v", r, l)
		}
	}
}

// A bare line is short, even if the ids are long.
func TestBare(t *testing.T) {
	long := strings.Repeat("\x01", 8<<10)
	b := Batch{Key: wire.KeyOf("acme", "s", "b"), Session: messages.SessionID(long), ID: messages.BatchID(long), Provider: messages.Provider(long)}
	result := messages.Result{Index: 3, CallID: messages.CallID("c" + long), Tool: "t" + long, Status: messages.StatusOK, Attempt: 2, Started: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
	all := Bare(b, []messages.Result{result}, Hasher{})
	if body := rawjson.MustMarshal(all); len(body) > 10<<10 {
		t.Errorf("%d bytes", len(body))
	}
	if l := all.Lines[0]; l.Index != 3 || !strings.HasPrefix(string(l.CallID), "c") || !strings.HasPrefix(l.Tool, "t") || l.Status != messages.StatusOK || l.Attempt != 2 {
		t.Errorf("%+v", l)
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
