// Package search holds the builtins that search a folder: Glob by name, Grep by content.
// Both go through the folder in the order of names, and skip what its .gitignore files
// name.
package search

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/glob"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

const (
	maxGlobFiles   = 500  // paths in one answer
	maxGlobPattern = 1000 // bytes
)

// Results are sorted by name, folder by folder. Some agents list the newest files first. In a
// fleet, the modification time of a file only tells when a worker's copy was made, and two
// workers should give the same answer.

// GlobPromise returns the definition of Glob.
func GlobPromise() schemas.Tool {
	return schemas.Tool{
		Name: "Glob",
		Description: "Lists the files of the working folder whose paths match a glob pattern, in name order, one path a line, relative to the working folder. " +
			"* and ? stop at slashes, ** is any number of folders, [a-z] and {a,b} work as in a shell; *.go finds files in the folder itself, **/*.go in all below it too. " +
			"Hidden files are included; .git and what a .gitignore names are left out unless path or the start of the pattern leads into it. " +
			"At most 500 paths; when there are more, the first line says how many. It lists no folders and looks into no file (use Grep).",
		Kind: messages.KindRead,
		InputSchema: json.RawMessage(`{
					"type": "object",
					"properties": {
						"pattern": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "The glob pattern, for example src/**/*.{ts,tsx}. It matches paths relative to path."},
						"path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The folder to look in. Default: the working folder."}
					},
					"required": ["pattern"],
					"additionalProperties": false
				}`),
		TimeoutMS: 10_000,
		MaxOutput: base.MaxOutput,
		Truncate:  schemas.TruncateHead,
	}
}

// NewGlob returns the runner of Glob in a folder.
func NewGlob(root *rootdir.Root) tool.Runner { return globTool{root} }

// globTool is the Glob tool.
type globTool struct{ root *rootdir.Root }

type globArgs struct {
	Pattern string `json:"pattern"`
	Path    string `json:"path"`
}

// globPlan is a Glob call that has been checked.
type globPlan struct {
	start string       // the deepest folder that contains every match
	match glob.Pattern // matches paths relative to the root
	top   bool         // the pattern has no slash, so it matches only files directly in the folder
}

// Check reports a malformed pattern and a missing folder.
func (t globTool) Check(_ context.Context, call tool.Call) error {
	_, err := t.plan(call)
	return err
}

func (t globTool) plan(call tool.Call) (globPlan, error) {
	args, err := base.Arguments[globArgs](call)
	if err != nil {
		return globPlan{}, err
	}
	if len(args.Pattern) > maxGlobPattern {
		return globPlan{}, base.Refuse(base.CodeInvalidPattern, "the pattern is %s bytes long (limit %s)", base.Thousands(len(args.Pattern)), base.Thousands(maxGlobPattern))
	}
	dir, err := startFolder(t.root, args.Path)
	if err != nil {
		return globPlan{}, err
	}
	pattern := strings.TrimPrefix(args.Pattern, "./")
	switch {
	case path.IsAbs(pattern) || filepath.IsAbs(pattern): // permission rules see only the argument path
		return globPlan{}, base.Refuse(base.CodeInvalidPattern, "the pattern %s is absolute. Put the folder into path, and let the pattern start there", rootdir.Quoted(args.Pattern))
	case rootdir.HasDotDot(pattern) || rootdir.Disguised(pattern):
		return globPlan{}, base.Refuse(base.CodePathOutsideRoot, `the pattern %s has a ".." in it. Name the folder to look in with path`, rootdir.Quoted(args.Pattern))
	case strings.ContainsRune(pattern, 0) || pattern == "":
		return globPlan{}, base.Refuse(base.CodeInvalidPattern, "the pattern %s matches no path", rootdir.Quoted(args.Pattern))
	}
	match, err := glob.Compile(pattern)
	if err == nil && dir != "." {
		match, err = glob.Compile(glob.Escape(dir) + "/" + pattern)
	}
	if err != nil {
		return globPlan{}, base.Refuse(base.CodeInvalidPattern, "the pattern %s: %v", rootdir.Quoted(args.Pattern), err)
	}
	literal, _ := glob.Split(pattern)
	start := path.Join(dir, literal)
	if _, err := t.root.Stat(start); err != nil && !rootdir.Missing(err) {
		return globPlan{}, t.root.Failure(literal, err)
	}
	return globPlan{start, match, !strings.Contains(pattern, "/")}, nil
}

// Run lists the matching files.
func (t globTool) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	plan, err := t.plan(call)
	if err != nil {
		return tool.Output{}, err
	}
	var files []string
	var far headway
	w := walker{root: t.root, links: true, levels: plan.match.Levels, visit: func(file string) error {
		far.looked.Add(1)
		if plan.match.MatchString(file) && far.found.Add(1) <= maxGlobFiles {
			files = append(files, file)
		}
		return nil
	}}
	defer far.tell(call, "file")()
	if err := w.walk(ctx, plan.start); err != nil {
		return tool.Output{}, err
	}
	var notes []string
	switch found := int(far.found.Load()); {
	case found == 0:
		notes = append(notes, "No files match.")
		if plan.top {
			notes = append(notes, "The pattern looks in one folder only; start it with **/ to look in all below.")
		}
	case found > len(files):
		notes = append(notes, fmt.Sprintf("The first %s of %s. Narrow the pattern to see the others.", base.Thousands(len(files)), base.Plural(found, "file")))
	}
	if len(files) == 0 && w.ignored > 0 {
		notes = append(notes, base.Plural(w.ignored, "path")+" left out because of .gitignore.")
	}
	if w.unreadable > 0 {
		notes = append(notes, base.Plural(w.unreadable, "folder")+" could not be read.")
	}
	return tool.Text(answer(notes, files)), nil
}

// answer joins the lines. The notes come first, because a long answer is cut at its end.
func answer(notes, lines []string) string {
	if len(notes) > 0 {
		lines = append([]string{"[" + strings.Join(notes, " ") + "]"}, lines...)
	}
	return strings.Join(lines, "\n") + "\n"
}

// startFolder returns the folder in which a search begins: the named one, or the root.
func startFolder(root *rootdir.Root, name string) (string, error) {
	if name == "" {
		return ".", nil
	}
	rel, err := root.Resolve(name)
	if err != nil {
		return "", err
	}
	info, err := root.Stat(rel)
	switch {
	case err != nil:
		return "", root.Failure(name, err)
	case !info.IsDir():
		return "", base.Refuse(base.CodeNotAFolder, "%s is not a folder", rootdir.Quoted(name))
	}
	return rel, nil
}
