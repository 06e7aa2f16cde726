package main

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// The command sends a message unchanged, even if the fleet will refuse its calls.
func TestAMessageThatIsNestedDeep(t *testing.T) {
	message := `{"calls":[{"id":"1","name":"a","input":{"a":` + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000) + `}}]}`
	for body, in := range map[string]input{
		message: {Provider: "canonical", Session: "s", BatchID: "b"},
		`{"provider":"canonical","message":` + message + `}`: {Session: "s", BatchID: "b"},
	} {
		batch, err := in.parse([]byte(body))
		if err != nil {
			t.Fatalf("%.40s: %v", body, err)
		}
		sent, err := batch.Encode()
		if err != nil {
			t.Fatalf("%.40s: %v", body, err)
		}
		if got, err := messages.DecodeBatch(sent); err != nil || string(got.Message) != message || got.ID != "b" || got.Session != "s" {
			t.Errorf("%.40s: sent as %.100s, %v", body, sent, err)
		}
	}
	_, err := input{Provider: "canonical"}.parse([]byte(strings.Repeat("[", 1<<20)))
	if err == nil || !strings.Contains(err.Error(), "ends in the middle of a value") {
		t.Errorf("a megabyte of brackets: %v", err)
	}
}
