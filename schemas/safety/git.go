package safety

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Options shared by many subcommands of git.
const (
	gitFormat = " format pretty oneline abbrev-commit no-abbrev-commit abbrev date relative-date color no-color"
	gitDiff   = ` stat numstat shortstat summary name-only name-status patch no-patch raw unified word-diff word-diff-regex color-words
		cached staged merge-base ignore-all-space ignore-space-change ignore-blank-lines ignore-space-at-eol minimal patience histogram
		diff-algorithm diff-filter find-renames find-copies no-renames follow full-index binary exit-code quiet check relative text
		function-context inter-hunk-context no-ext-diff no-textconv no-prefix submodule ignore-submodules no-index dirstat compact-summary
		pickaxe-all pickaxe-regex`
	gitLog = gitFormat + gitDiff + ` all branches tags remotes graph decorate no-decorate reverse merges no-merges first-parent max-count skip
		since until after before author committer grep all-match invert-grep regexp-ignore-case extended-regexp fixed-strings perl-regexp
		topo-order date-order author-date-order full-history simplify-by-decoration ancestry-path left-right cherry-pick cherry-mark
		left-only right-only cherry walk-reflogs no-walk stdin source log-size count not boundary parents children numbered email
		show-pulls dense sparse`
	gitRefs = " sort format contains no-contains merged no-merged points-at count color no-color ignore-case column no-column"
)

// gitCommands lists the subcommands that may be harmless, with their options. It never lists
// options that run a program (--ext-diff, --textconv, -O of grep, --upload-pack, --show-signature)
// or write (--output).
var gitCommands = map[string]policy{
	"status":        {short: "sbuvz", long: strings.Fields("short branch porcelain long untracked-files ignored show-stash ahead-behind no-ahead-behind no-renames find-renames ignore-submodules verbose column no-column null")},
	"log":           {short: gitLetters, valued: "nSGLU", long: strings.Fields(gitLog)},
	"show":          {short: gitLetters, valued: "nSGLU", long: strings.Fields(gitLog)},
	"diff":          {short: gitLetters, valued: "SGU", long: strings.Fields(gitDiff + gitFormat)},
	"diff-tree":     {short: gitLetters, valued: "SGU", long: strings.Fields(gitDiff + gitFormat + " root no-commit-id always stdin merge-base")},
	"rev-list":      {short: gitLetters, valued: "n", long: strings.Fields(gitLog + " objects disk-usage")},
	"shortlog":      {short: gitLetters + "n", long: strings.Fields("numbered summary email group all no-merges since until")},
	"reflog":        {short: gitLetters, valued: "n", long: strings.Fields(gitLog), check: gitFirst("", "show")},
	"blame":         {short: "bcefklnpstwCM", valued: "L", long: strings.Fields("root show-stats porcelain line-porcelain incremental date show-name show-number show-email abbrev ignore-rev color-lines color-by-age")},
	"ls-files":      {short: "cdmosuktvz", valued: "x", long: strings.Fields("cached deleted modified others ignored stage unmerged killed directory no-empty-directory eol full-name error-unmatch exclude exclude-standard abbrev deduplicate recurse-submodules")},
	"ls-tree":       {short: "drtlz", long: strings.Fields("long name-only name-status object-only full-name full-tree abbrev")},
	"cat-file":      {short: "tsep", long: strings.Fields("batch batch-check batch-all-objects buffer follow-symlinks unordered allow-unknown-type")},
	"rev-parse":     {short: "q", long: strings.Fields("abbrev-ref short verify quiet symbolic symbolic-full-name all branches tags remotes show-toplevel show-prefix show-cdup show-superproject-working-tree git-dir absolute-git-dir git-common-dir is-inside-work-tree is-inside-git-dir is-bare-repository is-shallow-repository show-object-format local-env-vars sq")},
	"merge-base":    {short: "a", long: strings.Fields("all octopus independent is-ancestor fork-point")},
	"name-rev":      {long: strings.Fields("tags refs all name-only always no-undefined")},
	"describe":      {long: strings.Fields("all tags always contains abbrev candidates exact-match long match exclude first-parent")},
	"show-ref":      {short: "dsq", long: strings.Fields("head heads branches tags dereference hash verify abbrev quiet")},
	"for-each-ref":  {long: strings.Fields(gitRefs)},
	"count-objects": {short: "vH", long: strings.Fields("verbose human-readable")},
	"check-ignore":  {short: "qvzn", long: strings.Fields("quiet verbose stdin non-matching no-index")},
	"grep": {short: "0123456789aceFGEhHiIlLnoPpqrvwWz", valued: "ABCefm", long: strings.Fields(
		"cached no-index untracked recursive text ignore-case word-regexp invert-match full-name extended-regexp basic-regexp perl-regexp fixed-strings line-number column files-with-matches name-only files-without-match null only-matching count color no-color break heading show-function function-context context after-context before-context max-depth max-count threads and or not all-match quiet exclude-standard")},
	"branch":   {short: "arvi", long: strings.Fields("list all remotes show-current verbose abbrev no-abbrev" + gitRefs), check: gitListing("--list")},
	"tag":      {short: "lni0123456789", long: strings.Fields("list" + gitRefs), check: gitListing("--list", "-l")},
	"stash":    {short: gitLetters, valued: "n", long: strings.Fields(gitLog), check: gitFirst("list", "show")},
	"remote":   {short: "v", long: strings.Fields("verbose all push"), check: gitRemote},
	"worktree": {short: "vz", long: strings.Fields("porcelain verbose"), check: gitFirst("list")},
	"config":   {short: "lz", long: strings.Fields("get get-all get-regexp list global local system worktree show-origin show-scope name-only null type default bool int path includes no-includes"), check: gitConfig},
}

