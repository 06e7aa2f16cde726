// Package resultread is the tool result_read. With it a model reads, in pieces, an output
// that was cut. It can read only outputs of the session that calls it.
package resultread

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Name is the name of the tool.
const Name = "result_read"

// Pool is the pool of the tool. The tool has a pool of its own, because the workers of a pool
// with max_in_flight must all serve the same tools.
const Pool = "results"

// maxPage is how many characters one call returns. Together with the line after them they
// fit into [schemas.DefaultMaxOutput], so an answer of this tool is never cut.
const maxPage = 9_000

// maxLine is how many characters of a line that matches are shown.
const maxLine = 500

const description = `Reads the whole of a tool result that was cut: "[truncated - ...; ref REF]" in a text, {"truncated": true, "ref": REF} in place of JSON. It knows the results of this conversation only, for about a day. Without grep it returns a range of characters; with grep the lines that match, each with its number. A JSON pointer narrows a JSON result first. The last line of the answer says what was shown, and with which offset to go on.`

const inputSchema = `{
	"type": "object",
	"properties": {
		"ref": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "The ref of the result that was cut."},
		"pointer": {"type": "string", "maxLength": 1000, "pattern": "^(/.*)?$", "description": "JSON pointer into a JSON result, such as /items/3/name."},
		"grep": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "Regular expression (RE2). Only lines that match are returned. JSON is indented first."},
		"offset": {"type": "integer", "minimum": 0, "description": "Where to begin, in characters of what the other arguments select. Default 0."},
		"limit": {"type": "integer", "minimum": 1, "maximum": 9000, "description": "How many characters. Default 9000."}
	},
	"required": ["ref"],
	"additionalProperties": false
}`

// Promise returns the definition of the tool. It is the same on every worker.
func Promise() schemas.Tool {
	return schemas.Tool{
		Name: Name, Description: description, Kind: messages.KindRead, InputSchema: json.RawMessage(inputSchema),
		TimeoutMS: 20_000, Pool: Pool,
	}
}

// Wanted reports whether to serve this tool: one of the tools has results that the model
// may read with it, and no tool has its name.
func Wanted(tools []schemas.Tool) bool {
	named := func(t schemas.Tool) bool { return t.Name == Name }
	readable := func(t schemas.Tool) bool { return t.Results == schemas.ResultsReadable }
	return slices.ContainsFunc(tools, readable) && !slices.ContainsFunc(tools, named)
}

// ErrUnknown says that a session has no such result.
var ErrUnknown = errors.New("unknown result")

// Store reads the output with the name ref in the session of a call. The error is
// ErrUnknown if there is none.
type Store func(ctx context.Context, call tool.Call, ref string) (messages.Outcome, error)

// New returns the runner of the tool.
func New(store Store) tool.Runner {
	return tool.Func(func(ctx context.Context, call tool.Call) (tool.Output, error) { return store.read(ctx, call) })
}

type arguments struct {
	Ref, Pointer, Grep string
	Offset, Limit      int
}

func (s Store) read(ctx context.Context, call tool.Call) (tool.Output, error) {
	args := arguments{Limit: maxPage}
	if err := json.Unmarshal(call.Input, &args); err != nil {
		return tool.Output{}, refuse("%v", err)
	}
	var matches *regexp.Regexp
	if args.Grep != "" {
		var err error
		if matches, err = regexp.Compile(args.Grep); err != nil {
			return tool.Output{}, refuse("grep: %v", err)
		}
	}
	whole, err := s(ctx, call, args.Ref)
	switch {
	case errors.Is(err, ErrUnknown):
		return tool.Output{}, &messages.Error{Code: "unknown_ref", Message: fmt.Sprintf(
			"This conversation has no result %s, or has it no more.", args.Ref)}
	case err != nil:
		return tool.Output{}, &messages.Error{Code: "unavailable", Message: "The result cannot be read now.", Retryable: true}
	}
	text, err := selected(whole, args.Pointer, matches != nil)
	if err != nil {
		return tool.Output{}, err
	}
	found := ""
	if matches != nil {
		var lines int
		if text, lines, err = grep(ctx, text, matches); err != nil {
			return tool.Output{}, err
		}
		found = fmt.Sprintf("%d lines match; ", lines)
	}
	return page(text, found, args)
}

// selected returns the text of an outcome, or of the value at a JSON pointer in it.
func selected(whole messages.Outcome, pointer string, indent bool) (string, error) {
	value := whole.Output
	if whole.Content != nil {
		var texts []string
		for _, b := range whole.Content {
			switch {
			case b.Resource != nil && b.Resource.Text != "":
				texts = append(texts, b.Resource.Text)
			case b.Data != "":
				texts = append(texts, fmt.Sprintf("[%s %s]", b.Type, b.MimeType))
			default:
				texts = append(texts, b.Text)
			}
		}
		value = rawjson.Quote(strings.Join(texts, "\n"))
	}
	if pointer != "" {
		if text, isText := (messages.Outcome{Output: value}).OutputString(); isText && rawjson.Check([]byte(text)) == nil {
			value = json.RawMessage(text) // a text that is JSON itself
		}
		at, ok := rawjson.At(value, pointer)
		if !ok {
			return "", refuse("The result has nothing at %s.", pointer)
		}
		value = at
	}
	if text, isText := (messages.Outcome{Output: value}).OutputString(); isText {
		return text, nil
	}
	if indent {
		var b bytes.Buffer
		if json.Indent(&b, value, "", "  ") == nil {
			return b.String(), nil
		}
	}
	return string(value), nil
}

// grep returns the matching lines with their numbers, which begin at 1.
func grep(ctx context.Context, text string, matches *regexp.Regexp) (string, int, error) {
	var b strings.Builder
	found, number := 0, 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		if number%1000 == 0 && ctx.Err() != nil {
			return "", 0, context.Cause(ctx)
		}
		at := matches.FindStringIndex(line)
		if at == nil {
			continue
		}
		found++
		fmt.Fprintf(&b, "%d: %s\n", number, around(line, at[0]))
	}
	return b.String(), found, nil
}

// around returns a line. Of a long line it returns a part that begins shortly before the
// match.
func around(line string, at int) string {
	if len(line) <= maxLine {
		return line
	}
	from := max(0, at-maxLine/5)
	part := line[from:]
	if len(part) > maxLine {
		part = part[:maxLine] + " [...]"
	}
	if from > 0 {
		part = "[...] " + part
	}
	return strings.ToValidUTF8(part, "")
}

// page returns a range of characters, with a line that says which range it is.
func page(text, found string, args arguments) (tool.Output, error) {
	total := utf8.RuneCountInString(text)
	if args.Offset > total {
		return tool.Output{}, refuse("offset: there are %d characters.", total)
	}
	from := byteOffset(text, args.Offset)
	to := from + byteOffset(text[from:], args.Limit)
	end := min(args.Offset+args.Limit, total)
	rest := ""
	if end < total {
		rest = fmt.Sprintf("; go on with offset %d", end)
	}
	return tool.Text(fmt.Sprintf("%s\n[%scharacters %d to %d of %d%s]", text[from:to], found, args.Offset, end, total, rest)), nil
}

// byteOffset returns where character number k of s begins.
func byteOffset(s string, k int) int {
	for i := range s {
		if k == 0 {
			return i
		}
		k--
	}
	return len(s)
}

func refuse(format string, args ...any) error {
	return &messages.Error{Code: messages.CodeInvalidArguments, Message: fmt.Sprintf(format, args...)}
}
