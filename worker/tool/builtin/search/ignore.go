package search

import (
	"io"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/worker/tool/builtin/glob"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// maxIgnoreFile is how many bytes of a .gitignore are read.
const maxIgnoreFile = 1 << 20

// ignorer holds the .gitignore of one folder. parent is the ignorer of the folder above. A nil
// ignorer ignores nothing.
type ignorer struct {
	parent *ignorer
	base   string // path of the folder, with a slash at its end; "" for the root
	rules  []ignoreRule
}

// ignoreRule is one line of a .gitignore. Exactly one of literal, suffix and expression is set
// and matches paths.
type ignoreRule struct {
	negated   bool
	foldersIn bool // the line ends with a slash: folders only
	// wholePath says that the line has a slash before its end. Then the path from the
	// .gitignore's folder must match, and not only the name.
	wholePath  bool
	literal    string
	suffix     string // the text after the star in a "*suffix" pattern
	expression *regexp.Regexp
}

// ignored reports whether git would ignore the entry at path, provided that git does not
// ignore its folder. The deepest .gitignore with a matching line decides, by its last matching
// line.
func (ig *ignorer) ignored(path, name string, dir bool) bool {
	for ; ig != nil; ig = ig.parent {
		rel := strings.TrimPrefix(path, ig.base)
		for i := len(ig.rules) - 1; i >= 0; i-- {
			if ig.rules[i].matches(rel, name, dir) {
				return !ig.rules[i].negated
			}
		}
	}
	return false
}

func (r *ignoreRule) matches(rel, name string, dir bool) bool {
	if r.foldersIn && !dir {
		return false
	}
	subject := name
	if r.wholePath {
		subject = rel
	}
	switch {
	case r.expression != nil:
		return r.expression.MatchString(subject)
	case r.suffix != "":
		return strings.HasSuffix(subject, r.suffix)
	}
	return subject == r.literal
}

// parseIgnore parses a .gitignore by the rules of gitignore(5).
func parseIgnore(text string) []ignoreRule {
	var rules []ignoreRule
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\uFEFF"), "\n") {
		if rule, ok := parseIgnoreLine(strings.TrimSuffix(line, "\r")); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

func parseIgnoreLine(line string) (rule ignoreRule, ok bool) {
	if strings.HasPrefix(line, "#") || len(line) > rootdir.MaxPath {
		return rule, false
	}
	line = trimSpaces(line)
	line, rule.negated = strings.CutPrefix(line, "!")
	line, rule.foldersIn = strings.CutSuffix(line, "/")
	rule.wholePath = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule, false
	}
	const special = `*?[\`
	switch {
	case !strings.ContainsAny(line, special):
		rule.literal = line
	case !rule.wholePath && line[0] == '*' && len(line) > 1 && !strings.ContainsAny(line[1:], special):
		rule.suffix = line[1:]
	default:
		var err error
		if rule.expression, err = glob.CompileIgnore(line); err != nil {
			return rule, false // git ignores such a line too
		}
	}
	return rule, true
}

// trimSpaces removes the spaces at the end of a line, except one that follows a backslash.
func trimSpaces(line string) string {
	end := len(line)
	for end > 0 && line[end-1] == ' ' {
		end--
	}
	slashes := 0
	for end-slashes > 0 && line[end-slashes-1] == '\\' {
		slashes++
	}
	if slashes%2 == 1 && end < len(line) {
		end++
	}
	return line[:end]
}

// loadIgnore returns the ignorer of the folder dir, with dir's own .gitignore. parent is
// the ignorer of the folder above. A .gitignore that cannot be read is skipped.
func loadIgnore(r *rootdir.Root, dir string, parent *ignorer) *ignorer {
	base := ""
	if dir != "." {
		base = dir + "/"
	}
	info, err := r.Lstat(base + ".gitignore")
	if err != nil || !info.Mode().IsRegular() {
		return parent // git does not read a .gitignore that is a link
	}
	f, _, err := r.OpenFile(".gitignore", base+".gitignore")
	if err != nil {
		return parent
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	rules := parseIgnore(string(text))
	if err != nil || len(rules) == 0 {
		return parent
	}
	return &ignorer{parent, base, rules}
}
