package terminal

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDifference(t *testing.T) {
	got := Diff("{\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3\n}", "{\n  \"a\": 1,\n  \"b\": 20,\n  \"c\": 3,\n  \"d\": 4\n}", false)
	want := "  {\n    \"a\": 1,\n-   \"b\": 2,\n-   \"c\": 3\n+   \"b\": 20,\n+   \"c\": 3,\n+   \"d\": 4\n  }\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	long := strings.Repeat("x\n", 5000)
	if got := Diff("a\n"+long, "b\n"+long, false); strings.Count(got, "- ") < 5000 {
		t.Error("texts that are too long are not shown in full")
	}
}
