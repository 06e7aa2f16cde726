package safety

import (
	"strings"
	"testing"
)

// Parse accepts a command if bash and the parser read it in the same way, whatever it does. It
// refuses all others.
func TestParse(t *testing.T) {
	for _, command := range []string{
		"", "rm x > y", "# all\nrm x", "make \\\n  -j", "cat <<E\n$(rm x)\nE", "cat <<'E' > f\n a \\\nb\nE", "x=`pwd`", "echo \"${x:-$(echo 'a')}\"",
		"[[ $x =~ ^(a|b)$ ]]", "! rm x", "time rm x",
	} {
		if _, err := Parse(command); err != nil {
			t.Errorf("%q: %v", command, err)
		}
	}
	for command, want := range map[string]string{
		"ls 'secret":                    "cannot be parsed",
		"ls # a \\\nrm x":               "a # that is not clearly a comment",
		"ls $\\\n(rm x)":                "joins two lines inside a word",
		"ls\r":                          "holds a control character",
		"ls \xff":                       "holds bytes that are no UTF-8",
		"ls \\":                         "ends with a backslash",
		"cat <<\\E\n$(rm x)\nE":         "has a here-document with an odd delimiter",
		"cat <<E\n \\\nE\nrm x\nE":      "has a here-document with joined lines",
		"echo \"${x:-'$(rm x)'}\"":      "has quotes inside an expansion",
		"echo `echo \"\\$(rm x)\"`":     "has a backslash between backquotes",
		"! time rm x":                   "has a form that is not looked into",
		"[[ x =~ a\\ b;c ]]":            "cannot be parsed",
		"[[ x =~ (a b) ]]":              "[[ =~ ]] with a pattern that shells read differently",
		strings.Repeat("(", 1000) + "x": "nested too deep",
	} {
		if file, err := Parse(command); err == nil || err.Error() != want || file != nil {
			t.Errorf("%.40q: got %v, want %s", command, err, want)
		}
	}
}
