package files

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/filetext"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// Limits of Edit's answer.
const (
	snippetAround = 3   // lines shown before and after a change
	snippetLines  = 40  // lines shown of a change
	snippetWidth  = 500 // bytes shown of a line
	listedMatches = 10  // line numbers listed for an ambiguous edit
)

// EditPromise returns the definition of Edit.
func EditPromise() schemas.Tool {
	return schemas.Tool{
		Name: "Edit",
		Description: "Replaces one exact passage of a text file of the working folder and shows the lines around the change. " +
			"old_string must be in the file exactly once, white space and indentation included, without the line numbers that Read puts in front; " +
			"add surrounding lines to make it unique, or set replace_all to replace every occurrence. " +
			"The file's line ends (LF or CRLF) and permissions stay. Files up to 10 MB. It creates no files and takes no patterns (use Write for a new file).",
		Kind:    messages.KindWrite,
		OnCrash: messages.OnCrashOnce,
		InputSchema: json.RawMessage(`{
					"type": "object",
					"properties": {
						"file_path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file, relative to the working folder, or absolute inside it."},
						"old_string": {"type": "string", "minLength": 1, "maxLength": 10485760, "description": "The passage to replace, exactly as it is in the file."},
						"new_string": {"type": "string", "maxLength": 10485760, "description": "What takes its place. Empty: the passage is deleted."},
						"replace_all": {"type": "boolean", "description": "Replace every occurrence. Default false."}
					},
					"required": ["file_path", "old_string", "new_string"],
					"additionalProperties": false
				}`),
		MaxOutput: base.MaxOutput,
		Truncate:  schemas.TruncateHead,
	}
}

// NewEdit returns the runner of Edit in a folder.
func NewEdit(root *rootdir.Root) tool.Runner { return editor{root} }

// editor is the Edit tool.
type editor struct{ root *rootdir.Root }

type editArgs struct {
	FilePath   string  `json:"file_path"`
	OldString  string  `json:"old_string"`
	NewString  *string `json:"new_string"`
	ReplaceAll bool    `json:"replace_all"`
}

// editPlan is an edit that is ready to be written.
type editPlan struct {
	name, rel string
	edit
	was fs.FileInfo // the file from which the edit was made, to notice later changes
}

// Check computes the edit and discards it.
func (t editor) Check(_ context.Context, call tool.Call) error {
	_, err := t.plan(call)
	return err
}

func (t editor) plan(call tool.Call) (editPlan, error) {
	args, err := base.Arguments[editArgs](call)
	if err != nil {
		return editPlan{}, err
	}
	if args.OldString == "" || args.NewString == nil {
		return editPlan{}, base.Refuse(messages.CodeInvalidArguments, "old_string and new_string are needed, and old_string may not be empty (use Write for a new file)")
	}
	rel, err := t.root.Resolve(args.FilePath)
	if err != nil {
		return editPlan{}, err
	}
	f, info, err := t.root.OpenFile(args.FilePath, rel)
	if err != nil {
		return editPlan{}, err
	}
	defer f.Close()
	if err := t.root.Writable(args.FilePath, rel); err != nil {
		return editPlan{}, err
	}
	text, large, err := filetext.ReadAll(f, info.Size(), maxWrite)
	switch {
	case err != nil:
		return editPlan{}, t.root.Failure(args.FilePath, err)
	case large:
		return editPlan{}, base.Refuse(messages.CodeTooLarge, "%s has %s bytes (limit %s)", rootdir.Quoted(args.FilePath), base.Thousands(info.Size()), base.Thousands(maxWrite))
	}
	e, err := replaceText(string(text), args.OldString, *args.NewString, args.ReplaceAll)
	if err == nil && e.size() > maxWrite {
		err = tooLargeText(e.size())
	}
	return editPlan{args.FilePath, rel, e, info}, err
}

// Run computes the edit and writes it. It holds the worker's mutex for the read and the
// write. If another process changes the file in between, the edit is refused.
func (t editor) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	t.root.Lock()
	defer t.root.Unlock()
	if err := context.Cause(ctx); err != nil {
		return tool.Output{}, err
	}
	plan, err := t.plan(call)
	if err != nil {
		return tool.Output{}, err
	}
	text := plan.apply()
	if _, err := t.root.Replace(plan.name, plan.rel, []byte(text), plan.was); err != nil {
		return tool.Output{}, err
	}
	return tool.Text(fmt.Sprintf("Edited %s: %s. The file now reads:\n%s", plan.rel, base.Plural(len(plan.at), "replacement"), plan.snippet(text))), nil
}

// edit replaces old by new at some places of a text.
type edit struct {
	text, old, new string
	at             []int // byte positions of old in text, ascending
}

