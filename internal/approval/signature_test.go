package approval

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// The signed bytes follow the rules of docs/approvals.md. Each rule has a row.
func TestSignedBytes(t *testing.T) {
	const at = "2026-11-21T09:01:00Z"
	for _, row := range []struct {
		name                  string
		sent                  string // members of the sent decision, besides those that all rows share
		input, reason, ticket string // these members as they stand in the signed bytes
		at, signedAt          string // the time in the sent decision and in the signed bytes
	}{
		{name: "nothing optional"},
		{name: "an empty reason and an empty ticket", sent: `,"reason":"","ticket":""`},
		{name: "every optional member", sent: `,"ticket":"T-1","reason":"why","input":{}`, input: `,"input":{}`, reason: `,"reason":"why"`, ticket: `,"ticket":"T-1"`},
		{name: "not for HTML", sent: `,"reason":"<a & b> \/ é 🎉"`, reason: `,"reason":"<a & b> / é 🎉"`},
		{name: "escapes", sent: `,"reason":"\u0022\u005c\u0008\u000c\u000a\u000d\u0009"`, reason: `,"reason":"\"\\\b\f\n\r\t"`},
		{name: "control characters", sent: `,"reason":"\u0000\u001B\u007f\u0080"`, reason: ",\"reason\":\"\\u0000\\u001b\u007f\u0080\""},
		{name: "line separators", sent: ",\"reason\":\"\u2028\u2029\"", reason: `,"reason":"\u2028\u2029"`},
		{name: "half of a surrogate pair", sent: `,"reason":"\ud800x\udc00","input":{"a":"\ud83d"}`, input: ",\"input\":{\"a\":\"\ufffd\"}", reason: ",\"reason\":\"\ufffdx\ufffd\""},
		{name: "order of names", sent: `,"input":{"b":{"z":1,"Z":2,"":3},"a":[{"y":1,"x":2}],"𐀀":4,"ﬀ":5}`, input: `,"input":{"a":[{"x":2,"y":1}],"b":{"":3,"Z":2,"z":1},"ﬀ":5,"𐀀":4}`},
		{name: "digits", sent: `,"input":{ "n" : [1.0, 100.00, 1E+2, -0, 9007199254740993, 1e-400] }`, input: `,"input":{"n":[1.0,100.00,1E+2,-0,9007199254740993,1e-400]}`},
		{name: "empty values inside input", sent: `,"input":{"a":null,"b":"","c":[],"d":{},"e":false}`, input: `,"input":{"a":null,"b":"","c":[],"d":{},"e":false}`},
		{name: "sig inside input", sent: `,"input":{"sig":"x"}`, input: `,"input":{"sig":"x"}`},
		{name: "an unknown member", sent: `,"amount_limit":50`},
		{name: "zeros of a time", at: "2026-11-21T09:01:00.500Z", signedAt: "2026-11-21T09:01:00.5Z"},
		{name: "nothing but zeros", at: "2026-11-21T09:01:00.000Z", signedAt: at},
		{name: "nanoseconds", at: "2026-11-21T09:01:00.123456789Z", signedAt: "2026-11-21T09:01:00.123456789Z"},
	} {
		if row.at == "" {
			row.at, row.signedAt = at, at
		}
		sent := `{"sig":"x","verdict":"edit","v":1,"tool_digest":"","tool":"t","tenant":"_","session":"s","policy":"","nonce":"n","key":"U","index":0,` +
			`"expires":"2026-11-21T09:15:00Z","call_id":"c","by":"a","batch":"b","at":"` + row.at + `","args_hash":"","approval":""` + row.sent + `}`
		want := "toolfleet decision v1\n" +
			`{"approval":"","args_hash":"","at":"` + row.signedAt + `","batch":"b","by":"a","call_id":"c","expires":"2026-11-21T09:15:00Z","index":0` + row.input +
			`,"key":"U","nonce":"n","policy":""` + row.reason + `,"session":"s","tenant":"_"` + row.ticket + `,"tool":"t","tool_digest":"","v":1,"verdict":"edit"}`
		d, refusal := Decode([]byte(sent))
		if refusal != nil {
			t.Errorf("%s: %v", row.name, refusal)
			continue
		}
		if got, err := d.Signed(); err != nil || string(got) != want {
			t.Errorf("%s: signed, %v\n%s\nwant\n%s", row.name, err, got, want)
		}
	}
}

// Both forms of the signed bytes cover every member of a decision: if one member is changed or
// removed, the signature does not hold.
func TestEveryFieldIsSigned(t *testing.T) {
	d := newDesk(t)
	q := question(messages.TierHigh)
	full := d.says(q, messages.VerdictEdit, "alice", ticket, input(`{"amount":5}`), func(d *messages.Decision) { d.Reason = "fine" })
	fields := reflect.VisibleFields(reflect.TypeFor[messages.Decision]())
	for _, field := range fields {
		if reflect.ValueOf(full).FieldByIndex(field.Index).IsZero() {
			t.Fatalf("%s is empty", field.Name)
		}
	}
	for form, bytesOf := range map[string]func(messages.Decision) ([]byte, error){"current": messages.Decision.Signed, "previous": signedWithEmptySig} {
		signed, err := bytesOf(full)
		if err != nil {
			t.Fatal(err)
		}
		// The bytes of the two forms are never equal. So a signature of one form fits no
		// decision in the other form.
		members, err := rawjson.Object([]byte(strings.TrimPrefix(string(signed), "toolfleet decision v1\n")))
		if _, has := members["sig"]; err != nil || has != (form == "previous") {
			t.Errorf("%s form: sig is signed: %v, %v", form, has, err)
		}
		sig, err := d.keys["alice"].pair.Sign(signed)
		if err != nil {
			t.Fatal(err)
		}
		full.Sig = signatures.EncodeToString(sig)
		if !verified(full, full.Key) {
			t.Errorf("%s form: not verified", form)
		}
		for name, changed := range changes(t, full) {
			if verified(changed, full.Key) {
				t.Errorf("%s form: verified with another %s", form, name)
			}
		}
		for _, field := range fields {
			without := full
			reflect.ValueOf(&without).Elem().FieldByIndex(field.Index).SetZero()
			if verified(without, full.Key) {
				t.Errorf("%s form: verified without %s", form, field.Name)
			}
		}
	}
}

// The command of the previous version has signed a decision: it is taken, and it holds. That
// version wrote the file.
func TestADecisionOfThePreviousVersion(t *testing.T) {
	raw, err := os.ReadFile("testdata/empty-sig.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Question messages.Approval
		Decision messages.Decision
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	people, err := NewApprovers([]messages.Approver{{Name: "alice", Key: file.Decision.Key}})
	if err != nil {
		t.Fatal(err)
	}
	granted, state, refusal := people.Take(file.Question, file.Decision, asked)
	if refusal != nil || state != messages.DecisionGranted {
		t.Fatalf("taken as %q, %v", state, refusal)
	}
	if err := people.Holds(onWire(t, granted), asked); err != nil {
		t.Error(err)
	}
}
