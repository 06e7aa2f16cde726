package hook_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/worker/hook"
)

func ExampleNewSet() {
	set, err := hook.NewSet(hook.Hook{
		Name:  "office-hours",
		Match: "mail_*",
		Before: func(_ context.Context, call hook.Call) (hook.Verdict, error) {
			return hook.Verdict{Opinion: hook.Deny, Reason: "nobody reads mail at night"}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := set.Before(context.Background(), hook.Call{Tool: "mail_send", Input: json.RawMessage(`{}`)}, nil)
	fmt.Println(r.Opinion, "by", r.By+":", r.Reason)
	// Output: deny by office-hours: nobody reads mail at night
}
