// Package codectest tests the contract that every provider codec keeps. Each call is answered
// once, in call order, under its own id. Outputs arrive unchanged. Failures are marked as
// failures. A message that cannot be answered is refused.
//
// The test of a codec passes a [Native] to [Run]. The Native writes the provider's assistant
// messages independently of the codec. It also reads reinjections, and fails the test on any
// member that it does not expect.
package codectest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec is the codec under test.
type Codec interface {
	Decode(message json.RawMessage) ([]messages.ToolCall, error)
	Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error)
}

// Call is one call for a provider's message. ID and Arguments are JSON, which is written
// verbatim.
type Call struct {
	ID        string // a JSON string token; "" leaves the member out
	Name      string
	Arguments string // a JSON object
}

// Member returns the call's id as a member of an object, with a comma after it. It returns ""
// for a call without an id.
func (c Call) Member(name string) string {
	if c.ID == "" {
		return ""
	}
	return `"` + name + `":` + c.ID + `,`
}

// Answer is one answer in the provider's reading.
type Answer struct {
	ID     string
	Text   string // texts joined by newlines; a JSON value is its bytes
	Failed bool
	Images []string // MIME types
}

// Native writes and reads a dialect in the way of the provider.
type Native struct {
	// Message returns an assistant message with these calls, and with the other parts that
	// the provider sends.
	Message func(calls ...Call) string
	// Answers reads a reinjection that is not null.
	Answers func(t testing.TB, reinjection json.RawMessage) []Answer
	// Images says that the dialect can show images to the model. If not, a note must replace
	// each image.
	Images bool
	// Empty is the text that the model gets for an empty output.
	Empty string
	// TextArguments says that the dialect has arguments as JSON inside a string. Such
	// arguments can be broken JSON.
	TextArguments bool
	// OptionalIDs says that a call may have no id.
	OptionalIDs bool
	// RepeatsName says that the answer must repeat the tool's name. A call without a name
	// cannot be answered then.
	RepeatsName bool
}

// Run checks the codec c against the contract.
func Run(t *testing.T, c Codec, n Native) {
	s := suite{c, n}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"zero calls", s.zeroCalls},
		{"order and pairing", s.order},
		{"write then read", s.writeThenRead},
		{"lost results", s.lost},
		{"outcomes must match calls", s.mismatch},
		{"outputs", s.outputs},
		{"empty outputs", s.emptyOutputs},
		{"errors", s.errors},
		{"content", s.content},
		{"content that fails", s.contentFails},
		{"arguments", s.arguments},
		{"broken arguments", s.brokenArguments},
		{"arguments out of bounds", s.unfitArguments},
		{"calls without a name", s.emptyNames},
		{"hostile ids", s.hostileIDs},
		{"duplicate ids", s.duplicateIDs},
		{"missing ids", s.missingIDs},
		{"equal calls", s.equalCalls},
		{"128 calls, outputs of 200 KB", s.large},
		{"too many calls", s.tooMany},
		{"bad messages", s.badMessages},
		{"random batches", s.random},
	} {
		t.Run(test.name, test.run)
	}
}

type suite struct {
	Codec
	Native
}

// calls returns n calls with different ids.
func calls(n int) []Call {
	list := make([]Call, n)
	for i := range list {
		list[i] = Call{ID: fmt.Sprintf(`"call_%d"`, i), Name: fmt.Sprintf("tool_%d", i), Arguments: fmt.Sprintf(`{"i":%d}`, i)}
	}
	return list
}

// decode decodes a message with these calls. It fails the test if the codec refuses the
// message.
func (s suite) decode(t testing.TB, list ...Call) []messages.ToolCall {
	t.Helper()
	message := s.Message(list...)
	got, err := s.Decode(json.RawMessage(message))
	if err != nil {
		t.Fatalf("Decode(%.300s): %v", message, err)
	}
	if len(got) != len(list) {
		t.Fatalf("Decode(%.300s): %d calls, want %d", message, len(got), len(list))
	}
	for i, call := range got {
		if call.Index != i || call.Name != list[i].Name {
			t.Errorf("call %d: got index %d, name %q; want name %q", i, call.Index, call.Name, list[i].Name)
		}
		if (call.Input == nil) == (call.InputError == "") {
			t.Errorf("call %d: want either input or input error, got %q and %q", i, call.Input, call.InputError)
		}
	}
	return got
}

// answer decodes the calls, encodes the outcomes and reads the answers in the way of the
// provider.
func (s suite) answer(t testing.TB, list []Call, outcomes ...messages.Outcome) ([]Answer, json.RawMessage) {
	t.Helper()
	got := s.decode(t, list...)
	reinjection, err := s.Encode(got, outcomes)
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	if err := rawjson.Check(reinjection); err != nil {
		t.Fatalf("Encode wrote bad JSON: %v\n%.300s", err, reinjection)
	}
	answers := s.Answers(t, reinjection)
	if len(answers) != len(list) {
		t.Fatalf("%d answers to %d calls: %.300s", len(answers), len(list), reinjection)
	}
	for i, a := range answers {
		// encoding/json, which reads the answers, turns invalid bytes into U+FFFD.
		if want := strings.ToValidUTF8(string(got[i].ID), "\ufffd"); a.ID != want {
			t.Errorf("answer %d has the id %q, want %q", i, a.ID, want)
		}
	}
	return answers, reinjection
}

