package permission

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/schemas/safety"
)

// Limits of the shell text that is analysed. A command line over a limit is unclear: only the
// pattern "*" allows it, and every deny rule matches it. With these limits, the analysis takes
// time linear in the length of the text, and a check of a rule is cheap.
const (
	maxScript = 64 << 10 // bytes; deep nesting in longer text could exhaust the parser's stack
	maxNested = 4        // levels of sh -c inside sh -c
	maxTexts  = 64       // texts that one command line runs as scripts, by sh -c, eval and the like
	maxHeads  = 4096     // words that may be the name of a command that is run
	maxWraps  = 16       // wrappers around one command: sudo env nice ...
	maxBehind = 16       // arguments after a text that may belong to the text's last word
	maxTries  = 64       // commands that are compared with one rule
)

// script holds the simple commands of a shell command line, including those inside substitutions,
// functions and compound commands.
//
// A pattern is a list of words. The pattern word "*" stands for any number of words. A "*"
// within a word stands for any characters. ":*" at the end is another way to write " *".
// The value of some words of a command is known only to the running shell (variables,
// substitutions, file globs). In an allow rule only the pattern word "*" covers such a
// word. In a deny rule it may be any word.
type script struct {
	commands []command // commands in the text itself, and in texts that it visibly runs
	// heads holds, by name, each command that may be run: every command in commands and, if a
	// command may run what its arguments name, each of its words too.
	heads map[string][]command
	// unnamed holds the commands that may be run and have an unknown name.
	unnamed []command
	count   int // the number of commands in heads and unnamed
	// sideways says that the script has effects that no simple command shows, such as
	// assigning variables, writing through a redirection, defining a function or running a
	// loop. Only "*" allows such a script.
	sideways bool
	// unclear says that the script could not be parsed to the end, or runs text that cannot
	// be seen here: the text is in a file, or in a value that bash evaluates (see
	// evaluates).
	unclear bool
	insides int // shells among the arguments: see maxTexts
	texts   int // texts that the commands run as scripts: see maxTexts

	read    wordReader
	numbers map[string]bool // variables to which the text assigns only numbers
}

// parseScript parses a command line as bash would.
func parseScript(line string, depth int) *script {
	s := &script{heads: map[string][]command{}}
	s.text(line, depth)
	return s
}

// text adds the commands of a text that runs as a script.
func (s *script) text(line string, depth int) {
	if s.texts++; len(line) > maxScript || depth > maxNested || s.texts > maxTexts {
		s.unclear = true
		return
	}
	file, err := safety.Parse(line)
	if err != nil {
		s.unclear = true
		return
	}
	outer, numbers := s.read, s.numbers
	defer func() { s.read, s.numbers = outer, numbers }()
	s.read, s.numbers = variables(file, outer.assigned)
	syntax.Walk(file, func(node syntax.Node) bool {
		s.visit(node, depth)
		return !s.unclear
	})
}

// visit collects the commands of a node, and sets sideways and unclear.
func (s *script) visit(node syntax.Node, depth int) {
	s.unclear = s.unclear || s.evaluates(node)
	switch n := node.(type) {
	case *syntax.CallExpr:
		s.sideways = s.sideways || len(n.Assigns) > 0
		if len(n.Args) > 0 {
			s.add(s.read.words(n.Args), depth)
		}
	case *syntax.DeclClause: // export, declare, local and the like
		s.sideways = true
		s.add(command{exact(n.Variant.Value), {many: true}}, depth)
	case *syntax.Assign:
		s.assign(n)
	case *syntax.Redirect:
		s.sideways = s.sideways || s.writes(n)
	case *syntax.CmdSubst:
		s.sideways = s.sideways || readsFile(n.Stmts)
	case *syntax.WordIter:
		s.unclear = s.unclear || special(n.Name.Value) != ""
	case *syntax.ForClause, *syntax.ArithmCmd, *syntax.LetClause, *syntax.CoprocClause, *syntax.FuncDecl:
		s.sideways = true
	}
}

