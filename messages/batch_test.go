package messages_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

func TestDecodeBatch(t *testing.T) {
	good := `{"v":1,"id":"b","session":"s","provider":"anthropic","message":{"role":"assistant"},"later":{"x":1}}`
	b, err := messages.DecodeBatch([]byte(good))
	if err != nil || b.ID != "b" || b.Session != "s" || string(b.Message) != `{"role":"assistant"}` {
		t.Errorf("DecodeBatch(%s) = %+v, err %v", good, b, err)
	}
	for _, tt := range []struct{ in, want string }{
		{`[]`, "want an object, got an array"},
		{`{"v":1,"session":"s","provider":"p","message":{}}`, "id is missing"},
		{`{"v":1,"id":"","session":"s","provider":"p","message":{}}`, "id is missing or empty"},
		{`{"v":1,"id":"b","session":"","provider":"p","message":{}}`, "session is missing or empty"},
		{`{"v":1,"id":"b","session":"s","provider":"p"}`, "message is missing"},
		{`{"v":1,"id":"b","session":"s","provider":"p", "messages":{}}`, `message is missing; "messages" at byte 47 is no member of a batch`},
		{`{"batch":{"x":1},"v":1,"session":"s","provider":"p","message":{}}`, `id is missing or empty; "batch" at byte 2 is no member of a batch`},
		{`{"v":1,"ID":"b","session":"s","provider":"p","message":{}}`, "id is missing"},
		{`{"v":1,"id":7,"session":"s","provider":"p","message":{}}`, `"id" is a number`},
		{`{"v":2,"id":"b","session":"s","provider":"p","message":{}}`, "v is 2"},
		{`{"v":1,"id":"b","id":"c","session":"s","provider":"p","message":{}}`, `"id" appears twice`},
		{`{"v":1,"id":"b","session":"s","provider":"p","message":{},"timeout_ms":-1}`, "timeout_ms"},
		{`{"v":1,`, "ends in the middle"},
		{`{"v":1,"id":"b","session":"s","provider":"` + strings.Repeat("p", 65) + `","message":{}}`, "provider has 65 bytes"},
		{`{"v":"1","id":"b","session":"s","provider":"` + strings.Repeat("p", 65) + `","message":{}}`, `"v" is a string`},
		{`{"v":1,"id":"b","session":"s","provider":"p","message":{},"labels":{"a":"1","a":"2"}}`, `"labels": key "a" appears twice`},
		{`{"v":1,"id":"b` + "\xff" + `","session":"s","provider":"p","message":{}}`, `"id": not valid UTF-8`},
		{`{"v":1,"id":"b","session":"s","provider":"p","message":` + strings.Repeat("[", 1<<20), "ends in the middle"},
	} {
		b, err := messages.DecodeBatch([]byte(tt.in))
		if len(b.Provider) > 64 {
			t.Errorf("DecodeBatch(%.80s) keeps a provider of %d bytes", tt.in, len(b.Provider))
		}
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) || refusal.Class != messages.ClassMalformedMessage || !strings.Contains(refusal.Message, tt.want) {
			t.Errorf("DecodeBatch(%s) = %v, want a malformed_message that says %q", tt.in, err, tt.want)
		}
	}
}

// Only the JSON syntax of a batch's message is checked: its codec reads the rest.
func TestDecodeBatchLeavesTheMessageAlone(t *testing.T) {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for _, message := range []string{deep, `{"a":1,"a":2}`, `[1e1000000]`, `{"a":` + deep + `}`, "\"\xff\""} {
		sent, err := messages.Batch{V: 1, ID: "b", Session: "s", Provider: "p", Message: json.RawMessage(message)}.Encode()
		if err != nil {
			t.Fatalf("Encode with the message %.40s: %v", message, err)
		}
		if b, err := messages.DecodeBatch(sent); err != nil || string(b.Message) != message || b.ID != "b" || b.Session != "s" || b.Provider != "p" {
			t.Errorf("message %.40s: got %.100s, %v", message, b.Message, err)
		}
	}
	if _, err := (messages.Batch{Message: json.RawMessage(`{`)}).Encode(); err == nil {
		t.Error("a message that is no JSON was encoded")
	}
}