// gitLetters are the option letters of log and diff that take no value, or take it only from
// the same word.
const gitLetters = "0123456789pusciaberwzRqgmtMCDBW"

// gitSignature matches a format placeholder that makes git run gpg.
var gitSignature = regexp.MustCompile(`%[-+ ]?G`)

// git checks the options before the subcommand, and then the options of the subcommand.
func git(w walker, args []arg) error {
	for len(args) > 0 && args[0].flag() {
		text := args[0].text
		switch {
		case !args[0].exact:
			return errors.New("git with an option that is not known to be harmless")
		case text == "--version" && len(args) == 1:
			return nil
		case text == "--no-pager" || text == "-P" || text == "--no-optional-locks" || text == "--literal-pathspecs" || text == "--no-replace-objects":
			args = args[1:]
		case text == "-C" && len(args) > 1 && args[1].one && !args[1].flag():
			args = args[2:]
		default:
			return errors.New("git with an option in front that is not known to be harmless")
		}
	}
	if len(args) == 0 || !args[0].exact {
		return errors.New("git with a command that is not known")
	}
	name := args[0].text
	p, known := gitCommands[name]
	if !known {
		if !safeName.MatchString(name) {
			return errors.New("git with a command that is not known")
		}
		return fmt.Errorf("git %s can change things", name)
	}
	for _, a := range args[1:] {
		// A format can ask for a signature, and git runs a program to check one.
		if gitSignature.MatchString(a.text) || strings.Contains(a.text, "signature") || !a.exact && strings.HasPrefix(a.text, "--") {
			return fmt.Errorf("git %s with a format that is not known to be harmless", name)
		}
	}
	return p.allows(w, "git "+name, args[1:])
}

// gitOperands returns the words that are not options. known is false if the text of a word is
// unknown.
func gitOperands(args []arg) (operands []string, known bool) {
	words, known := exactly(args)
	for _, word := range words {
		if !strings.HasPrefix(word, "-") {
			operands = append(operands, word)
		}
	}
	return operands, known
}

// gitFirst allows only the given words after the subcommand. "" stands for a missing word.
func gitFirst(allowed ...string) func(walker, []arg) error {
	return func(_ walker, args []arg) error {
		first := ""
		if len(args) > 0 {
			if !args[0].exact {
				return errors.New("git with a command that is not known")
			}
			first = args[0].text
		}
		if !slices.Contains(allowed, first) {
			return errors.New("git with a command that can change things")
		}
		return nil
	}
}

// gitListing allows operands only after an option that makes them patterns, because otherwise an
// operand names a branch or tag to create. The option must come first, so that no other option can
// take it as a value.
func gitListing(listing ...string) func(walker, []arg) error {
	return func(_ walker, args []arg) error {
		if len(args) > 0 && args[0].exact && slices.Contains(listing, args[0].text) {
			return nil
		}
		for _, a := range args {
			if !a.flag() {
				return errors.New("git with a name can make a branch or a tag")
			}
		}
		return nil
	}
}

func gitRemote(_ walker, args []arg) error {
	operands, known := gitOperands(args)
	if !known || len(operands) > 0 && args[0].text != "get-url" {
		return errors.New("git remote can change things")
	}
	return nil
}

// gitConfig allows git config only with an option that reads, because without such an option
// git sets a key to a value. Only options without a value may come before that option.
func gitConfig(_ walker, args []arg) error {
	words, known := exactly(args)
	for known && len(words) > 0 && gitConfigScope[words[0]] {
		words = words[1:]
	}
	if !known || len(words) == 0 || !gitConfigReads[words[0]] {
		return errors.New("git config can change the configuration")
	}
	return nil
}

var (
	gitConfigScope = set("--global --local --system --worktree --show-origin --show-scope --null -z --name-only --includes --no-includes")
	gitConfigReads = set("--get --get-all --get-regexp --list -l")
)
