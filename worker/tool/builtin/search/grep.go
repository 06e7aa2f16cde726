package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/filetext"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/glob"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// Limits of Grep.
const (
	maxGrepPattern = 1000     // bytes
	maxGrepFile    = 10 << 20 // bytes of a file that is searched
	grepHeadLimit  = 250      // lines or files, if the call has no head_limit
	maxHeadLimit   = 10_000
	maxContext     = 100
	grepBatch      = 64 // files that are searched before their results are sorted
	grepParallel   = 4  // files searched at the same time
)

// GrepPromise returns the definition of Grep.
func GrepPromise() schemas.Tool {
	return schemas.Tool{
		Name: "Grep",
		Description: "Searches the files of the working folder with a regular expression (RE2 syntax: no backreferences, no look-around) and returns, in name order, " +
			"the paths of the files that match (the default), or with output_mode content the lines as path:line:text, or with count the number of matching lines of each file. " +
			"Hidden files are searched; .git, what a .gitignore names (unless path leads into it), binary files and files over 10 MB are not, and the answer says how many were skipped. " +
			"The first 250 lines or paths are returned unless head_limit says otherwise. It finds text in files, not files by name (use Glob).",
		Kind: messages.KindRead,
		InputSchema: json.RawMessage(`{
					"type": "object",
					"properties": {
						"pattern": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "The regular expression. It is matched line by line unless multiline is set."},
						"path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file or folder to search. Default: the working folder."},
						"glob": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "Only files that match this glob. Without a slash it is about the name (*.go), with one about the path from path on (src/**/*.go). A ! in front leaves those files out."},
						"output_mode": {"enum": ["files_with_matches", "content", "count"], "description": "Default files_with_matches."},
						"case_insensitive": {"type": "boolean", "description": "Letters match in both cases. Default false."},
						"before": {"type": "integer", "minimum": 0, "maximum": 100, "description": "Lines to show before each match. Only with output_mode content."},
						"after": {"type": "integer", "minimum": 0, "maximum": 100, "description": "Lines to show after each match. Only with output_mode content."},
						"context": {"type": "integer", "minimum": 0, "maximum": 100, "description": "Lines to show before and after each match, where before or after is not given."},
						"head_limit": {"type": "integer", "minimum": 1, "maximum": 10000, "description": "How many lines or paths to return at most. Default 250."},
						"multiline": {"type": "boolean", "description": "Let a match span lines; . then matches line ends too. Default false."}
					},
					"required": ["pattern"],
					"additionalProperties": false
				}`),
		TimeoutMS: 20_000,
		MaxOutput: base.MaxOutput,
		Truncate:  schemas.TruncateHead,
	}
}

// NewGrep returns the runner of Grep in a folder.
func NewGrep(root *rootdir.Root) tool.Runner { return grepTool{root} }

// grepTool is the Grep tool.
type grepTool struct{ root *rootdir.Root }

type grepArgs struct {
	Pattern         string      `json:"pattern"`
	Path            string      `json:"path"`
	Glob            string      `json:"glob"`
	OutputMode      string      `json:"output_mode"`
	CaseInsensitive bool        `json:"case_insensitive"`
	Before          *base.Whole `json:"before"`
	After           *base.Whole `json:"after"`
	Context         *base.Whole `json:"context"`
	HeadLimit       *base.Whole `json:"head_limit"`
	Multiline       bool        `json:"multiline"`
}

// grepPlan is a Grep call that has been checked.
type grepPlan struct {
	search searcher
	start  string // a file or a folder
	file   bool   // start is a file
	filter func(file string) bool
	limit  int
}

// Check reports a malformed expression and a missing path.
func (t grepTool) Check(_ context.Context, call tool.Call) error {
	_, err := t.plan(call)
	return err
}

func (t grepTool) plan(call tool.Call) (grepPlan, error) {
	args, err := base.Arguments[grepArgs](call)
	if err != nil {
		return grepPlan{}, err
	}
	around := args.Context.Or(0)
	plan := grepPlan{start: ".", limit: args.HeadLimit.Or(grepHeadLimit), search: searcher{
		mode: args.OutputMode, multiline: args.Multiline, before: args.Before.Or(around), after: args.After.Or(around),
	}}
	switch s := plan.search; {
	case plan.limit < 1 || plan.limit > maxHeadLimit || min(s.before, s.after) < 0 || max(s.before, s.after) > maxContext:
		return plan, base.Refuse(messages.CodeInvalidArguments, "head_limit is 1 to %s, context 0 to %d lines", base.Thousands(maxHeadLimit), maxContext)
	case s.mode != "" && s.mode != modeFiles && s.mode != modeContent && s.mode != modeCount:
		return plan, base.Refuse(messages.CodeInvalidArguments, "output_mode is %s, %s or %s", modeFiles, modeContent, modeCount)
	}
	if plan.search.expression, err = newExpression(args.Pattern, args.CaseInsensitive, args.Multiline); err != nil {
		return plan, err
	}
	if args.Path != "" {
		if plan.start, err = t.root.Resolve(args.Path); err != nil {
			return plan, err
		}
		info, err := t.root.Stat(plan.start)
		if err != nil {
			return plan, t.root.Failure(args.Path, err)
		}
		if plan.file = !info.IsDir(); plan.file {
			if err := rootdir.WantFile(args.Path, info); err != nil {
				return plan, err
			}
		}
	}
	plan.filter, err = grepFilter(args.Glob, plan.start)
	return plan, err
}

