package config

import (
	"strings"
	"testing"
)

func TestAudit(t *testing.T) {
	const key = "0123456789abcdef0123456789abcdef"
	c := load(t, sources("audit:\n  hash: plain\n  include: [refund.order_id, \"*.customer\"]\n", []string{"TOOLFLEET_AUDIT_KEY=" + key}))
	if got := c.AuditLog(); !got.Plain || got.Key != key || strings.Join(got.Include, " ") != "refund.order_id *.customer" {
		t.Errorf("settings %+v", got)
	}
	if shown := from(t, c, "audit.key"); strings.Contains(shown.Value, key) {
		t.Errorf("the key is shown: %s", shown.Value)
	}
	if got := load(t, sources("", nil)).AuditLog(); got.Plain || got.Key != "" || len(got.Include) != 0 {
		t.Errorf("by default %+v", got)
	}
	for file, want := range map[string]string{
		"audit: {key: short}\n":        "audit.key has 5 bytes; it needs at least 32",
		"audit: {include: [refund]}\n": `audit.include: "refund" is neither TOOL.FIELD nor *.FIELD`,
		"audit: {hash: none}\n":        `audit.hash: "none" is not one of keyed, plain`,
	} {
		if _, err := Load(sources(file, nil)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "short\"") {
			t.Errorf("%q: %v, want %s", file, err, want)
		}
	}
}
