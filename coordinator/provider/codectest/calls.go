package codectest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

func (s suite) arguments(t *testing.T) {
	for _, arguments := range []string{
		`{}`,
		`{"a":"<b>&","n":9007199254740993}`,
		`{"n":1e400,"d":0.1000000000000000055511151231257827,"z":-0}`,
		`{"nul":"\u0000","half":"\ud800","quote":"\"\\","emoji":"😀"}`,
		`{"b":1,"a":{"d":[],"c":null}}`,
	} {
		got := s.decode(t, Call{`"a"`, "tool", arguments})[0]
		if string(got.Input) != arguments {
			t.Errorf("arguments %s: got %s (%s)", arguments, got.Input, got.InputError)
		}
	}
}

// brokenArguments are one call's trouble: its siblings run, and it is answered under its id.
func (s suite) brokenArguments(t *testing.T) {
	broken := []string{`"text"`, `[1]`, `7`, `true`}
	if s.TextArguments {
		broken = append(broken, `{"a":1`, `{"a":1}}`, `{'a':1}`, `{"a":1,"a":2}`, `{"a":1e999999}`, "```json\n{}\n```", strings.Repeat("[", 1000), `{"secret":"hunter2`)
	}
	for _, arguments := range broken {
		list := calls(3)
		list[1].Arguments = arguments
		got := s.decode(t, list...)
		if got[0].InputError != "" || got[2].InputError != "" {
			t.Errorf("%.40s: the siblings have the errors %q and %q", arguments, got[0].InputError, got[2].InputError)
		}
		problem := got[1].InputError
		if problem == "" || len(problem) > 300 || strings.Contains(problem, "hunter2") {
			t.Errorf("%.40s: got the input error %q", arguments, problem)
		}
	}
	for _, none := range []string{``, ` `, `null`} {
		if !s.TextArguments && none != "null" {
			continue
		}
		if got := s.decode(t, Call{`"a"`, "tool", none})[0]; string(got.Input) != "{}" {
			t.Errorf("arguments %q: got %q, %q, want {}", none, got.Input, got.InputError)
		}
	}
}

// hostileIDs come back byte for byte.
func (s suite) hostileIDs(t *testing.T) {
	ids := []string{
		`"functions.eval:301"`, `" "`, `" a "`, `"A"`, `"a"`, `"*"`, `"a.>"`, `"$ref"`, `"__proto__"`, `"😀"`, `"null"`, `"0"`, `"<&>"`,
		`"a\u0000b"`, `"\"\\"`, `"\ud800"`, `"\udc00"`, `"` + strings.Repeat("x", 4096) + `"`, `"\n"`,
	}
	list := make([]Call, len(ids))
	outcomes := make([]messages.Outcome, len(ids))
	for i, id := range ids {
		list[i] = Call{id, "tool", `{}`}
		outcomes[i] = messages.Text(fmt.Sprint(i))
	}
	answers, reinjection := s.answer(t, list, outcomes...)
	for i, a := range answers {
		if a.Text != fmt.Sprint(i) {
			t.Errorf("id %s: got the answer %q", ids[i], a.Text)
		}
		if !strings.Contains(string(reinjection), ids[i]) {
			t.Errorf("id %s is not in the reinjection", ids[i])
		}
	}
}

func (s suite) duplicateIDs(t *testing.T) {
	list := calls(3)
	list[2].ID = list[0].ID
	s.refused(t, s.Message(list...), messages.DuplicateID)
}

func (s suite) missingIDs(t *testing.T) {
	for _, id := range []string{``, `null`, `""`} {
		list := calls(2)
		list[0].ID, list[1].ID = id, id
		if !s.OptionalIDs {
			s.refused(t, s.Message(list...), messages.MissingID)
			continue
		}
		answers, reinjection := s.answer(t, list, messages.Text("a"), messages.Text("b"))
		if answers[0].Text != "a" || answers[1].Text != "b" || strings.Contains(string(reinjection), `"id"`) {
			t.Errorf("id %q: got %s, want both answers in order and no id", id, reinjection)
		}
	}
	s.refused(t, s.Message(Call{`7`, "tool", `{}`}), messages.MalformedMessage)
}

// equalCalls are two calls: only their ids tell them apart.
func (s suite) equalCalls(t *testing.T) {
	list := []Call{{`"a"`, "tool", `{"x":1}`}, {`"b"`, "tool", `{"x":1}`}}
	answers, _ := s.answer(t, list, messages.Text("first"), messages.Text("second"))
	if answers[0].Text != "first" || answers[1].Text != "second" {
		t.Errorf("got %+v", answers)
	}
}

func (s suite) badMessages(t *testing.T) {
	for _, message := range []string{
		``, ` `, `null`, `true`, `7`, `"text"`, `{}`, `{"role":"assistant"`, `[[]]`, `[7]`, `{"a":1,"a":2}`, "\"\xff\"",
		`{"role":"user","content":[],"parts":[]}`, `{"error":{"message":"overloaded"}}`, `{"type":"error"}`,
		strings.Repeat("[", 200) + strings.Repeat("]", 200),
		s.Message(Call{`"a"`, "tool", `{}`}) + " {}",
	} {
		s.refused(t, message, messages.MalformedMessage)
	}
}

// random checks pairing on batches that nobody thought of.
func (s suite) random(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		list := make([]Call, rng.IntN(12))
		outcomes := make([]messages.Outcome, len(list))
		for i := range list {
			list[i] = Call{
				ID:        string(messages.Quote(fmt.Sprint(i, randomText(rng)))),
				Name:      fmt.Sprintf("tool_%d", rng.IntN(3)),
				Arguments: `{"x":` + string(messages.Quote(randomText(rng))) + `}`,
			}
			outcomes[i] = randomOutcome(rng, fmt.Sprint("mark ", i, "."))
		}
		if len(list) == 0 {
			continue
		}
		answers, reinjection := s.answer(t, list, outcomes...)
		for i, a := range answers {
			if a.Failed != outcomes[i].OrLost().Failure() {
				t.Errorf("seed %d, answer %d: failed is %v for %+v", seed, i, a.Failed, outcomes[i])
			}
			if mark := fmt.Sprint("mark ", i, "."); !outcomes[i].Lost() && !strings.Contains(a.Text, mark) {
				t.Errorf("seed %d, answer %d: got %q, want %q in it\n%s", seed, i, a.Text, mark, reinjection)
			}
		}
	}
}

func randomText(rng *rand.Rand) string {
	letters := []rune("ab\x00\n\"\\<>&é😀\u2028 {}[]:,./~%")
	text := make([]rune, rng.IntN(8))
	for i := range text {
		text[i] = letters[rng.IntN(len(letters))]
	}
	return string(text)
}

func randomOutcome(rng *rand.Rand, mark string) messages.Outcome {
	text := mark + randomText(rng)
	switch rng.IntN(6) {
	case 0:
		return messages.Outcome{}
	case 1:
		return messages.Failed(messages.CodeToolError, text)
	case 2:
		return messages.Failed(messages.CodePolicyDenied, text)
	case 3:
		return messages.Outcome{Content: []messages.Block{{Type: "text", Text: text}, {Type: "image", MimeType: "image/png", Data: pixel}}, IsError: rng.IntN(2) == 0}
	case 4:
		return messages.Outcome{Output: json.RawMessage(`{"x":` + string(messages.Quote(text)) + `}`)}
	}
	return messages.Text(text)
}
