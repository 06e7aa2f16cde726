package messages

import (
	"encoding/json"
	"testing"
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
