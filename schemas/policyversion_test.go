package schemas

import "testing"

// A fleet is updated one process at a time, so a policy keeps the version that older builds
// give it. Otherwise builds would call the same policy by two names: a person would be asked
// again, and an answer would be void.
func TestTheVersionOfAPolicyStays(t *testing.T) {
	const policy = `
default: ask
deny: [wipe, "Bash(rm *)"]
ask: [{name: large, when: 'tool.name == "refund" && input.amount > 50'}]
allow: [lookup]
approvers: [{name: alice, key: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4}]
hooks: [{name: gate, match: "*", before: {command: [./gate]}}]
`
	got, err := ParsePolicy("policy.yaml", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	if want := "c048b620c46b11771db84495294f60c7e35bfa8d9629b7cd69d2bec448252efb"; got.Version != want {
		t.Errorf("got the version %s, want %s", got.Version, want)
	}
}
