package approval_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/approval"
)

func ExampleLine() {
	fmt.Println(approval.Line("issue_refund", json.RawMessage(`{"order":"A-1001","amount":149.99}`)))
	fmt.Println(approval.Line("issue_refund", json.RawMessage(`{"order":"A-1\" amount=\"5","amount":149.99}`)))
	// Output:
	// issue_refund amount=149.99 order="A-1001"
	// issue_refund amount=149.99 order="A-1\" amount=\"5"
}
