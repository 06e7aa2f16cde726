package messages

import (
	"encoding/json"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Outcomes that differ have hashes that differ, and text is hashed as the JSON string that it is.
func TestHashOfAnOutcome(t *testing.T) {
	seen := map[string]string{}
	for _, raw := range []string{
		`{}`, `{"output":""}`, `{"output":"text"}`, `{"output":{"a":1}}`, `{"output":null}`, `{"content":[{"type":"text","text":"text"}]}`,
		`{"content":[{"type":"text","text":"text"}],"is_error":true}`, `{"error":{"code":"tool_error","message":"text","retryable":false}}`,
	} {
		var o Outcome
		if err := json.Unmarshal([]byte(raw), &o); err != nil {
			t.Fatal(err)
		}
		got := o.Hash()
		if other, twice := seen[got]; twice {
			t.Errorf("%s and %s have one hash", raw, other)
		}
		seen[got] = raw
	}
	if got, want := Text("text").Hash(), Digest([]byte(`"text"`)); got != want {
		t.Errorf("got %s, want the digest of the JSON string, %s", got, want)
	}
}

// An outcome fits if its JSON is no longer than the limit.
func TestAnOutcomeFits(t *testing.T) {
	for _, raw := range []string{
		`{}`, `{"output":"text"}`, `{"output":{"a":1}}`, `{"output":"<\u2028>"}`, `{"output":"text","details":{"a":1}}`, `{"output":"text","is_error":true}`,
		`{"content":[{"type":"text","text":"text"}]}`, `{"error":{"code":"tool_error","message":"text","retryable":false}}`,
	} {
		var o Outcome
		if err := json.Unmarshal([]byte(raw), &o); err != nil {
			t.Fatal(err)
		}
		size := len(rawjson.MustMarshal(o))
		for limit := range 2 * size {
			if got, want := o.Fits(limit), size <= limit; got != want {
				t.Errorf("%s has %d bytes; that it fits into %d is said to be %v", raw, size, limit, got)
			}
		}
	}
}
