package safety

import (
	"errors"
	"regexp"
	"strings"
)

// commands lists the commands that can be called without changing anything, each with its policy.
// init fills it, because wrappers such as xargs look up other commands in it.
var commands map[string]policy

// versions lists programs that are safe only when they are called to print their version.
var versions = set("bash cc clang cmake g++ gcc gzip java make node perl php python python3 ruby sed tar")

func init() {
	commands = map[string]policy{
		// These lists leave out options and operands that write or run something: -o and
		// --output of sort, tree, base64; --compress-program of sort; the second operand of
		// uniq; operands of date and hostname, which set the clock and the name; -C of file;
		// --pre and --hostname-bin of rg; -x and -X of fd. An option letter of tree takes its
		// value from a later word, so further letters may follow it.
		"sort": {short: "bcCdfghiMmnRrsuVz", valued: "ktS", long: strings.Fields(
			"reverse unique numeric-sort general-numeric-sort human-numeric-sort version-sort month-sort random-sort key field-separator ignore-case ignore-leading-blanks dictionary-order stable zero-terminated check merge parallel buffer-size")},
		"uniq": {short: "cdDiuz", valued: "fsw", operands: atMost(1), long: strings.Fields(
			"count repeated unique ignore-case skip-fields skip-chars check-chars zero-terminated")},
		"base64":   {short: "dD", valued: "w", long: strings.Fields("decode wrap ignore-garbage"), operands: atMost(1)},
		"tree":     {short: "adfilprshugDFqNQxCnSALPI", long: strings.Fields("dirsfirst noreport gitignore prune du charset filelimit matchdirs ignore-case filesfirst")},
		"file":     {short: "bihLk", long: strings.Fields("brief mime mime-type mime-encoding dereference no-dereference keep-going")},
		"arch":     {operands: atMost(0)}, // on macOS it runs a program if it has an operand
		"hostname": {short: "sfdiIA", operands: atMost(0)},
		"date":     {short: "uRI", valued: "", long: strings.Fields("utc universal date reference iso-8601 rfc-3339 rfc-email"), check: date},
		"rg": {short: "0123456789aceFHhiILlnNoPpqsSuUvwx.", valued: "ABCdEefgjmMrtT", long: strings.Fields(
			"after-context before-context context case-sensitive ignore-case smart-case color column count count-matches files files-with-matches files-without-match fixed-strings follow glob iglob heading no-heading hidden json line-number no-line-number line-regexp max-columns max-count max-depth max-filesize multiline multiline-dotall no-config no-filename with-filename no-ignore no-ignore-vcs no-messages null null-data only-matching passthru pcre2 pretty quiet regexp replace sort sortr stats text threads trim type type-not type-list type-add unrestricted vimgrep word-regexp invert-match version")},
		"fd":     fdPolicy,
		"fdfind": fdPolicy,

		"awk":  {check: awk},
		"gawk": {check: awk},
		"mawk": {check: awk},
		"sed":  {short: "nErsuz", valued: "el", long: strings.Fields("quiet silent expression regexp-extended separate null-data posix sandbox"), check: sed},
		"find": {check: find},
		"git":  {check: git},

		// The shell's builtins.
		"printf":  {check: printf},
		"test":    {check: test},
		"[":       {check: bracket},
		"read":    {check: read},
		"set":     {check: setOptions},
		"exit":    {check: digits},
		"return":  {check: digits},
		"break":   {check: digits},
		"shift":   {check: digits},
		"env":     {operands: atMost(0)},
		"command": {check: commandBuiltin},

		// Wrappers: they are as safe as the command that they run.
		"xargs":   {check: xargs},
		"timeout": {check: timeout},
	}
	commands["continue"] = commands["break"]
	for name := range free {
		commands[name] = policy{free: true}
	}
}

var fdPolicy = policy{short: "HIuUsiglLapFq01", valued: "detESj", long: strings.Fields(
	"hidden no-ignore no-ignore-vcs unrestricted case-sensitive ignore-case glob regex fixed-strings absolute-path follow full-path print0 max-depth min-depth exact-depth exclude type extension size changed-within changed-before color max-results quiet")}

// free lists commands that change nothing, whatever their arguments. In GNU, BSD and busybox, none
// of their options writes to a file, or runs a program that the caller chooses (diff -l runs pr).
var free = set(`
	cat tac nl head tail wc cut paste tr fold fmt expand unexpand column comm join rev cmp diff
	grep egrep fgrep od hexdump strings md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum
	ls stat du df pwd realpath readlink basename dirname
	echo true false : sleep seq expr numfmt jq
	whoami id groups uname nproc ps free printenv which type cd getconf`)

func set(names string) map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(names) {
		m[name] = true
	}
	return m
}

