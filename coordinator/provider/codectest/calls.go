package codectest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
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

// brokenArguments checks arguments that are not a JSON object: only their own call must fail.
// That call gets an answer under its id, and the other calls get their outputs.
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

// unfitArguments checks arguments beyond a limit of [rawjson.Check] or encoding/json: only
// their own call must fail. The other calls must be answered with their outputs.
func (s suite) unfitArguments(t *testing.T) {
	for _, test := range []struct{ name, arguments, problem string }{
		{"as deep as allowed", nested(rawjson.MaxDepth), ""},
		{"too deep", nested(rawjson.MaxDepth + 1), "nested more than 128 deep"},
		{"deeper than encoding/json reads", nested(10_001), "nested more than 128 deep"},
		{"hostile depth", nested(100_000), "nested more than 128 deep"},
		{"large exponent", `{"n":1e401}`, "exponent beyond 400"},
		{"small exponent", `{"n":1e-401}`, "exponent beyond 400"},
		{"long number", `{"n":` + strings.Repeat("9", 1001) + `}`, "a number of 1001 characters"},
		{"a key twice", `{"a":{"k":1,"k":2}}`, `key "k" appears twice`},
		{"no UTF-8", `{"a":"BYTE"}`, "not valid UTF-8"},
		{"no UTF-8 in a key", `{"BYTE":1}`, "not valid UTF-8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			list := calls(3)
			list[1].Arguments = test.arguments
			message := strings.ReplaceAll(s.Message(list...), "BYTE", "\xff")
			got, err := s.Decode(json.RawMessage(message))
			if err != nil || len(got) != len(list) {
				t.Fatalf("Decode: got %d calls and error %v, want %d calls", len(got), err, len(list))
			}
			if problem := got[1].InputError; (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
				t.Errorf("got the input error %q, want %q", problem, test.problem)
			}
			if (got[1].Input == nil) == (got[1].InputError == "") {
				t.Errorf("want either input or input error, got %.100q and %q", got[1].Input, got[1].InputError)
			}
			s.siblingsAnswered(t, got)
		})
	}
}

// emptyNames checks calls without a tool name. A dialect must refuse them if its answer has to
// repeat the name. Other dialects must decode them.
func (s suite) emptyNames(t *testing.T) {
	list := calls(3)
	list[1].Name = ""
	if s.RepeatsName {
		s.refused(t, s.Message(list...), messages.ClassMissingName)
		return
	}
	got := s.decode(t, list...)
	if got[1].Tool() != "" || got[1].InputError != "" {
		t.Errorf("got the tool %q and the input error %q, want neither", got[1].Tool(), got[1].InputError)
	}
	s.siblingsAnswered(t, got)
}

// siblingsAnswered checks a batch of three calls of which call 1 fails: the other two must be
// answered with their outputs.
func (s suite) siblingsAnswered(t *testing.T, got []messages.ToolCall) {
	t.Helper()
	for _, i := range []int{0, 2} {
		if want := fmt.Sprintf(`{"i":%d}`, i); string(got[i].Input) != want {
			t.Errorf("call %d: got the input %s (%s), want %s", i, got[i].Input, got[i].InputError, want)
		}
	}
	reinjection, err := s.Encode(got, []messages.Outcome{
		messages.Text("a"), messages.Failed(messages.CodeInvalidArguments, "no"), messages.Text("c"),
	})
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	answers := s.Answers(t, reinjection)
	if len(answers) != 3 || answers[0].Text != "a" || answers[2].Text != "c" || answers[0].Failed || !answers[1].Failed || answers[2].Failed {
		t.Errorf("got the answers %+v, want a failure between a and c", answers)
	}
}

// nested returns an object with the given number of levels.
func nested(levels int) string {
	return strings.Repeat(`{"a":`, levels-1) + "{}" + strings.Repeat("}", levels-1)
}

// hostileIDs checks that unusual ids come back byte for byte.
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
	s.refused(t, s.Message(list...), messages.ClassDuplicateID)
}

func (s suite) missingIDs(t *testing.T) {
	for _, id := range []string{``, `null`, `""`} {
		list := calls(2)
		list[0].ID, list[1].ID = id, id
		if !s.OptionalIDs {
			s.refused(t, s.Message(list...), messages.ClassMissingID)
			continue
		}
		answers, reinjection := s.answer(t, list, messages.Text("a"), messages.Text("b"))
		if answers[0].Text != "a" || answers[1].Text != "b" || strings.Contains(string(reinjection), `"id"`) {
			t.Errorf("id %q: got %s, want both answers in order and no id", id, reinjection)
		}
	}
	s.refused(t, s.Message(Call{`7`, "tool", `{}`}), messages.ClassMalformedMessage)
}

// equalCalls checks two calls that differ only in their ids: each must get its own answer.
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
		strings.Repeat("[", 200) + strings.Repeat("]", 200), strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000),
		strings.Repeat("[", 1<<20), strings.Repeat(`{"content":[`, 1<<16),
		s.Message(Call{`"a"`, "tool", `{}`}) + " {}",
	} {
		s.refused(t, message, messages.ClassMalformedMessage)
	}
}

// random checks on random batches that each call gets the answer with its own id.
func (s suite) random(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		list := make([]Call, rng.IntN(12))
		outcomes := make([]messages.Outcome, len(list))
		for i := range list {
			list[i] = Call{
				ID:        string(rawjson.Quote(fmt.Sprint(i, randomText(rng)))),
				Name:      fmt.Sprintf("tool_%d", rng.IntN(3)),
				Arguments: `{"x":` + string(rawjson.Quote(randomText(rng))) + `}`,
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
		return messages.Outcome{Output: json.RawMessage(`{"x":` + string(rawjson.Quote(text)) + `}`)}
	}
	return messages.Text(text)
}
