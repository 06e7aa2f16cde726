package permission

import (
	"slices"
	"strings"
)

// all reports whether the pattern certainly covers every simple command, so that an allow
// rule holds.
func (s *script) all(pattern []string) bool {
	if everything(pattern) {
		return true
	}
	if s.unclear || s.sideways || len(s.commands) == 0 {
		return false
	}
	return !slices.ContainsFunc(s.commands, func(c command) bool { return !c.matches(pattern, true) })
}

// any reports whether the pattern may cover a command that may be run, so that a deny or
// ask rule holds. It also tries the name of a program without its folder, and looks behind
// wrappers such as sudo or xargs.
func (s *script) any(pattern []string) bool {
	if everything(pattern) || s.unclear {
		return true
	}
	if len(pattern) == 0 {
		return false
	}
	tries := 0
	for _, c := range s.commands {
		if tries++; c.matches(pattern, false) || tries > maxHeads {
			return true
		}
	}
	covers := func(list []command) bool {
		tries := 0
		for _, c := range list {
			if tries++; tries > maxTries {
				return true
			}
			named := c
			if name, ok := c[0].base(); ok {
				named = append(command{exact(name)}, c[1:]...)
			} else if !ok && !c[0].known && !c[0].many && !strings.Contains(pattern[0], "/") {
				named = append(command{{tail: c[0].tail}}, c[1:]...)
			}
			if c.matches(pattern, false) || named.matches(pattern, false) {
				return true
			}
		}
		return false
	}
	if covers(s.unnamed) {
		return true
	}
	if !strings.Contains(pattern[0], "*") {
		return covers(s.heads[pattern[0]])
	}
	for name, list := range s.heads {
		if wildcard(pattern[0], name) && covers(list) {
			return true
		}
	}
	return false
}

func everything(pattern []string) bool { return len(pattern) == 1 && pattern[0] == "*" }
