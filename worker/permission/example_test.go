package permission_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

func ExampleRules_Decide() {
	rules, err := permission.New(permission.Config{
		Default: permission.Ask,
		Layers:  []permission.Layer{{Source: "platform", Allow: []string{"Bash(git status:*)"}, Deny: []string{"Bash(rm:*)"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	bash := schemas.Tool{Name: "Bash", ShellCommand: "command"}
	for _, input := range []string{
		`{"command":"git status --short"}`, `{"command":"git status; make"}`, `{"command":"git status && sudo rm -rf x"}`,
	} {
		d := rules.Decide(bash, json.RawMessage(input))
		fmt.Printf("%s: %s\n", d.Effect, d.Reason())
	}
	// Output:
	// allow: the rule: allow Bash(git status:*) (platform)
	// ask: no rule matches, and the default is ask
	// deny: the rule: deny Bash(rm:*) (platform)
}
