package permission

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/toolfleet/toolfleet/schemas"
)

// Rules compare numbers by value, however the model writes them. For a number that a double
// cannot hold, the stricter result holds, in short forms and in conditions.
func TestNumbersByValue(t *testing.T) {
	for _, tt := range []struct {
		pattern, number string
		allow, deny     bool
	}{
		{"100", "100", true, true},
		{"100", "1e2", true, true},
		{"100", "100.0", true, true},
		{"100", "10e1", true, true},
		{"100", "1000E-1", true, true},
		{"100", "0.1e3", true, true},
		{"1e2", "100", true, true},
		{"100.0", "100", true, true},
		{"-0.5", "-5e-1", true, true},
		{"149.99", "149.990", true, true},
		{"100", "101", false, false},
		{"100", "1e3", false, false},
		{"1*", "1e2", true, true},
		{"9007199254740993", "9007199254740993", true, true},
		{"9007199254740993", "9007199254740992", false, false},
		{"100", "100.00000000000000000001", false, true},
		{"7", "0.12345678901234567890123", false, true},
	} {
		input := json.RawMessage(fmt.Sprintf(`{"id":%s}`, tt.number))
		for _, form := range []string{"lookup_order(id=" + tt.pattern + ")"} {
			if got := holds(t, Allow, form, lookup, input); got != tt.allow {
				t.Errorf("allow %s on %s: %v, want %v", form, input, got, tt.allow)
			}
			if got := holds(t, Deny, form, lookup, input); got != tt.deny {
				t.Errorf("deny %s on %s: %v, want %v", form, input, got, tt.deny)
			}
		}
	}
	if !holds(t, Deny, `lookup_order(*"id":100*)`, lookup, json.RawMessage(`{"id":1e2}`)) {
		t.Error("the whole input is compared as text")
	}
	for number, denied := range map[string]bool{
		"100": false, "1e2": false, "100.00000000000000000001": true, "100.5": true, "99.99999999999999999999999": true, "1e400": true, "149.99": true, "1e-400": true,
	} {
		rules := mustNew(t, Config{Layers: []Layer{{Rules: schemas.Rules{Deny: []schemas.RuleEntry{{Tool: "lookup_order", Name: "much", When: "input.id > 100"}}}}}})
		if got := rules.Decide(Call{Tool: lookup, Input: json.RawMessage(`{"id":` + number + `,"other":0.12345678901234567890123}`)}).Effect == Deny; got != denied {
			t.Errorf("input.id > 100 on %s: denied %v, want %v", number, got, denied)
		}
	}
}
