package messages

import (
	"encoding/json"
	"testing"
)

// The hash is of the canonical form, also where it is made in less time, and does not depend on how the outcome was written.
func TestHashOfAnOutcome(t *testing.T) {
	seen := map[string]string{}
	for _, raw := range []string{
		`{}`, `{"output":""}`, `{"output":"text"}`, `{"output":"<a> & \u00e4 \ud83d\ude00 \u2028 \n\t\"\\\/"}`, `{"output":"\ud800"}`,
		`{"output":{"b":1.10,"a":[1e3,9007199254740993]}}`, `{"output":null}`, `{"content":[{"type":"text","text":"text"}]}`,
		`{"content":[{"type":"text","text":"text"}],"is_error":true}`, `{"output":"text","is_error":true}`,
		`{"error":{"code":"tool_error","message":"text","retryable":false}}`,
		`{"error":{"code":"tool_error","message":"text","retryable":false,"details":{"b":1,"a":2}}}`,
	} {
		var o Outcome
		if err := json.Unmarshal([]byte(raw), &o); err != nil {
			t.Fatal(err)
		}
		canonical, err := CanonicalJSON(MustMarshal(o))
		if err != nil {
			t.Fatal(err)
		}
		got := o.Hash()
		if want := Digest(canonical); got != want {
			t.Errorf("%s: got %s, want the digest of %s", raw, got, canonical)
		}
		if other, twice := seen[got]; twice {
			t.Errorf("%s and %s have one hash", raw, other)
		}
		seen[got] = raw
	}
	a, b := Outcome{Output: json.RawMessage(`{"a":1,"b":2}`)}, Outcome{Output: json.RawMessage(` { "b" : 2, "a" : 1 } `)}
	if a.Hash() != b.Hash() {
		t.Error("the order of keys counts")
	}
}
