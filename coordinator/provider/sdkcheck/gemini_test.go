package sdkcheck

import (
	"bytes"
	"encoding/json"
	"testing"

	"google.golang.org/genai"
)

func geminiCalls(t testing.TB, message json.RawMessage) (ids []string) {
	t.Helper()
	var content *genai.Content
	if member(message, "candidates") != nil {
		var whole genai.GenerateContentResponse
		if err := json.Unmarshal(message, &whole); err != nil || len(whole.Candidates) == 0 {
			t.Fatalf("message.json is no GenerateContentResponse: %v", err)
		}
		content = whole.Candidates[0].Content
	} else if err := json.Unmarshal(message, &content); err != nil {
		t.Fatalf("message.json is no Content: %v", err)
	}
	for _, part := range content.Parts {
		if part.FunctionCall != nil {
			ids = append(ids, part.FunctionCall.ID+" "+part.FunctionCall.Name)
		}
	}
	return ids
}

// geminiAnswered returns the id and the name of each answer. Gemini pairs by both: the id may
// be missing, and the name has to be the call's name.
func geminiAnswered(t testing.TB, reinjection json.RawMessage) (ids []string) {
	for _, part := range elements(t, member(reinjection, "parts")) {
		answer := member(part, "functionResponse")
		ids = append(ids, text(member(answer, "id"))+" "+text(member(answer, "name")))
	}
	return ids
}

func geminiAgain(t testing.TB, reinjection json.RawMessage) []byte {
	t.Helper()
	var content genai.Content
	strictly(t, reinjection, &content)
	return marshal(t, &content)
}

func geminiRetold(t testing.TB, tools json.RawMessage) []byte {
	t.Helper()
	var list []*genai.Tool
	strictly(t, tools, &list)
	return marshal(t, list)
}

// strictly decodes JSON into a type of the SDK, and fails the test on unknown fields. A type
// with its own decoding may still accept unknown fields.
func strictly(t testing.TB, raw json.RawMessage, into any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("no %T: %v", into, err)
	}
}
