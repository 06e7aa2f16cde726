package schemas

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// versionForm is one to four whole numbers of at most 9 digits, joined by dots.
var versionForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8})){0,3}$`)

// MaxVersions is how many versions of one tool a worker serves at most.
const MaxVersions = 16

// checkVersion returns an error if a text is no version. "" is allowed: the tool has no
// version.
func checkVersion(version string) error {
	if version != "" && !versionForm.MatchString(version) {
		return fmt.Errorf("version %.80q: want whole numbers joined by dots, such as 3 or 1.10", version)
	}
	return nil
}

// CompareVersions orders the versions of a tool: -1 if a is older than b, 0 if they are the
// same version, 1 if a is newer. The numbers are compared one after the other, so 1.9 is older
// than 1.10. A missing number is 0, so 1 and 1.0 are the same. "", no version, is older than
// any version.
func CompareVersions(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(min(len(a), 1), min(len(b), 1))
	}
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for len(x) < len(y) {
		x = append(x, "0")
	}
	for len(y) < len(x) {
		y = append(y, "0")
	}
	return slices.CompareFunc(x, y, func(a, b string) int { // no number begins with 0
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}

// Newest returns the newest version of each tool, in the order of the names' first appearance. Of
// equal versions it keeps the first.
func Newest(tools []Tool) []Tool {
	var newest []Tool
	at := map[string]int{} // in newest, by name
	for _, t := range tools {
		i, has := at[t.Name]
		switch {
		case !has:
			at[t.Name] = len(newest)
			newest = append(newest, t)
		case CompareVersions(t.Version, newest[i].Version) > 0:
			newest[i] = t
		}
	}
	return newest
}
