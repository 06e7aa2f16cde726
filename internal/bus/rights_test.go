package bus

import "testing"

func TestMatches(t *testing.T) {
	for _, row := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.c", false}, {"a.*", "a.b", true}, {"a.*", "a", false}, {"a.*", "a.b.c", false},
		{"a.>", "a.b.c", true}, {"a.>", "a", false}, {">", "a", true}, {"*", "a.b", false}, {"a.b", "a", false},
	} {
		if got := matches(row.pattern, row.subject); got != row.want {
			t.Errorf("%s matches %s: %v, want %v", row.pattern, row.subject, got, row.want)
		}
	}
}