// A refused batch keeps the ids that can be read, so that the refusal can name it.
func TestDecodeBatchReadsTheIdsOfWhatItRefuses(t *testing.T) {
	for _, tt := range []struct {
		in      string
		id      messages.BatchID
		session messages.SessionID
	}{
		{`{"v":1,"id":"b","session":"s","provider":"p"}`, "b", "s"},
		{`{"v":"1","labels":[],"id":"b","session":"s","message":{}}`, "b", "s"},
		{`{"v":1,"id":"b","session":7,"message":{}}`, "b", ""},
		{`{"v":1,"v":1,"id":"b","session":"s","message":{}}`, "b", "s"},
		{`{"v":1,"id":"b","id":"c","session":"s","message":{}}`, "", "s"},
		{`{"v":1,"id":"b","session":"s","message":{"a":`, "b", "s"},
		{`{"v":1,"id":"b","session":"s","message":` + strings.Repeat("[", 1<<20), "b", "s"},
		{`{"v":1,"id":"b","session":"s","message":{},}`, "b", "s"},
		{`{"id":"b","session":"s"} {"id":"c"}`, "b", "s"},
		{`{"id":"b","id":"c","session":"s","message":`, "", "s"},
		{`{"v":1,"message":{"a":,"id":"b","session":"s"}`, "", ""},
		{`{"v":1,"id":"b`, "", ""},
		{`["b","s"]`, "", ""},
		{``, "", ""},
	} {
		b, err := messages.DecodeBatch([]byte(tt.in))
		if err == nil || b.ID != tt.id || b.Session != tt.session {
			t.Errorf("DecodeBatch(%.80s) = batch %q, session %q, %v; want %q and %q and a refusal", tt.in, b.ID, b.Session, err, tt.id, tt.session)
		}
	}
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"b","session":"s","provider":"anthropic","message":{}}`))
	f.Add([]byte(`{"id":"b"}`))
	f.Add([]byte(`{"v":1,"id":"b","session":"s","provider":"p","message":{"a":1,"a":1e999,"b":`))
	f.Add([]byte(`{"id":"b","session":"s","provider":"p","message":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := messages.DecodeBatch(in)
		if err != nil {
			return
		}
		sent, err := b.Encode()
		if err != nil {
			t.Fatalf("%q: Encode: %v", in, err)
		}
		again, err := messages.DecodeBatch(sent)
		if err != nil || again.ID != b.ID || again.Session != b.Session || !bytes.Equal(encoded(again), sent) {
			t.Errorf("%q: decoded, encoded and decoded again is %+v, err %v; was %+v", in, again, err, b)
		}
	})
}

func encoded(b messages.Batch) []byte {
	body, _ := b.Encode()
	return body
}

func TestErrorText(t *testing.T) {
	for _, tt := range []struct {
		err  messages.Error
		want string
	}{
		{messages.Error{Code: messages.CodeToolError, Message: "no such order"}, "no such order"},
		{messages.Error{Message: "  "}, "The tool failed without saying why."},
		{messages.Error{Code: messages.CodeTimeout, Message: "a <b> & c", Retryable: true}, `{"error":"timeout","message":"a <b> & c","retryable":true}`},
		{messages.Error{Code: "rate_limited", Message: "slow down", Details: map[string]int{"after": 3}}, `{"error":"rate_limited","message":"slow down","retryable":false,"details":{"after":3}}`},
	} {
		if got := tt.err.ErrorText(); got != tt.want {
			t.Errorf("ErrorText of %+v = %s, want %s", tt.err, got, tt.want)
		}
	}
}

// A reply without calls ends the turn, unless it brings a steering message.
func TestReplyDone(t *testing.T) {
	for _, test := range []struct {
		reply messages.Reply
		done  bool
		adds  int
	}{
		{messages.Reply{}, true, 0},
		{messages.Reply{Reinjection: json.RawMessage("null"), Steering: json.RawMessage("null")}, true, 0},
		{messages.Reply{Reinjection: json.RawMessage("null"), Steering: json.RawMessage(`["wait"]`)}, false, 1},
		{messages.Reply{Reinjection: json.RawMessage(`{"role":"user"}`), Results: make([]messages.Result, 1)}, false, 1},
	} {
		if got := test.reply.Done(); got != test.done {
			t.Errorf("%+v: done is %v", test.reply, got)
		}
		if got := len(test.reply.Extend(nil)); got != test.adds {
			t.Errorf("%+v: appends %d messages, want %d", test.reply, got, test.adds)
		}
	}
}

// Append is a list for every shape of a reinjection, and never null.
func TestReplyAppend(t *testing.T) {
	for name, test := range map[string]struct{ reinjection, steering, want string }{
		"nothing":      {"null", "", `[]`},
		"one message":  {`{"role":"user"}`, "", `[{"role":"user"}]`},
		"items":        {`[{"id":1},{"id":2}]`, "null", `[{"id":1},{"id":2}]`},
		"steering":     {`{"role":"user"}`, `["wait",{"n":1.10}]`, `[{"role":"user"},"wait",{"n":1.10}]`},
		"only steered": {"null", `["wait"]`, `["wait"]`},
	} {
		reply := messages.Reply{Reinjection: json.RawMessage(test.reinjection), Steering: json.RawMessage(test.steering)}.WithAppend()
		got, err := json.Marshal(reply.Append)
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, test.want)
		}
	}
}
