package config

import (
	"testing"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// A policy without rules has no version. The platform's part of the version does not depend on
// the tools file.
func TestVersionWithoutAPolicy(t *testing.T) {
	of := func(settings string, tools schemas.Rules) string {
		t.Helper()
		p, err := load(t, sources(settings, nil)).ReadPolicy("tools.yaml", tools)
		if err != nil {
			t.Fatal(err)
		}
		return p.Version()
	}
	rules := schemas.Rules{Deny: []schemas.RuleEntry{{Name: "X", Tool: "X"}}}
	for _, settings := range []string{"", "slots: 3\n", "permissions: {default: allow}\n"} {
		if got := of(settings, schemas.Rules{}); got != "" {
			t.Errorf("%q: version %q, want none, because no rule decides anything", settings, got)
		}
		if got := of(settings, rules); got == "" || wire.PlatformPolicy(got) != "" {
			t.Errorf("%q and rules of a tools file: version %q", settings, got)
		}
	}
	for _, settings := range []string{"permissions: {default: ask}\n", "permissions: {deny: [Bash]}\n"} {
		bare, with := of(settings, schemas.Rules{}), of(settings, rules)
		if bare == "" || bare == with || wire.PlatformPolicy(with) != bare {
			t.Errorf("%q: version %q, with rules of a tools file %q", settings, bare, with)
		}
	}
	if p := policed(t, "tests: []\n", "", schemas.Rules{}); p.Version() == "" {
		t.Error("a policy file without rules has no version, want one")
	}
}

// A variable with a public key for the NATS server's configuration is not reported as a
// mistyped setting. Another unknown TOOLFLEET_ variable is.
func TestKeysOfIdentitiesAreNotStrange(t *testing.T) {
	c := load(t, sources("", []string{"TOOLFLEET_ACME_NKEY=U", "TOOLFLEET_NKEY=file"}))
	if got := c.Strange(); len(got) != 1 || got[0] != "TOOLFLEET_NKEY" {
		t.Errorf("strange: %v", got)
	}
}
