package permission

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/schemas/safety"
)

// Bounds on the shell text that is analysed. A command line beyond them is unclear: only the
// pattern "*" allows it, and every deny matches it.
const (
	maxScript = 64 << 10 // bytes; deep nesting in longer text could exhaust the parser's stack
	maxNested = 4        // levels of sh -c inside sh -c
	maxTexts  = 64       // texts that one command line runs as scripts, by sh -c, eval and the like
)

// script holds the simple commands of a shell command line, including those inside substitutions,
// functions and compound commands.
//
// A pattern is a list of words. The word "*" stands for any number of words, and a "*" inside a
// word for any characters; ":*" at the end is another spelling of " *". Some words of a command
// have a value that only the running shell knows (variables, substitutions, file globs). For an
// allow rule only the pattern word "*" covers such a word. For a deny rule it may be anything.
type script struct {
	commands []command
	// sideways: the script has effects that no simple command shows, such as assigning variables,
	// writing through a redirection, defining a function or running a loop. Only "*" allows that.
	sideways bool
	// unclear: the script could not be parsed to the end, or it runs text that is not visible here,
	// because the text is in a file or in a value that bash evaluates (see evaluates).
	unclear bool
	texts   int // texts that its commands run as scripts, see maxTexts
}

// command holds the words of a simple command.
type command []word

type word struct {
	text  string
	known bool
}

// parseScript parses a command line as bash would.
func parseScript(line string, depth int) *script {
	s := &script{}
	if len(line) > maxScript || depth > maxNested {
		s.unclear = true
		return s
	}
	file, err := safety.Parse(line)
	if err != nil {
		s.unclear = true
		return s
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		s.visit(node, depth)
		return !s.unclear
	})
	return s
}

// visit collects the commands of a node, and sets sideways and unclear.
func (s *script) visit(node syntax.Node, depth int) {
	s.unclear = s.unclear || evaluates(node)
	switch n := node.(type) {
	case *syntax.CallExpr:
		s.sideways = s.sideways || len(n.Assigns) > 0
		if len(n.Args) > 0 {
			s.add(wordsOf(n.Args), depth)
		}
	case *syntax.DeclClause: // export, declare, local and their like
		s.sideways = true
		s.add(command{{n.Variant.Value, true}, {}}, depth)
	case *syntax.Redirect:
		s.sideways = s.sideways || writes(n)
	case *syntax.ForClause, *syntax.ArithmCmd, *syntax.LetClause, *syntax.CoprocClause, *syntax.FuncDecl:
		s.sideways = true
	}
}

// add adds a command, and the scripts that it visibly runs: sh -c "..." and eval "...".
func (s *script) add(c command, depth int) {
	s.commands = append(s.commands, c)
	s.sideways = s.sideways || setsByPrintf(c)
	s.unclear = s.unclear || evaluatesNames(c)
	for i, w := range c {
		if i > 0 && !runsOthers(c[0]) {
			break
		}
		if !w.known {
			continue
		}
		for _, text := range scriptsOf(path.Base(w.text), c[i+1:]) {
			if !text.known || s.texts >= maxTexts {
				s.unclear = true
			}
			if s.unclear {
				return
			}
			inner := parseScript(text.text, depth+1)
			s.commands = append(s.commands, inner.commands...)
			s.texts += 1 + inner.texts
			s.sideways = s.sideways || inner.sideways
			s.unclear = inner.unclear
		}
	}
}

// scriptsOf returns the texts that the named command runs as scripts.
func scriptsOf(name string, args command) []word {
	switch {
	case name == "eval" && len(args) > 0:
		return []word{join(args)}
	case name == "trap" && len(args) > 0:
		return args[:1]
	case slices.Contains(shells, name):
		return []word{scriptOf(args)}
	case name == "env":
		return splitOf(args)
	case name == "flock" || name == "su" || name == "script":
		return behind(args, commandOption)
	case name == "watch" || name == "parallel":
		return behind(args, anyText)
	}
	return nil
}

var (
	shells = []string{"sh", "bash", "dash", "ash", "zsh", "ksh"}
	// wrappers lists commands that run the command in their arguments.
	wrappers = []string{"builtin", "chroot", "command", "doas", "env", "exec", "find", "flock", "ionice", "nice",
		"nohup", "parallel", "setsid", "stdbuf", "strace", "sudo", "time", "timeout", "watch", "xargs"}
)

func runsOthers(w word) bool { return w.known && slices.Contains(wrappers, path.Base(w.text)) }

// scriptOf returns the text that a shell with these arguments runs: the word after -c, or an empty
// text if there is the name of a file. Without either, the shell reads its input, which is unknown.
func scriptOf(args command) word {
	for i, a := range args {
		switch {
		case !a.known:
			return word{}
		case strings.HasPrefix(a.text, "-") && !strings.HasPrefix(a.text, "--") && strings.Contains(a.text, "c"):
			if i+1 < len(args) {
				return args[i+1]
			}
			return word{}
		case !strings.HasPrefix(a.text, "-"):
			return word{known: true}
		}
	}
	return word{}
}

var (
	commandOption = regexp.MustCompile(`^(?:-[a-z]*c|--command(?:=|$))(.*)$`)
	splitOption   = regexp.MustCompile(`^(?:-[iv0]*S|--s[a-z-]*(?:=|$))(.*)$`)
	anyText       = regexp.MustCompile(`^(.* .*)$`)
)

