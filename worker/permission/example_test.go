package permission_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

func ExampleDecision_Weigh() {
	rules, err := permission.New(permission.Config{
		Default: permission.Ask,
		Layers: []permission.Layer{{Source: "policy.yaml", Rules: schemas.Rules{
			Deny:  []schemas.RuleEntry{{Name: "no-test-orders", Tool: "refund", When: `input.order.startsWith("TEST-")`}},
			Allow: []schemas.RuleEntry{{Name: "refund", Tool: "refund"}},
			Risk:  []schemas.RiskEntry{{Name: "over-50", Tool: "refund", When: `input.amount > 50`, Tier: messages.TierHigh, Reason: "Refunds over 50 need a person."}},
		}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, input := range []string{`{"order":"A-1","amount":20}`, `{"order":"A-1","amount":149.99}`, `{"order":"TEST-1","amount":20}`, `{"amount":20}`} {
		d := rules.Decide(permission.Call{Tool: schemas.Tool{Name: "refund"}, Input: json.RawMessage(input)})
		r := d.Weigh(permission.Opinion{})
		fmt.Printf("%s: %s\n", r.Effect, r.Reason)
	}
	// Output:
	// allow: the rule: allow refund (policy.yaml)
	// ask: the tier is high, by over-50 (policy.yaml): Refunds over 50 need a person
	// deny: the rule: deny no-test-orders (policy.yaml)
	// deny: the rule deny no-test-orders (policy.yaml) could not be evaluated: a member that it reads is not there
}