// date allows only a format as the operand, because any other operand sets the clock. A value of an
// option has to be written with "=", as in --date=yesterday.
func date(_ walker, args []arg) error {
	for _, a := range args {
		if !a.flag() && !strings.HasPrefix(a.text, "+") {
			return errors.New("date with this operand can set the clock")
		}
	}
	return nil
}

// conversion matches the conversions of printf that only print. %n is not among them, because
// it sets a variable and evaluates the variable's index, as the option -v does.
var conversion = regexp.MustCompile(`%[-+ #0-9.]*[diouxXeEfgGcsbq%]`)

// printf refuses options, and a format that is not completely known.
func printf(_ walker, args []arg) error {
	if len(args) > 0 && args[0].exact && args[0].text == "--" {
		args = args[1:]
	}
	switch {
	case len(args) == 0 || args[0].flag():
		return errors.New("printf with an option sets a variable")
	case !args[0].exact || strings.Contains(conversion.ReplaceAllString(args[0].text, ""), "%"):
		return errors.New("printf with a format that is not known to be harmless")
	}
	return nil
}

var (
	unary  = set("-a -b -c -d -e -f -g -h -k -p -r -s -t -u -w -x -G -L -N -O -S -n -z")
	binary = set("= == != -eq -ne -lt -le -gt -ge -nt -ot -ef")
)

// test allows the forms of POSIX with one known operator. It refuses an unknown word in the
// operator's place, because the word could expand to -v, which evaluates its operand.
func test(_ walker, args []arg) error {
	for len(args) > 1 && args[0].exact && args[0].text == "!" {
		args = args[1:]
	}
	for _, a := range args {
		if !a.one {
			return errors.New("test with operands that are not known")
		}
	}
	switch {
	case len(args) < 2:
		return nil
	case len(args) == 2 && args[0].exact && unary[args[0].text]:
		return nil
	case len(args) == 3 && args[1].exact && binary[args[1].text]:
		return nil
	}
	return errors.New("test of a form that is not looked into")
}

func bracket(w walker, args []arg) error {
	if len(args) == 0 || !args[len(args)-1].exact || args[len(args)-1].text != "]" {
		return errors.New("[ without ]")
	}
	return test(w, args[:len(args)-1])
}

// read allows the builtin read only if it sets variables that no other command depends on.
func read(_ walker, args []arg) error {
	words, known := exactly(args)
	if !known {
		return errors.New("read into names that are not known")
	}
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		switch words[0] {
		case "-r", "-s", "-rs", "-sr":
			words = words[1:]
		case "-d", "-rd", "-n", "-rn", "-t":
			words = words[min(2, len(words)):]
		case "-a", "-ra":
			words = words[1:]
		default:
			return errors.New("read with an option that is not known to be harmless")
		}
	}
	for _, name := range words {
		if err := settable(name); err != nil {
			return err
		}
	}
	return nil
}

// setOptions allows the options that make a script stop early, trace it, or turn off pattern
// expansion.
func setOptions(_ walker, args []arg) error {
	words, known := exactly(args)
	for i := 0; known && i < len(words); i++ {
		switch {
		case !setFlags.MatchString(words[i]):
			known = false
		case strings.HasSuffix(words[i], "o"):
			i++
			known = i < len(words) && setNames[words[i]]
		}
	}
	if !known || len(words) == 0 {
		return errors.New("set with an option that is not known to be harmless")
	}
	return nil
}

var (
	setFlags = regexp.MustCompile(`^[-+][eufx]*o?$`)
	setNames = set("errexit nounset pipefail xtrace noglob")
)

// digits allows at most one argument, a number.
func digits(_ walker, args []arg) error {
	if len(args) > 1 || len(args) == 1 && (!args[0].exact || !number.MatchString(args[0].text)) {
		return errors.New("a status or count that is not a plain number")
	}
	return nil
}

// commandBuiltin is the builtin command: it runs another command, ignoring shell functions, or only
// says where one is.
func commandBuiltin(w walker, args []arg) error {
	if len(args) > 0 && args[0].exact && (args[0].text == "-v" || args[0].text == "-V") {
		return nil
	}
	return w.inner(args)
}

// inner checks the command that a wrapper runs, and the wrapper's options.
func (w walker) inner(args []arg) error {
	if len(args) > 0 && args[0].flag() {
		return errors.New("a wrapper with an option that is not known to be harmless")
	}
	return w.run(args)
}

var duration = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?[smhd]?$`)

// timeout runs another command for a limited time.
func timeout(w walker, args []arg) error {
	for len(args) > 1 && args[0].exact && (args[0].text == "-k" || args[0].text == "-s") {
		if args[1].flag() || !args[1].exact {
			break
		}
		args = args[2:]
	}
	if len(args) < 2 || !args[0].exact || !duration.MatchString(args[0].text) {
		return errors.New("timeout of a form that is not looked into")
	}
	return w.inner(args[1:])
}
