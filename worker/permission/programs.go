package permission

import (
	"regexp"
	"slices"
	"strings"
)

func names(list string) map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(list) {
		m[name] = true
	}
	return m
}

// shells lists the programs whose language is that of bash, or close to it.
var shells = names("sh bash rbash dash ash zsh rzsh ksh ksh93 mksh rksh pdksh yash")

// otherShells lists shells whose language this package does not analyse.
var otherShells = names("fish csh tcsh pwsh powershell nu elvish xonsh")

// quiet lists commands that never run a program that their arguments name. For such a command,
// a deny rule looks only at the command's own name. Commands that run such a program only with
// certain arguments are in quietUnless.
var quiet = names(`
	cat tac nl head tail wc cut paste tr fold fmt expand unexpand column comm join rev cmp diff colordiff
	grep egrep fgrep zgrep od hexdump xxd strings md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum base64 base32
	ls ll stat du df pwd realpath readlink basename dirname file tree uniq
	echo true false : sleep seq expr numfmt jq yq date cal uname nproc uptime hostname arch
	whoami id groups ps pgrep free printenv which type whereis lsof ss netstat cd pushd popd dirs getconf locale tput clear
	mkdir rmdir touch cp mv ln rm unlink install chmod chown chgrp mktemp truncate tee shred sync
	kill killall pkill export unset readonly local declare typeset shift exit return break continue umask ulimit set shopt times
	printf test [ read mapfile readarray getopts wait dd gunzip gzip bzip2 xz unzip zcat
	curl ping dig host nslookup sqlite3 cloc patch history logout jobs
	[[ true false gofmt goimports black isort prettier
`)

// quietUnless lists commands that are quiet only if none of their words matches the
// expression.
var quietUnless = map[string]*regexp.Regexp{
	"sort":    regexp.MustCompile(`^--?comp|^--?files0`),
	"rg":      regexp.MustCompile(`^--(?:pre|hostname-bin)`),
	"fd":      regexp.MustCompile(`^-[a-zA-Z]*[xX]|^--exec`),
	"fdfind":  regexp.MustCompile(`^-[a-zA-Z]*[xX]|^--exec`),
	"awk":     awkRuns,
	"gawk":    awkRuns,
	"mawk":    awkRuns,
	"nawk":    awkRuns,
	"sed":     sedRuns,
	"gsed":    sedRuns,
	"command": regexp.MustCompile(`^[^-]`), // command -v
	"hash":    regexp.MustCompile(`^-`),
	"jobs":    regexp.MustCompile(`^-x`),
	"curl":    regexp.MustCompile(`^$`),
	"gh":      regexp.MustCompile(`^(?:alias|extension|codespace|ssh)$|^-c$`),
	"git":     gitRuns,
	"find":    regexp.MustCompile(`^-(?:exec|ok)`),
}

var (
	awkRuns = regexp.MustCompile(`system|\||@|getline|^-[fliEe]|^--`)
	// sedRuns finds the command e and the flag e anywhere in a script, and scripts in
	// files.
	sedRuns = regexp.MustCompile(`^-[a-zA-Z]*f|^--file|(?:^|[\s;{}0-9$/!,])e(?:\s|$|;|})|[/|#,:@%!][gpIimM0-9]*e[gpIimM0-9ew]*\s*(?:[;}\n]|$)`)
	// gitRuns finds arguments with which git runs a program that they name.
	gitRuns = regexp.MustCompile(`^-c|^--(?:config-env|exec|upload-pack|receive-pack|open-files|extcmd|tool|pager|editor|template|filter)|^-(?:x|O|u)|ext::|` +
		`^(?:bisect|submodule|filter-branch|difftool|mergetool|config|send-email|daemon|instaweb|shell|rebase|remote-ext|hook|maintenance|for-each-repo|p4|svn)$`)
)