// behind returns the values of an option, from the same word or the next.
func behind(args command, option *regexp.Regexp) (values []word) {
	for i, a := range args {
		switch found := option.FindStringSubmatch(a.text); {
		case !a.known || found == nil:
		case found[1] != "":
			values = append(values, word{found[1], true})
		case i+1 < len(args):
			values = append(values, args[i+1])
		}
	}
	return values
}

// splitOf returns what env -S runs: its value and all words after it. A text with escapes or
// variables of env is unknown.
func splitOf(args command) []word {
	for i, a := range args {
		found := splitOption.FindStringSubmatch(a.text)
		if !a.known || found == nil {
			continue
		}
		text := join(append(command{{found[1], true}}, args[i+1:]...))
		if strings.ContainsAny(text.text, `\$`) {
			return []word{{}}
		}
		return []word{text}
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
	return word{strings.Join(texts, " "), true}
}

// all reports whether the pattern certainly covers every simple command, so that an allow holds.
func (s *script) all(pattern []string) bool {
	if everything(pattern) {
		return true
	}
	if s.unclear || s.sideways || len(s.commands) == 0 {
		return false
	}
	return !slices.ContainsFunc(s.commands, func(c command) bool { return !c.matches(pattern, true) })
}

// any reports whether the pattern may cover one of the simple commands, so that a deny or ask rule
// holds. It also looks at a program's name without its folder, and behind a wrapper such as sudo or
// xargs.
func (s *script) any(pattern []string) bool {
	if everything(pattern) || s.unclear {
		return true
	}
	return slices.ContainsFunc(s.commands, func(c command) bool {
		for i := range c {
			if i > 0 && !runsOthers(c[0]) {
				break
			}
			bare := slices.Clone(c[i:])
			bare[0].text = path.Base(bare[0].text)
			if c[i:].matches(pattern, false) || bare.matches(pattern, false) {
				return true
			}
		}
		return false
	})
}

func everything(pattern []string) bool { return len(pattern) == 1 && pattern[0] == "*" }

// matches reports whether the pattern covers the words. It runs the pattern as an automaton: in
// state p, the first p words of the pattern are used up. Unless certain is set, a word of unknown
// value may be any number of any words.
func (c command) matches(pattern []string, certain bool) bool {
	at := make([]bool, len(pattern)+1)
	at[0] = true
	skip(at, pattern)
	for _, w := range c {
		next := make([]bool, len(at))
		for p := range at {
			if !at[p] {
				continue
			}
			guess := !w.known && !certain
			if guess {
				for q := p; q < len(at); q++ {
					next[q] = true
				}
			}
			if p == len(pattern) {
				continue
			}
			if pattern[p] == "*" {
				next[p] = true
			} else if w.known && wildcard(pattern[p], w.text) {
				next[p+1] = true
			}
		}
		skip(next, pattern)
		at = next
	}
	return at[len(pattern)]
}

// skip adds the states in which a "*" stands for no word.
func skip(at []bool, pattern []string) {
	for p, w := range pattern {
		if at[p] && w == "*" {
			at[p+1] = true
		}
	}
}

// writes reports whether a redirection may change a file.
func writes(r *syntax.Redirect) bool {
	switch r.Op {
	case syntax.RdrIn, syntax.DplIn, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		return false
	}
	target := wordOf(r.Word)
	if r.Op == syntax.DplOut && target.known && strings.Trim(target.text, "0123456789-") == "" {
		return false // 2>&1
	}
	return !target.known || target.text != "/dev/null"
}

func wordsOf(words []*syntax.Word) command {
	c := make(command, len(words))
	for i, w := range words {
		c[i] = wordOf(w)
	}
	return c
}

// wordOf returns a word without its quotes. Its value is known if it has no expansion.
func wordOf(w *syntax.Word) word {
	var b, unquoted strings.Builder
	for _, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			unquoted.WriteString(p.Value)
			b.WriteString(unescape(p.Value, ""))
		case *syntax.SglQuoted:
			if p.Dollar && strings.Contains(p.Value, `\`) {
				return word{}
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			for _, part := range p.Parts {
				lit, ok := part.(*syntax.Lit)
				if !ok {
					return word{}
				}
				b.WriteString(unescape(lit.Value, "$`\"\\"))
			}
		default:
			return word{}
		}
	}
	if expands(unquoted.String()) {
		return word{}
	}
	return word{b.String(), true}
}

// expands reports whether the unquoted part of a word may become other words: by file globs, braces
// or a home folder. An escaped glob character counts too, although the shell does not expand it.
func expands(lit string) bool {
	return strings.ContainsAny(lit, "*?") || strings.HasPrefix(lit, "~") ||
		strings.Contains(lit, "[") && strings.Contains(lit, "]") ||
		strings.Contains(lit, "{") && (strings.Contains(lit, ",") || strings.Contains(lit, ".."))
}

// unescape removes the backslashes that the shell would remove: those before a character in only,
// or all of them if only is "". A backslash before a line break is removed with it.
func unescape(lit, only string) string {
	if !strings.Contains(lit, `\`) {
		return lit
	}
	var b strings.Builder
	for i := 0; i < len(lit); i++ {
		switch {
		case lit[i] != '\\' || i+1 == len(lit):
			b.WriteByte(lit[i])
		case lit[i+1] == '\n':
			i++
		case only == "" || strings.IndexByte(only, lit[i+1]) >= 0:
			i++
			b.WriteByte(lit[i])
		default:
			b.WriteByte('\\')
		}
	}
	return b.String()
}