// one returns the answer to a single call with the outcome o.
func (s suite) one(t testing.TB, o messages.Outcome) (Answer, json.RawMessage) {
	t.Helper()
	answers, reinjection := s.answer(t, calls(1), o)
	return answers[0], reinjection
}

// refused fails the test unless the message is refused with the class.
func (s suite) refused(t testing.TB, message string, want messages.Class) {
	t.Helper()
	got, err := s.Decode(json.RawMessage(message))
	var refusal *messages.Refusal
	if !errors.As(err, &refusal) {
		t.Errorf("Decode(%.300s): got %d calls and error %v, want a refusal", message, len(got), err)
		return
	}
	if refusal.Class != want {
		t.Errorf("Decode(%.300s): refused as %v, want %s", message, refusal, want)
	}
}

func (s suite) zeroCalls(t *testing.T) {
	s.decode(t)
	reinjection, err := s.Encode(nil, nil)
	if err != nil || string(reinjection) != "null" {
		t.Errorf("Encode of no calls: got %s, %v; want null", reinjection, err)
	}
}

func (s suite) order(t *testing.T) {
	list := calls(9)
	outcomes := make([]messages.Outcome, len(list))
	for i := range outcomes {
		outcomes[i] = messages.Text(fmt.Sprint("answer ", i))
	}
	answers, _ := s.answer(t, list, outcomes...)
	for i, a := range answers {
		if want := fmt.Sprint("answer ", i); a.Text != want {
			t.Errorf("answer %d: got %q, want %q", i, a.Text, want)
		}
	}
}

// writeThenRead checks that each id gets its own result, no matter which call finishes first.
func (s suite) writeThenRead(t *testing.T) {
	list := []Call{{`"w"`, "write", `{"k":1}`}, {`"r"`, "read", `{"k":1}`}}
	for range 200 {
		outcomes := make([]messages.Outcome, 2)
		outcomes[1] = messages.Text("read")
		outcomes[0] = messages.Text("written")
		answers, _ := s.answer(t, list, outcomes...)
		if answers[0].Text != "written" || answers[1].Text != "read" {
			t.Fatalf("got %+v", answers)
		}
	}
}

func (s suite) lost(t *testing.T) {
	answers, _ := s.answer(t, calls(3), messages.Text("a"), messages.Outcome{}, messages.Text("c"))
	if !answers[1].Failed || !strings.Contains(answers[1].Text, string(messages.CodeResultLost)) {
		t.Errorf("lost result: got %+v, want an error that says so", answers[1])
	}
	if answers[0].Text != "a" || answers[2].Text != "c" || answers[0].Failed || answers[2].Failed {
		t.Errorf("its siblings: got %+v", answers)
	}
}

func (s suite) mismatch(t *testing.T) {
	if got, err := s.Encode(s.decode(t, calls(2)...), make([]messages.Outcome, 1)); err == nil {
		t.Errorf("Encode of two calls and one outcome: got %s, want an error", got)
	}
}

// large checks that a codec does not cut outputs, because workers do that. Only a few answers
// are large, to save time under the race detector.
func (s suite) large(t *testing.T) {
	list := calls(128)
	outcomes := make([]messages.Outcome, len(list))
	for i := range outcomes {
		size := 10
		if i%40 == 0 {
			size = 50_000
		}
		outcomes[i] = messages.Text(strings.Repeat(fmt.Sprintf("%d<&>", i%10), size))
	}
	answers, _ := s.answer(t, list, outcomes...)
	for i, a := range answers {
		if want, _ := outcomes[i].OutputString(); a.Text != want {
			t.Fatalf("answer %d: %d bytes, want %d", i, len(a.Text), len(want))
		}
	}
}

func (s suite) tooMany(t *testing.T) {
	s.decode(t, calls(messages.MaxCalls)...)
	s.refused(t, s.Message(calls(messages.MaxCalls+1)...), messages.ClassTooLarge)
}

// Marked returns the answer with this text, for a dialect without a flag for failures. It
// counts the answer as failed if the text begins with "Error: " or is toolfleet's JSON error
// body.
func Marked(id, text string) Answer {
	a := Answer{ID: id, Text: text}
	if text, ok := strings.CutPrefix(text, "Error: "); ok {
		a.Text, a.Failed = text, true
	} else if strings.HasPrefix(text, `{"error":"`) && strings.Contains(text, `,"retryable":`) {
		a.Failed = true
	}
	return a
}

// TextOf returns the text of a JSON string, or the JSON of any other value.
func TextOf(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil && string(value) != "null" {
		return text
	}
	return string(value)
}

func diff(want, got any) string { return cmp.Diff(want, got) }