// replaceText decides what to replace. If every line of the text ends in CRLF, old and
// fresh may have either line end, and the edited text has CRLF.
func replaceText(text, old, fresh string, all bool) (edit, error) {
	if crlfOnly(text) {
		old, fresh = toCRLF(old), toCRLF(fresh)
	}
	if old == fresh {
		return edit{}, base.Refuse(base.CodeNoChange, "old_string and new_string are the same: nothing would change")
	}
	e := edit{text: text, old: old, new: fresh}
	for from := 0; ; {
		i := strings.Index(text[from:], old)
		if i < 0 {
			break
		}
		e.at = append(e.at, from+i)
		from += i + len(old)
	}
	switch {
	case len(e.at) == 0:
		return e, base.Refuse(base.CodeNoMatch, "old_string is not in the file. %s", hint(text, old))
	case all:
		return e, nil
	case len(e.at) > 1:
		return e, base.Refuse(base.CodeAmbiguous, "old_string is in the file %d times, at lines %s. Add surrounding lines to make it unique, or set replace_all", len(e.at), e.lines())
	case strings.LastIndex(text, old) != e.at[0]: // matches overlap, such as "aa" in "aaa"
		return e, base.Refuse(base.CodeAmbiguous, "old_string is in the file at two places that overlap, from line %s on. Add surrounding lines to make it unique", e.lines())
	}
	return e, nil
}

// size returns the length of the edited text, in bytes.
func (e edit) size() int { return len(e.text) + len(e.at)*(len(e.new)-len(e.old)) }

// apply returns the edited text.
func (e edit) apply() string {
	var out strings.Builder
	out.Grow(e.size())
	from := 0
	for _, at := range e.at {
		out.WriteString(e.text[from:at])
		out.WriteString(e.new)
		from = at + len(e.old)
	}
	out.WriteString(e.text[from:])
	return out.String()
}

// lines returns the line numbers of the first matches.
func (e edit) lines() string {
	var numbers []string
	for _, at := range e.at[:min(len(e.at), listedMatches)] {
		numbers = append(numbers, fmt.Sprint(1+strings.Count(e.text[:at], "\n")))
	}
	if len(e.at) > listedMatches {
		numbers = append(numbers, "...")
	}
	return strings.Join(numbers, ", ")
}

// snippet returns the lines around the first change in the edited text. They are numbered
// as in Read.
func (e edit) snippet(text string) string {
	lines := filetext.SplitLines([]byte(text))
	first := strings.Count(text[:e.at[0]], "\n")
	last := first + strings.Count(e.new, "\n")
	from := max(0, first-snippetAround)
	to := min(len(lines), last+snippetAround+1, from+snippetLines)
	var out strings.Builder
	for i := from; i < to; i++ {
		line := []byte(text[lines[i].From:lines[i].To])
		cut := line[:filetext.RuneStart(line, snippetWidth)]
		writeLine(&out, i+1, cut, len(line)-len(cut))
	}
	if len(lines) == 0 {
		return "[nothing: it is empty]\n"
	}
	return out.String()
}

// crlfOnly reports whether the text has lines and all of them end in CRLF.
func crlfOnly(text string) bool {
	n := strings.Count(text, "\n")
	return n > 0 && strings.Count(text, "\r\n") == n
}

func toCRLF(text string) string { return strings.ReplaceAll(toLF(text), "\n", "\r\n") }

func toLF(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

var numbered = regexp.MustCompile(`(?m)^ *\d+\t`)

// hint returns the most likely reason why the passage old is not in the text, and where to
// look.
func hint(text, old string) string {
	lines := strings.Split(toLF(text), "\n")
	if i := strings.Index(toLF(text), toLF(old)); i >= 0 {
		return fmt.Sprintf("A passage that differs only in its line ends (CRLF or LF) starts at line %d: the file has both kinds.", 1+strings.Count(toLF(text)[:i], "\n"))
	}
	bare := numbered.ReplaceAllString(old, "")
	if bare != old && strings.Contains(toLF(text), toLF(bare)) {
		return "It would be without the line numbers that Read puts in front of each line."
	}
	if i := looseMatch(lines, old, func(s string) string { return strings.Join(strings.Fields(s), " ") }); i >= 0 {
		return fmt.Sprintf("A passage that differs only in white space starts at line %d. Copy it exactly, tabs and spaces included.", i+1)
	}
	if i := looseMatch(lines, old, func(s string) string { return strings.ToLower(strings.TrimSpace(s)) }); i >= 0 {
		return fmt.Sprintf("A passage that differs only in upper and lower case starts at line %d.", i+1)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(toLF(old)), "\n")
	for i, line := range lines {
		if first = strings.TrimSpace(first); first != "" && strings.Contains(line, first) {
			return fmt.Sprintf("Its first line is at line %d, but what follows differs. Read the file again from there.", i+1)
		}
	}
	return "Not even its first line is in the file. Read the file again: it may have changed."
}

// looseMatch looks for a passage, old, in lines. It applies the function plain to both before
// it compares them. It returns the index of the first line of the match, or -1. It ignores
// blank lines around the passage. The first and last line of the passage may be parts of
// lines.
func looseMatch(lines []string, old string, plain func(string) string) int {
	var want []string
	for line := range strings.SplitSeq(strings.TrimSpace(toLF(old)), "\n") {
		want = append(want, plain(line))
	}
	if want[0] == "" {
		return -1
	}
	have := make([]string, len(lines))
	for i, line := range lines {
		have[i] = plain(line)
	}
	for i := 0; i+len(want) <= len(have); i++ {
		if looseAt(have[i:i+len(want)], want) {
			return i
		}
	}
	return -1
}

func looseAt(have, want []string) bool {
	last := len(want) - 1
	if last == 0 {
		return strings.Contains(have[0], want[0])
	}
	for i := 1; i < last; i++ {
		if have[i] != want[i] {
			return false
		}
	}
	return strings.HasSuffix(have[0], want[0]) && strings.HasPrefix(have[last], want[last])
}
