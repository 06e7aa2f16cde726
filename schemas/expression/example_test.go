package expression_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/schemas/expression"
)

func Example() {
	p, err := expression.Compile(`tool.name == "refund" && input.amount > 50`, expression.Bool)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, input := range []string{`{"amount": 50.0}`, `{"amount": 50.01}`, `{"amount": "51"}`} {
		fmt.Println(p.Bool(expression.NewSubject(expression.Call{Tool: "refund", Input: json.RawMessage(input)})))
	}
	_, err = expression.Compile(`tool.nmae == "refund"`, expression.Bool)
	fmt.Println(err)
	// Output:
	// false <nil>
	// true <nil>
	// false a value is of a type that it cannot work with
	// 1:5: 'tool.nmae' is not known; an expression reads input, labels, tool.name, tool.kind, tool.pool, session.id, principal.id, principal.user
}
