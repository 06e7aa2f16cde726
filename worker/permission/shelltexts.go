package permission

import (
	"regexp"
	"slices"
	"strings"
)

// textsOf returns the texts that the named command runs as scripts. unknown means that it
// runs text that cannot be seen here.
func textsOf(name string, args command) (texts []string, unknown bool) {
	var words []word
	switch {
	case shells[name]:
		text, file := scriptOf(args)
		if file {
			return nil, false
		}
		words = []word{text}
		if strings.HasPrefix(name, "z") || strings.HasPrefix(name, "rz") {
			unknown = zshOnly.MatchString(text.text)
		}
	case otherShells[name]:
		return nil, len(args) == 0 || slices.ContainsFunc(args, func(w word) bool { return w.option() })
	case name == "eval":
		if args = behindDashes(args); len(args) > 0 {
			words = []word{join(args)}
		}
	case name == "trap":
		if args = behindDashes(args); len(args) > 1 && args[0] != exact("-") && args[0] != exact("-p") && args[0] != exact("-l") {
			words = args[:1]
		}
	case name == "." || name == "source":
		args = behindDashes(args)
		// The text is in a file, unless the name is a file descriptor's.
		return nil, len(args) > 0 && (args[0].known && (device.MatchString(args[0].text) || strings.HasPrefix(args[0].text, "/dev/")) ||
			!args[0].known && (args[0].many || !strings.Contains(args[0].tail, "/") || device.MatchString(args[0].tail)))
	case name == "env":
		words = splitOf(args)
	case name == "flock" || name == "su" || name == "script" || name == "runuser":
		words = behind(args, commandOption)
		unknown = name == "su" && len(words) == 0 // a shell that reads its input
	case name == "split":
		words = behind(args, filterOption)
	case name == "watch" || name == "parallel":
		words = behind(args, anyText)
	case name == "ssh":
		return nil, len(args) == 0
	}
	for _, w := range words {
		if !w.known {
			return nil, true
		}
		texts = append(texts, w.text)
	}
	return texts, unknown
}

// zshOnly finds syntax that only zsh expands: the path of a program ("=rm"), flags of an
// expansion, and glob qualifiers that run code.
var zshOnly = regexp.MustCompile(`(?:^|[\s;&|({])=[A-Za-z]|\$\{\(|\(e|\(\+`)

// behindDashes returns the words after "--", if that is the first word.
func behindDashes(args command) command {
	if len(args) > 0 && args[0] == exact("--") {
		return args[1:]
	}
	return args
}

// behind returns the values of an option. A value is in the same word as the option, or in the
// next word.
func behind(args command, option *regexp.Regexp) (values []word) {
	for i, a := range args {
		if !a.known {
			if option.MatchString(a.lead) {
				values = append(values, word{})
			}
			continue
		}
		switch found := option.FindStringSubmatch(a.text); {
		case found == nil:
		case found[1] != "":
			values = append(values, exact(found[1]))
		case i+1 < len(args):
			values = append(values, args[i+1])
		}
	}
	return values
}

// splitOf returns what env -S runs: its value and all words after it. If the text has
// escapes or variables of env, it is unknown.
func splitOf(args command) []word {
	for i, a := range args {
		text := a.text
		if !a.known {
			text = a.lead
		}
		found := splitOption.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		if !a.known {
			return []word{{}}
		}
		joined := join(append(command{exact(found[1])}, args[i+1:]...))
		if !joined.known || strings.ContainsAny(joined.text, `\$`) {
			return []word{{}}
		}
		return []word{joined}
	}
	return nil
}

func join(words command) word {
	var texts []string
	for _, w := range words {
		if !w.known {
			return word{}
		}
		texts = append(texts, w.text)
	}
	return exact(strings.Join(texts, " "))
}

// withoutGlobals returns a git command without the options that come before the subcommand.
func withoutGlobals(c command) command {
	for i := 1; i < len(c); i++ {
		switch a := c[i]; {
		case a.known && slices.Contains([]string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--exec-path", "--super-prefix", "--attr-source"}, a.text):
			i++
		case a.known && strings.HasPrefix(a.text, "-"):
		default:
			return append(command{c[0]}, c[i:]...)
		}
	}
	return c[:1]
}

var (
	commandOption = regexp.MustCompile(`^(?:-[A-Za-z]*?c|--(?:session-)?c[a-z]*(?:=|$))(.*)$`)
	filterOption  = regexp.MustCompile(`^--fi[a-z]*(?:=|$)(.*)$`)
	splitOption   = regexp.MustCompile(`^(?:-[iv0]*S|--s[a-z-]*(?:=|$))(.*)$`)
	anyText       = regexp.MustCompile(`^(.*[ ;|&$(<>` + "`" + `].*)$`)
)