// grepFilter turns the glob argument into a function of a path from the root.
func grepFilter(wanted, start string) (func(string) bool, error) {
	if wanted == "" {
		return func(string) bool { return true }, nil
	}
	pattern, negated := strings.CutPrefix(wanted, "!")
	if strings.Contains(pattern, "/") {
		pattern = strings.TrimPrefix(strings.TrimPrefix(pattern, "./"), "/")
	} else {
		pattern = "**/" + pattern
	}
	match, err := glob.Compile(pattern)
	if err != nil {
		return nil, base.Refuse(base.CodeInvalidPattern, "glob %s: %v", rootdir.Quoted(wanted), err)
	}
	base := ""
	if start != "." {
		base = start + "/"
	}
	return func(file string) bool {
		return match.MatchString(strings.TrimPrefix(file, base)) != negated
	}, nil
}

// errEnough ends a walk when enough was found.
var errEnough = errors.New("enough")

// Run searches batch by batch. The files of a batch are searched in parallel. Their results
// are in the order of the walk.
func (t grepTool) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	plan, err := t.plan(call)
	if err != nil {
		return tool.Output{}, err
	}
	var tally grepTally
	defer tally.tell(call, plan.search.unit())()
	if plan.file {
		err = t.batch(ctx, plan, []string{plan.start}, &tally)
		if err == nil && tally.err != nil {
			err = t.root.Failure(plan.start, tally.err)
		}
		if err != nil && !errors.Is(err, errEnough) {
			return tool.Output{}, err
		}
		return tool.Text(tally.text(plan, 0, 0)), nil
	}
	var files []string
	w := walker{root: t.root, visit: func(file string) error {
		if !plan.filter(file) {
			tally.looked.Add(1)
			return nil
		}
		if files = append(files, file); len(files) < grepBatch {
			return nil
		}
		err := t.batch(ctx, plan, files, &tally)
		files = files[:0]
		return err
	}}
	err = w.walk(ctx, plan.start)
	if err == nil {
		err = t.batch(ctx, plan, files, &tally)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return tool.Output{}, err
	}
	return tool.Text(tally.text(plan, w.ignored, w.unreadable)), nil
}

// batch searches the files and adds their results to the tally. It returns errEnough when
// the tally is full.
func (t grepTool) batch(ctx context.Context, plan grepPlan, files []string, tally *grepTally) error {
	found := make([]finding, len(files))
	var wg sync.WaitGroup
	for first := range min(grepParallel, len(files)) {
		wg.Go(func() {
			for i := first; i < len(files); i += grepParallel {
				found[i] = t.searchFile(ctx, plan, files[i], plan.limit-len(tally.lines)+1)
				tally.looked.Add(1)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for _, f := range found {
		if tally.add(f, plan.limit); tally.more {
			return errEnough
		}
	}
	return nil
}

// searchFile searches one file for at most limit lines of output.
func (t grepTool) searchFile(ctx context.Context, plan grepPlan, file string, limit int) finding {
	f, info, err := t.root.OpenFile(file, file)
	if err != nil {
		return finding{err: err}
	}
	defer f.Close()
	if info.Size() > maxGrepFile {
		return finding{large: true}
	}
	text, large, err := filetext.ReadAll(f, info.Size(), maxGrepFile)
	switch {
	case err != nil:
		return finding{err: err}
	case large:
		return finding{large: true}
	case filetext.IsBinary(text):
		return finding{binary: true}
	}
	lines, err := plan.search.file(ctx, file, text, limit)
	return finding{lines: lines, err: err}
}

// finding is the result for one file.
type finding struct {
	lines         []string
	binary, large bool
	err           error
}

// grepTally is what was found so far.
type grepTally struct {
	headway
	lines                     []string
	more                      bool // there was more than the limit
	binary, large, unreadable int
	err                       error // the last error of a file that could not be read
}

func (t *grepTally) add(f finding, limit int) {
	switch {
	case f.err != nil:
		t.unreadable++
		t.err = f.err
	case f.binary:
		t.binary++
	case f.large:
		t.large++
	}
	room := limit - len(t.lines)
	if t.more = len(f.lines) > room; t.more {
		f.lines = f.lines[:room]
	}
	t.lines = append(t.lines, f.lines...)
	t.found.Store(int64(len(t.lines)))
}

// text returns the answer for the model, with notes about what it leaves out.
func (t *grepTally) text(plan grepPlan, ignored, folders int) string {
	var notes []string
	if len(t.lines) == 0 {
		notes = append(notes, "No matches.")
	}
	if t.more {
		notes = append(notes, fmt.Sprintf("The first %s; there are more. Narrow the search or raise head_limit.", base.Plural(plan.limit, plan.search.unit())))
	}
	if len(t.lines) > 0 {
		ignored = 0 // it matters only if nothing was found
	}
	var skipped []string
	for _, s := range []struct {
		n          int
		thing, why string
	}{
		{t.binary, "binary file", ""}, {t.large, "file", " over 10 MB"}, {t.unreadable, "unreadable file", ""},
		{folders, "unreadable folder", ""}, {ignored, "path", " in .gitignore"},
	} {
		if s.n > 0 {
			skipped = append(skipped, base.Plural(s.n, s.thing)+s.why)
		}
	}
	if len(skipped) > 0 {
		notes = append(notes, "Skipped: "+strings.Join(skipped, ", ")+".")
	}
	return answer(notes, t.lines)
}
