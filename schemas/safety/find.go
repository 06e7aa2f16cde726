package safety

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// The primaries of find that change nothing: those without a value, and those with one.
var (
	findPlain = set(`( ) ! , -a -o -and -or -not -true -false -empty -executable -readable -writable -nouser -nogroup
		-print -print0 -prune -quit -ls -depth -xdev -mount -follow -daystart -noleaf -ignore_readdir_race -L -H -P`)
	findValued = set(`-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname -type -xtype
		-size -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -maxdepth -mindepth -perm -user -group -uid -gid
		-links -inum -samefile -fstype -printf`)
	findNewer = regexp.MustCompile(`^-newer[aBcmt]{2}$`)
)

// find allows the tests and the primaries that print. It allows -exec and -execdir if the command
// that they run is safe itself. -delete, -ok, -okdir, -fprint and the like are not allowed.
func find(w walker, args []arg) error {
	starts := true // the list of folders to search has not ended
	for i := 0; i < len(args); i++ {
		a := args[i]
		expression := a.flag() || a.exact && (a.text == "(" || a.text == "!" || a.text == ",")
		switch {
		case !expression && starts:
			continue
		case !a.exact || !expression && a.text != ")":
			return errors.New("find with an expression that is not known")
		}
		starts = false
		switch {
		case findPlain[a.text]:
			starts = a.text == "-L" || a.text == "-H" || a.text == "-P"
		case findValued[a.text], findNewer.MatchString(a.text):
			if i++; i == len(args) || !args[i].one {
				return fmt.Errorf("find %s with a value that is not known", a.text)
			}
		case a.text == "-exec" || a.text == "-execdir":
			n, err := findExec(w, args[i+1:])
			if err != nil {
				return err
			}
			i += n
		case safeName.MatchString(a.text):
			return fmt.Errorf("find %s can change things", a.text)
		default:
			return errors.New("find with an expression that is not known")
		}
	}
	return nil
}

// findExec checks the command between -exec and its end, and returns the number of its words.
// Each {} becomes a path below a given folder, so it never looks like an option.
func findExec(w walker, args []arg) (words int, err error) {
	var inner []arg
	for i, a := range args {
		if !a.one {
			return 0, errors.New("find -exec of a command that is not known")
		}
		last := len(inner) > 0 && a.exact && (a.text == ";" || a.text == "+" && args[i-1].exact && args[i-1].text == "{}")
		if last {
			return i + 1, w.run(inner)
		}
		if at := strings.Index(a.text, "{}"); at >= 0 {
			if i == 0 {
				return 0, errors.New("find -exec runs what it finds")
			}
			a = arg{text: a.text[:at], one: a.text != "{}"}
			if at == 0 {
				a.text = "./"
			}
		} else if !a.exact {
			a = arg{wild: true} // the unknown rest may contain {}
		}
		inner = append(inner, a)
	}
	return 0, errors.New("find -exec without an end")
}

// xargs checks the command that xargs runs. Its further arguments come from the input, so they
// are unknown.
func xargs(w walker, args []arg) error {
	replace := ""
	for len(args) > 0 && args[0].flag() {
		option := args[0]
		if !option.exact {
			return errors.New("xargs with an option that is not known to be harmless")
		}
		switch text := option.text; {
		case xargsPlain.MatchString(text):
			args = args[1:]
		case text == "-n" || text == "-P" || text == "-L" || text == "-d" || text == "-I":
			if len(args) < 2 || !args[1].exact {
				return fmt.Errorf("xargs %s with a value that is not known", text)
			}
			if text == "-I" {
				replace = args[1].text
			}
			args = args[2:]
		case strings.HasPrefix(text, "-I"):
			replace = text[2:]
			args = args[1:]
		default:
			return errors.New("xargs with an option that is not known to be harmless")
		}
	}
	if len(args) == 0 {
		return nil // without a command xargs runs echo
	}
	inner := append([]arg{}, args...)
	if !inner[0].exact || replace != "" && strings.Contains(inner[0].text, replace) {
		return errors.New("xargs of a command that is not known")
	}
	if replace == "" {
		return w.run(append(inner, arg{wild: true}))
	}
	for i, a := range inner[1:] {
		switch at := strings.Index(a.text, replace); {
		case a.exact && at < 0:
		case at > 0: // the text before it stays the first part of the word
			inner[i+1] = arg{text: a.text[:at], one: a.one}
		default:
			inner[i+1] = arg{wild: true}
		}
	}
	return w.run(inner)
}

var xargsPlain = regexp.MustCompile(`^(-[0rtx]+|-[nPL][0-9]+|--null|--no-run-if-empty|--verbose|--max-args=[0-9]+|--max-procs=[0-9]+)$`)