// isQuiet reports whether a command runs no program that its arguments name.
func (c command) isQuiet(name string) bool {
	if unless := quietUnless[name]; unless != nil {
		return !slices.ContainsFunc(c[1:], func(w word) bool {
			return w.known && unless.MatchString(w.text) || !w.known && (w.many && !w.files && name != "git" && name != "gh" || w.lead != "" && unless.MatchString(w.lead))
		})
	}
	return quiet[name]
}

// wrapper describes a program, such as sudo, that runs the command in its arguments. It tells
// where that command begins.
type wrapper struct {
	flags    string // letters of options without a value
	valued   string // letters of options with a value, in the same word or the next
	long     string // long options without a value, or with one behind "="
	longNext string // options of long whose value is the next word, unless it is behind "="
	operands int    // words before the command
	assigns  bool   // NAME=value may come before the command
}

// wrappers lists programs that run a command. If a wrapper has other options, or its entry
// is nil, the command may be anywhere in its arguments.
var wrappers = map[string]*wrapper{
	"builtin":  {},
	"command":  {flags: "p"},
	"exec":     {flags: "cl", valued: "a"},
	"nohup":    {},
	"busybox":  {},
	"toybox":   {},
	"unbuffer": {flags: "p"},
	"time":     {flags: "pvaq", valued: "of"},
	"nice":     {flags: "0123456789", valued: "n", long: "adjustment"},
	"ionice":   {flags: "t", valued: "cn", long: "class classdata"},
	"timeout":  {flags: "v", valued: "ks", long: "kill-after signal preserve-status foreground verbose", operands: 1},
	"gtimeout": {flags: "v", valued: "ks", long: "kill-after signal preserve-status foreground verbose", operands: 1},
	"env":      {flags: "i0v-", valued: "uC", long: "ignore-environment null unset chdir debug", assigns: true},
	"sudo":     {flags: "AbEHknPSis", valued: "ugpCrtTDRhU", long: "user group preserve-env non-interactive login set-home", assigns: true},
	"doas":     {flags: "ns", valued: "uC"},
	"setsid":   {flags: "cfw", long: "ctty fork wait"},
	"stdbuf":   {valued: "ioe", long: "input output error"},
	"xargs": {flags: "0rtxpo", valued: "InPLdEsaJRS", long: "null no-run-if-empty verbose exit max-args max-procs max-lines replace delimiter arg-file",
		longNext: "max-args max-procs max-lines replace delimiter arg-file"},
	"flock":      {flags: "snexuoFv", valued: "wE", operands: 1},
	"taskset":    {flags: "apc", operands: 1},
	"chroot":     {long: "userspec groups skip-chdir", operands: 1},
	"caffeinate": {flags: "dimsu", valued: "tw"},
	"uv":         nil, "npx": nil, "watch": nil, "strace": nil, "ltrace": nil, "gdb": nil, "chrt": nil, "setpriv": nil, "prlimit": nil, "unshare": nil,
	"nsenter": nil, "setarch": nil, "linux32": nil, "linux64": nil, "i386": nil, "x86_64": nil, "runuser": nil, "su": nil, "script": nil, "parallel": nil, "ld.so": nil,
	"split": nil, "pkexec": nil, "run0": nil, "systemd-run": nil, "firejail": nil, "bwrap": nil, "proot": nil, "fakeroot": nil, "fakechroot": nil,
	"catchsegv": nil, "valgrind": nil, "perf": nil, "expect": nil, "socat": nil, "ncat": nil, "nc": nil, "start-stop-daemon": nil, "daemonize": nil,
	"entr": nil, "chpst": nil, "setuidgid": nil, "softlimit": nil, "eatmydata": nil, "faketime": nil, "cpulimit": nil, "numactl": nil, "rlwrap": nil,
	"tmux": nil, "screen": nil, "dtach": nil, "at": nil, "batch": nil, "crontab": nil,
}

