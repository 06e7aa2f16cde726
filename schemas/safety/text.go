package safety

import (
	"errors"
	"regexp"
	"strings"
)

var (
	errSed = errors.New("sed with a script that is not known to be harmless")
	errAwk = errors.New("awk with a program that is not known to be harmless")
)

// sed checks the script. Printing, deleting and substituting write only to stdout. It refuses
// the commands e and w and the flags of the same names, because they run programs or write
// files. The options were checked before: -i and -f are not in their list.
func sed(_ walker, args []arg) error {
	var scripts []string
	operand := false // the first operand was found; it is the script unless -e gave one
	for i := 0; i < len(args); i++ {
		a := args[i]
		text, isScript := "", false
		switch {
		case a.flag() && strings.HasPrefix(a.text, "--expression"):
			text, isScript = strings.CutPrefix(a.text, "--expression=")
			if !isScript {
				return errSed
			}
		case a.flag() && !strings.HasPrefix(a.text, "--"):
			at := strings.IndexByte(a.text, 'e')
			switch {
			case strings.IndexByte(a.text, 'l') >= 0, at >= 0 && !a.exact:
				return errSed // -l takes a value in GNU and none in BSD
			case at < 0:
				continue
			case at == len(a.text)-1 && i+1 < len(args):
				i++
				a = args[i]
				text, isScript = a.text, true
			default:
				text, isScript = a.text[at+1:], true
			}
		case !a.flag() && !operand:
			operand = true
			if len(scripts) > 0 {
				continue
			}
			text, isScript = a.text, true
		}
		if !isScript {
			continue
		}
		if !a.exact {
			return errSed
		}
		scripts = append(scripts, text)
	}
	if len(scripts) == 0 {
		return errSed
	}
	for _, script := range scripts {
		if !sedScript(script) {
			return errSed
		}
	}
	return nil
}

// sedAddress matches a line number, the last line or a plain regular expression between slashes.
const sedAddress = `(?:[0-9]+|\$|/(?:[^/\\\n]|\\[^\n])*/I?)`

var (
	sedRange   = regexp.MustCompile(`^[ \t]*(?:` + sedAddress + `(?:[ \t]*,[ \t]*[+~]?` + sedAddress + `)?)?[ \t]*!?[ \t]*`)
	sedCommand = regexp.MustCompile(`^(?:[pd=]|q[0-9]*)[ \t]*(?:[;\n]|$)`)
	sedFlags   = regexp.MustCompile(`^[gpIi0-9]*[ \t]*`)
)

// sedScript reports whether every command of the script is one of p, d, q, = and s. It returns
// false if a bracket expression could hide a delimiter.
func sedScript(script string) bool {
	if strings.TrimSpace(script) == "" {
		return false
	}
	for script != "" {
		script = script[len(sedRange.FindString(script)):]
		if strings.HasPrefix(script, "s") {
			rest, ok := sedSubstitute(script[1:])
			if !ok {
				return false
			}
			script = rest
			continue
		}
		command := sedCommand.FindString(script)
		if command == "" {
			return false
		}
		script = script[len(command):]
	}
	return true
}

// sedSubstitute checks the text after the s: delimiter, pattern, delimiter, replacement,
// delimiter, flags. It returns the rest after the flags. If the pattern has a bracket, sed may
// see the end of the pattern at another place. Then nothing may come after the flags, so that
// sed finds a wrong number of delimiters and fails.
func sedSubstitute(s string) (rest string, ok bool) {
	if s == "" || strings.IndexByte("/|#,:@%!", s[0]) < 0 {
		return "", false
	}
	var parts []string
	start := 1
	for i := 1; i < len(s) && len(parts) < 2; i++ {
		switch s[i] {
		case '\n':
			return "", false
		case '\\':
			if i++; i < len(s) && s[i] == '\n' {
				return "", false
			}
		case s[0]:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	if len(parts) < 2 {
		return "", false
	}
	flags := sedFlags.FindString(s[start:])
	rest = s[start+len(flags):]
	atEnd := rest == ""
	if !atEnd && (rest[0] != ';' && rest[0] != '\n' || strings.Contains(parts[0], "[")) {
		return "", false
	}
	return strings.TrimLeft(rest, ";\n"), true
}

// awkProgram matches programs that cannot name a pipe, a redirection, a function or a library: they
// contain none of ( | > < @. Such a program can only select lines and print fields.
var awkProgram = regexp.MustCompile(`^[A-Za-z0-9_ \t{}$,;:.=!*/+%^"'#?&~\\\n-]+$`)

// awk allows -F and -v, a program that matches awkProgram, and files to read.
func awk(_ walker, args []arg) error {
	for len(args) > 0 && args[0].flag() {
		text := args[0].text
		switch {
		case !args[0].exact:
			return errAwk
		case text == "-F" || text == "-v":
			if len(args) < 2 || !args[1].one {
				return errAwk
			}
			args = args[2:]
		case strings.HasPrefix(text, "-F") || strings.HasPrefix(text, "-v"):
			args = args[1:]
		default:
			return errAwk
		}
	}
	if len(args) == 0 || !args[0].exact || !awkProgram.MatchString(args[0].text) {
		return errAwk
	}
	for _, a := range args[1:] {
		if a.flag() || strings.HasPrefix(a.text, inet) || !a.exact && strings.HasPrefix(inet, a.text) {
			return errAwk
		}
	}
	return nil
}

// inet is the start of names that gawk opens as network connections instead of files.
const inet = "/inet"