// readsFile reports whether a substitution is $(< file). This runs no command that a rule
// could name.
func readsFile(stmts []*syntax.Stmt) bool {
	return slices.ContainsFunc(stmts, func(s *syntax.Stmt) bool { return s.Cmd == nil && len(s.Redirs) > 0 })
}

// add adds a command of the text.
func (s *script) add(c command, depth int) {
	s.commands = append(s.commands, c)
	s.sideways = s.sideways || setsByPrintf(c)
	s.runs(c, depth)
}

// runs records what a command runs: itself, the command in its arguments, and texts in its
// arguments.
func (s *script) runs(c command, depth int) {
	for depths := 0; !s.unclear; depths++ {
		if depths > maxWraps {
			s.unclear = true
			return
		}
		name, known := c[0].base()
		if !known {
			s.head("", c)
			s.arguments(c[1:])
			return
		}
		s.head(name, c)
		s.unclear = s.unclear || s.evaluatesNames(name, c)
		if texts, unknown := textsOf(name, c[1:]); unknown {
			s.unclear = true
		} else {
			for _, text := range texts {
				s.text(text, depth+1)
			}
		}
		s.environment(c[1:], name)
		w, wraps := wrappers[name]
		switch at, ok := c.inner(w); {
		case name == "find" && !c.isQuiet(name):
			at := slices.IndexFunc(c, func(w word) bool {
				return !w.known && w.many && !w.files || strings.HasPrefix(w.text, "-exec") || strings.HasPrefix(w.text, "-ok")
			})
			if at < 0 {
				return
			}
			if !c[at].known {
				s.head("", c[at:])
				return
			}
			s.arguments(c[at+1:])
			if c = c[at+1:]; len(c) == 0 {
				return
			}
			if !c[0].known {
				s.head("", c)
				return
			}
			if name, _ := c[0].base(); wrappers[name] == nil && !shells[name] {
				return
			}
			continue
		case name == "git":
			s.head(name, withoutGlobals(c))
			if !c.isQuiet(name) {
				s.arguments(c[1:])
			}
			return
		case name == "command" && c.isQuiet(name), !wraps && c.isQuiet(name):
			return
		case wraps && ok && at < len(c):
			if name == "xargs" {
				c = appended(c, at)
			} else {
				c = c[at:]
			}
			continue
		case wraps && ok:
			return
		case wraps && !everyday[name]:
			if name == "parallel" {
				c = append(slices.Clip(c), word{many: true})
			}
			// The form of this wrapper is unknown, so any word of unknown value may be the
			// command.
			for i := 1; i < len(c); i++ {
				if !c[i].known {
					s.head("", c[i:])
				}
			}
		}
		s.arguments(c[1:])
		return
	}
}

// head records a command that may be run. The name is "" if it is unknown.
func (s *script) head(name string, c command) {
	if s.count++; s.count > maxHeads {
		s.unclear = true
		return
	}
	if name == "" {
		s.unnamed = append(s.unnamed, c)
		return
	}
	s.heads[name] = append(s.heads[name], c)
	if c[0].known && c[0].text != name {
		s.heads[c[0].text] = append(s.heads[c[0].text], c)
	}
}

// arguments records the arguments of a command that may run what they name: each argument
// may be the name of a command, and so may each word in it.
func (s *script) arguments(args command) {
	for i, a := range args {
		if !a.known {
			continue
		}
		if !between.MatchString(a.text) {
			if name := path.Base(a.text); a.text != "" && !strings.HasPrefix(a.text, "-") {
				s.head(name, args[i:])
			}
			if name, _ := a.base(); (shells[name] || wrappers[name] != nil) && i+1 < len(args) {
				s.inside(args[i:])
			}
			continue
		}
		s.tokens(a.text, args[i+1:])
		for _, other := range []string{plainText.Replace(a.text), strings.ReplaceAll(a.text, "/", " ")} {
			if other != a.text {
				s.tokens(other, args[i+1:])
			}
		}
	}
}

