package safety

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// policy says with which options and operands a command changes nothing.
//
// A program is free if none of its options does harm. For any other program, each word that
// begins with "-", or could begin with it after expansion, must be a listed option. That holds
// for every position: even after "--", and for the value of another option. So the check does
// not depend on which options take a value, nor on how getopt reorders and abbreviates options
// (--outp=f is not in the list).
type policy struct {
	free bool
	// short lists the option letters without a value, which may be joined; valued lists those with
	// a value, in the same word or the next.
	short, valued string
	// long lists the long options without their dashes. Each may have "=value".
	long []string
	// operands is the largest number of words that are not options; nil: no limit. With a
	// limit, options must come first, and "--" is refused, because some programs take any word
	// after "--" as an operand.
	operands *int
	// check makes a further check after the check of the options. It is the only check if no
	// options are listed.
	check func(w walker, args []arg) error
}

// atMost returns the bound n for operands.
func atMost(n int) *int { return &n }

var safeName = regexp.MustCompile(`^[A-Za-z0-9_./+:@\[-]{1,40}$`)

// call checks a simple command.
func (w walker) call(c *syntax.CallExpr) error {
	if len(c.Args) == 0 {
		for _, a := range c.Assigns {
			if err := w.assign(a); err != nil {
				return err
			}
		}
		return nil
	}
	args := make([]arg, len(c.Args))
	for i, word := range c.Args {
		var err error
		if args[i], err = w.word(word); err != nil {
			return err
		}
	}
	for _, a := range c.Assigns {
		if err := w.prefix(a, args[0].text); err != nil {
			return err
		}
	}
	return w.run(args)
}

// run checks a command given by its words; the first is the command's name.
func (w walker) run(args []arg) error {
	w.depth++ // wrappers nest commands too
	if w.depth > maxDepth {
		return errors.New("nested too deep")
	}
	if len(args) == 0 || !args[0].exact {
		return errors.New("the command's name is not known before it runs")
	}
	name := args[0].text
	for _, dir := range []string{"/usr/bin/", "/bin/"} {
		if base, ok := strings.CutPrefix(name, dir); ok && !strings.Contains(base, "/") {
			name = base
			break
		}
	}
	p, known := commands[name]
	switch {
	case known:
	case versions[name] && len(args) == 2 && args[1].exact && args[1].text == "--version":
		return nil
	case safeName.MatchString(name):
		return fmt.Errorf("%s can change things", name)
	default:
		return errors.New("the command can change things")
	}
	if p.free {
		return nil
	}
	return p.allows(w, name, args[1:])
}

// allows checks the words after the command's name.
func (p policy) allows(w walker, name string, args []arg) error {
	if p.short != "" || p.valued != "" || p.long != nil || p.operands != nil {
		if err := p.options(name, args); err != nil {
			return err
		}
	}
	if p.check != nil {
		return p.check(w, args)
	}
	return nil
}

// options checks every word that is or could be an option, and counts the other words.
func (p policy) options(name string, args []arg) error {
	operands := 0
	for i, a := range args {
		if !a.flag() {
			switch {
			case i > 0 && p.takesNext(args[i-1]) && a.one:
			case !a.one:
				operands += 2 // the word may become any number of operands
			default:
				operands++
			}
			continue
		}
		late := p.operands != nil && (operands > 0 || a.text == "--")
		if late || !p.option(a) {
			if option, _, _ := strings.Cut(a.text, "="); a.exact && safeName.MatchString(option) {
				return fmt.Errorf("%s %s is not known to be harmless", name, option)
			}
			return fmt.Errorf("%s with an option that is not known to be harmless", name)
		}
	}
	if p.operands != nil && operands > *p.operands {
		return fmt.Errorf("%s with so many operands can change things", name)
	}
	return nil
}

// option reports whether a word that could be an option can only be a listed option.
func (p policy) option(a arg) bool {
	switch {
	case a.wild || !strings.HasPrefix(a.text, "-"):
		return false
	case a.exact && a.text == "--":
		return true
	case strings.HasPrefix(a.text, "--"):
		name, _, valued := strings.Cut(a.text[2:], "=")
		return (a.exact || valued) && slices.Contains(p.long, name)
	}
	for _, letter := range a.text[1:] {
		if strings.ContainsRune(p.valued, letter) {
			return true // the rest of the word is its value
		}
		if !strings.ContainsRune(p.short, letter) {
			return false
		}
	}
	return a.exact
}

// takesNext reports whether the option's value is the next word. The caller uses it so that
// values do not count as operands.
func (p policy) takesNext(a arg) bool {
	if !a.exact || len(a.text) < 2 || a.text[0] != '-' || a.text[1] == '-' {
		return false
	}
	at := strings.IndexAny(a.text[1:], p.valued)
	return p.valued != "" && at == len(a.text)-2
}

// exactly returns the texts of the words. ok is false if one of them is not known.
func exactly(args []arg) ([]string, bool) {
	texts := make([]string, len(args))
	for i, a := range args {
		if !a.exact {
			return nil, false
		}
		texts[i] = a.text
	}
	return texts, true
}
