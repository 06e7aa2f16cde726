package schemas

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompareVersions(t *testing.T) {
	order := []string{"", "0", "0.1", "1", "1.0.1", "1.9", "1.10", "2", "2.0.0.1", "10", "2026.6.7", "999999999"}
	for i, a := range order {
		for j, b := range order {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got := CompareVersions(a, b); got != want {
				t.Errorf("%q and %q: %d, want %d", a, b, got, want)
			}
		}
	}
	if CompareVersions("1", "1.0.0") != 0 || CompareVersions("1.0", "1") != 0 {
		t.Error("1 and 1.0 are two versions")
	}
	for range 1000 {
		a, b := anyVersion(), anyVersion()
		if got, want := CompareVersions(a, b), slowCompare(a, b); got != want {
			t.Errorf("%q and %q: %d, want %d", a, b, got, want)
		}
	}
}

func anyVersion() string {
	if rand.N(8) == 0 {
		return ""
	}
	parts := make([]string, 1+rand.N(4))
	for i := range parts {
		parts[i] = fmt.Sprint(rand.N([]int{2, 12, 120}[rand.N(3)]))
	}
	return strings.Join(parts, ".")
}

// slowCompare reads a version as one number with four digits of base 10^9, plus 1; none is 0.
func slowCompare(a, b string) int {
	value := func(version string) *big.Int {
		n := new(big.Int)
		if version == "" {
			return n
		}
		parts := append(strings.Split(version, "."), "0", "0", "0")[:4]
		for _, part := range parts {
			digit, _ := new(big.Int).SetString(part, 10)
			n.Add(n.Mul(n, big.NewInt(1e9)), digit)
		}
		return n.Add(n, big.NewInt(1))
	}
	return value(a).Cmp(value(b))
}

func TestNewest(t *testing.T) {
	tools := []Tool{{Name: "b", Version: "1"}, {Name: "a"}, {Name: "b", Version: "1.2", Description: "first"}, {Name: "b", Version: "1.2.0"}, {Name: "a", Version: "0"}}
	want := []Tool{{Name: "b", Version: "1.2", Description: "first"}, {Name: "a", Version: "0"}}
	if diff := cmp.Diff(want, Newest(tools)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func versionOf(version, digest string) Tool { return Tool{Name: "x", Version: version, Digest: digest} }

func digests(a Announcement) string {
	var all []string
	for _, t := range a.All() {
		all = append(all, t.Digest)
	}
	return strings.Join(all, " ")
}

func TestAnnouncementWith(t *testing.T) {
	first := Announcement{}.With([]Tool{versionOf("1", "a"), versionOf("2", "b")}, false)
	if got := digests(first); got != "b a" || first.Denied {
		t.Errorf("the first one: %s, denied %v", got, first.Denied)
	}
	second := first.With([]Tool{versionOf("1", "c")}, true)
	if got := digests(second); got != "c b a" || !second.Denied {
		t.Errorf("another worker: %s, denied %v", got, second.Denied)
	}
	if diff := cmp.Diff(second, second.With([]Tool{versionOf("1", "c")}, true)); diff != "" {
		t.Errorf("the same again (-before +after)\n%s", diff)
	}
	if got := digests(second.With([]Tool{versionOf("1", "a"), versionOf("2", "b")}, false)); got != "b a c" {
		t.Errorf("a rollback: %s", got)
	}
	many := Announcement{}
	for i := range 100 {
		many = many.With([]Tool{versionOf("", fmt.Sprint(i))}, false)
	}
	if got := many.All(); len(got) != 1+maxOthers || got[0].Digest != "99" || got[maxOthers].Digest != fmt.Sprint(99-maxOthers) {
		t.Errorf("many: %s", digests(many))
	}
}

func TestAnnouncementCurrent(t *testing.T) {
	a := Announcement{Tool: versionOf("1", "latest"), Versions: []Tool{versionOf("2", "new"), versionOf("2", "older2"), versionOf("", "none")}}
	for served, want := range map[string]string{
		"":                       "latest", // after a rollback that is not the newest
		"latest new older2 none": "new",
		"older2 new":             "new", // the same version: the one that was announced later
		"older2 none":            "older2",
		"none":                   "none",
		"latest none":            "latest",
		"another":                "latest",
	} {
		got := a.Current(func(t Tool) bool { return strings.Contains(" "+served+" ", " "+t.Digest+" ") })
		if got.Digest != want {
			t.Errorf("served are %q: %s, want %s", served, got.Digest, want)
		}
	}
}