// inside records the text that a shell runs somewhere in the arguments of another command.
func (s *script) inside(c command) {
	if s.insides++; s.insides > maxTexts {
		s.unclear = true
		return
	}
	name, _ := c[0].base()
	if !slices.ContainsFunc(c, func(w word) bool { return w.known && commandOption.MatchString(w.text) }) {
		return
	}
	texts, unknown := textsOf(name, c[1:])
	s.unclear = s.unclear || unknown
	for _, text := range texts {
		if !s.unclear {
			s.text(text, maxNested)
		}
	}
}

var (
	between  = regexp.MustCompile(`[^A-Za-z0-9_./+@%:-]`)
	inTokens = regexp.MustCompile(`[A-Za-z0-9_./+-]+`)
)

var plainText = strings.NewReplacer(`\`, "", `'`, "", `"`, "")

// tokens records the words of a text that some program may run, in an unknown language. The
// arguments after the text may be arguments of its last word.
func (s *script) tokens(text string, behind command) {
	var c command
	for _, token := range inTokens.FindAllString(text, -1) {
		c = append(c, exact(token))
	}
	found := len(c)
	c = append(c, behind[:min(len(behind), maxBehind)]...)
	for i, w := range c[:found] {
		if attached := attachedValue.FindStringSubmatch(w.text); attached != nil { // -Ovalue
			s.head(path.Base(attached[1]), append(command{exact(attached[1])}, c[i+1:]...))
		}
		if !strings.HasPrefix(w.text, "-") && strings.Trim(w.text, "./+-0123456789") != "" {
			s.head(path.Base(w.text), c[i:])
		}
	}
}

// environment checks the assignments before the command of a wrapper.
func (s *script) environment(args command, name string) {
	if wrappers[name] == nil || !wrappers[name].assigns {
		return
	}
	for _, a := range args {
		text := a.text
		if !a.known {
			text = a.lead
		}
		if assignment.MatchString(text) {
			variable, value, _ := strings.Cut(text, "=")
			s.sets(variable, word{text: value, known: a.known, many: true})
		}
	}
}

// assign checks an assignment in the text.
func (s *script) assign(a *syntax.Assign) {
	if a.Name == nil {
		return
	}
	if a.Name.Value == "PATH" && a.Value != nil && systemPath(a.Value) {
		return
	}
	value := exact("")
	if a.Value != nil {
		value = s.read.word(a.Value)
	} else if a.Array != nil {
		value = word{many: true}
	}
	if !a.Naked {
		s.sets(a.Name.Value, value)
	}
}

var attachedValue = regexp.MustCompile(`^-[A-Za-z]([A-Za-z0-9_./].*)$`)

// appended returns the command that xargs runs, which begins at index at of c. Words of
// unknown value stand for the words that xargs reads. They replace the mark of option -I or
// -i, or follow at the end if there is no mark.
func appended(c command, at int) command {
	mark, out := "", slices.Clone(c[at:])
	for i, a := range c[1:at] {
		switch {
		case a.text == "-i", a.text == "--replace":
			mark = "{}"
		case a.text == "-I" && i+2 < len(c):
			mark = c[i+2].text
		case strings.HasPrefix(a.text, "-I"):
			mark = a.text[2:]
		case strings.HasPrefix(a.text, "--replace="):
			mark = a.text[len("--replace="):]
		}
	}
	if mark == "" {
		return append(out, word{many: true})
	}
	for i, a := range out {
		if before, _, marked := strings.Cut(a.text, mark); a.known && marked {
			out[i] = word{lead: before, tail: a.text[strings.LastIndex(a.text, mark)+len(mark):]}
		}
	}
	return out
}

// sets checks a variable that gets a value. The values of some variables are run, evaluated
// or obeyed by bash, the linker or everyday programs.
func (s *script) sets(variable string, value word) {
	switch special(variable) {
	case "obeyed":
		s.unclear = true
	case "evaluated":
		s.unclear = s.unclear || !value.known || strings.ContainsAny(value.text, "$`[")
	case "run":
		s.unclear = s.unclear || !value.known || strings.ContainsAny(value.text, "$`")
		s.tokens(value.text, nil)
	}
}

var (
	obeyed    = regexp.MustCompile(`^(?:BASH_ENV|ENV|PATH|BASH_ALIASES|BASH_CMDS|BASH_LOADABLES_PATH|SHELLOPTS|BASHOPTS|BASH_COMPAT|EXECIGNORE|FUNCNEST|POSIXLY_CORRECT|LD_.*|DYLD_.*|GCONV_PATH|CDPATH|GLOBIGNORE)$`)
	evaluated = regexp.MustCompile(`^(?:PS[0-4]|PROMPT_COMMAND|PROMPT_DIRTRIM|RANDOM|SRANDOM|SECONDS|LINENO|OPTIND|HISTCMD|HISTSIZE|EPOCH.*|BASH_ARGV0|BASH_XTRACEFD|TIMEFORMAT|COMP_.*|MAILPATH)$`)
	run       = regexp.MustCompile(`^(?:.*PAGER|.*EDITOR|VISUAL|FCEDIT|LESSOPEN|LESSCLOSE|BROWSER|.*_RSH|SHELL|.*ASKPASS|GIT_[A-Z_0-9]+|TAR_OPTIONS|PERL5OPT|PERL5DB|NODE_OPTIONS|RUBYOPT|PYTHONSTARTUP|MAKEFLAGS|RUSTC_WRAPPER|.*_SSH_COMMAND)$`)
	gitValue  = regexp.MustCompile(`^GIT_(?:AUTHOR|COMMITTER)_|^GIT_(?:DIR|WORK_TREE|INDEX_FILE|TERMINAL_PROMPT|OPTIONAL_LOCKS|TRACE.*|MERGE_AUTOEDIT|BRANCH|SHA|COMMIT|TAG|REPO|URL|REF|ROOT)$`)
)

// special returns what a variable means to bash or to everyday programs. "obeyed": the
// variable changes what names mean. "evaluated": bash may run a substitution in the variable's
// value. "run": the value is a command.
func special(variable string) string {
	switch {
	case obeyed.MatchString(variable):
		return "obeyed"
	case evaluated.MatchString(variable):
		return "evaluated"
	case run.MatchString(variable) && !gitValue.MatchString(variable):
		return "run"
	}
	return ""
}

// systemPath reports whether a value of PATH adds only folders of the system.
func systemPath(w *syntax.Word) bool {
	var text strings.Builder
	parts := w.Parts
	if len(parts) == 1 {
		if q, ok := parts[0].(*syntax.DblQuoted); ok && !q.Dollar {
			parts = q.Parts
		}
	}
	for _, part := range parts {
		switch p := part.(type) {
		case *syntax.Lit:
			text.WriteString(p.Value)
		case *syntax.ParamExp:
			if p.Param == nil || p.Param.Value != "PATH" || p.Exp != nil || p.Index != nil || p.Excl || p.Length || p.Slice != nil || p.Repl != nil {
				return false
			}
			text.WriteString("$PATH")
		default:
			return false
		}
	}
	folders := strings.Split(text.String(), ":")
	return slices.Contains(folders, "$PATH") && !slices.ContainsFunc(folders, func(f string) bool {
		return f != "$PATH" && (!systemFolder.MatchString(f) || path.Clean(f) != f)
	})
}

var systemFolder = regexp.MustCompile(`^/(?:usr|bin|sbin|opt)(?:/[A-Za-z0-9._/+-]+)?$`)

// writes reports whether a redirection may change a file or open a connection.
func (s *script) writes(r *syntax.Redirect) bool {
	target := s.read.word(r.Word)
	if strings.HasPrefix(target.text, "/dev/tcp/") || strings.HasPrefix(target.text, "/dev/udp/") {
		return true
	}
	switch r.Op {
	case syntax.RdrIn:
		return !target.known
	case syntax.DplIn, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		return false
	}
	if r.Op == syntax.DplOut && target.known && strings.Trim(target.text, "0123456789-") == "" {
		return false // 2>&1
	}
	return !target.known || target.text != "/dev/null"
}