// everyday lists wrappers of unknown form that are also used in everyday work. A word of
// unknown value in their arguments does not count as the command.
var everyday = names("uv npx gdb perf valgrind")

// inner returns the index of the command that a wrapper runs, or len(c) if it runs no command.
// ok is false if the words do not show where the command begins.
func (c command) inner(w *wrapper) (at int, ok bool) {
	if w == nil {
		return 0, false
	}
	operands := w.operands
	for i := 1; i < len(c); i++ {
		a := c[i]
		switch {
		case !a.known:
			if a.many || a.option() {
				return 0, false
			}
			if operands == 0 {
				return i, true
			}
			operands--
		case a.text == "--":
		case strings.HasPrefix(a.text, "--"):
			name, _, joined := strings.Cut(a.text[2:], "=")
			if !slices.Contains(strings.Fields(w.long), name) {
				return 0, false
			}
			if !joined && slices.Contains(strings.Fields(w.longNext), name) {
				i++
			}
		case strings.HasPrefix(a.text, "-") && len(a.text) > 1:
			next, ok := w.letters(a.text[1:])
			if !ok {
				return 0, false
			}
			i += next
		case a.text == "-" && strings.Contains(w.flags, "-"):
		case w.assigns && assignment.MatchString(a.text):
		case operands > 0:
			operands--
		default:
			return i, true
		}
	}
	return len(c), true
}

var assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// letters reads a word of option letters. next is 1 if the next word is the value of the
// last letter.
func (w *wrapper) letters(letters string) (next int, ok bool) {
	for i, letter := range letters {
		switch {
		case strings.ContainsRune(w.valued, letter):
			if i == len(letters)-1 {
				return 1, true
			}
			return 0, true
		case !strings.ContainsRune(w.flags, letter):
			return 0, false
		}
	}
	return 0, true
}

// scriptOf returns the text that a shell with these arguments runs, by the options of bash. If
// the text is in a file, file is true. If text is a word of unknown value, the text cannot be
// seen here: the shell reads its input, or has unknown options.
func scriptOf(args command) (text word, file bool) {
	command := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case !a.known && command && !a.many:
			return word{}, false
		case !a.known:
			// A path such as $dir/run.sh is no option of bash, whatever $dir is.
			return word{}, !a.many && strings.Contains(a.tail, "/") && !device.MatchString(a.tail)
		case a.text == "--" || a.text == "-":
			return operandOf(args[i+1:], command)
		case strings.HasPrefix(a.text, "--"):
			switch a.text {
			case "--rcfile", "--init-file":
				return word{}, false // a file that is run first
			case "--login", "--norc", "--noprofile", "--posix", "--restricted", "--verbose", "--noediting", "--version", "--help":
			default:
				return word{}, false
			}
		case strings.HasPrefix(a.text, "-") || strings.HasPrefix(a.text, "+"):
			if !shellLetters.MatchString(a.text[1:]) || strings.Contains(a.text, "s") {
				return word{}, false
			}
			command = command || a.text[0] == '-' && strings.Contains(a.text, "c")
			i += strings.Count(a.text, "o") + strings.Count(a.text, "O")
		default:
			return operandOf(args[i:], command)
		}
	}
	return word{}, false
}

// shellLetters are the option letters of bash. -s is missing, because with it bash reads
// its input.
var shellLetters = regexp.MustCompile(`^[abcefhiklmnprtuvxBCDEHPTOoqd]+$`)

var device = regexp.MustCompile(`(?:^|/)(?:stdin|fd/[0-9]*|[0-9]+)$`)

// operandOf returns the first operand of a shell: the text of -c, or a script in a file.
func operandOf(args command, command bool) (text word, file bool) {
	if len(args) == 0 {
		return word{}, false
	}
	if command {
		return args[0], false
	}
	return word{}, !args[0].known && !args[0].many && strings.Contains(args[0].tail, "/") || args[0].known && !device.MatchString(args[0].text)
}
