package codectest

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Fuzz gives random messages to the decoder, beginning with those of the golden pairs. The
// decoder must not panic, and a refusal must have a reason. If the decoder accepts a message,
// every call must get an answer, even if all outcomes are lost.
func Fuzz(f *testing.F, c Codec, n Native) {
	f.Helper()
	f.Add([]byte(n.Message(calls(2)...)))
	f.Add([]byte(n.Message(Call{`"a"`, "", `{}`}, Call{`"b"`, "tool", `{"n":1e401}`})))
	f.Add([]byte(n.Message(Call{`"a"`, "tool", nested(rawjson.MaxDepth + 1)}, Call{`"b"`, "tool", nested(10_001)})))
	seeds, _ := filepath.Glob("testdata/*.txtar")
	lenient, _ := filepath.Glob("testdata/*/*.txtar")
	for _, name := range append(seeds, lenient...) {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if file.Name == "message.json" {
				f.Add(file.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		got, err := c.Decode(message)
		if err != nil {
			var refusal *messages.Refusal
			if !errors.As(err, &refusal) || refusal.Message == "" || len(got) > 0 {
				t.Fatalf("got %d calls and the error %v, want a refusal with a message and no calls", len(got), err)
			}
			return
		}
		for i, call := range got {
			if call.InputError == "" {
				if _, err := rawjson.Object(call.Input); err != nil {
					t.Fatalf("input of call %d: %v", i, err)
				}
			}
		}
		reinjection, err := c.Encode(got, make([]messages.Outcome, len(got)))
		if err != nil || !json.Valid(reinjection) {
			t.Fatalf("Encode: %v\n%s", err, reinjection)
		}
		if len(got) == 0 {
			return
		}
		if answers := n.Answers(t, reinjection); len(answers) != len(got) {
			t.Fatalf("%d answers to %d calls: %s", len(answers), len(got), reinjection)
		}
	})
}

// Strict decodes JSON, and fails the test if the JSON has members that into does not have.
func Strict(t testing.TB, raw json.RawMessage, into any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("not the provider's shape: %v\n%.500s", err, raw)
	}
}
