package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/filetext"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// The output modes of Grep.
const (
	modeFiles   = "files_with_matches" // the default
	modeContent = "content"
	modeCount   = "count"
)

const (
	maxGrepLine     = 500     // bytes of a line that are shown
	maxInstructions = 20_000  // instructions of a compiled expression; a{1000} has a thousand
	slowSearch      = 1 << 25 // bytes times instructions; such a search takes about a third of a second
)

// expression is a regular expression whose search can be interrupted.
type expression struct {
	re       *regexp.Regexp
	literal  []byte // every match begins with it; may be empty
	cost     int    // instructions
	textOnly bool   // the expression has a \A, so it can match only at the start of the text
}

// newExpression compiles a pattern. With multiline, ^ and $ also match at line ends within
// the text, and . matches a line end.
func newExpression(pattern string, caseInsensitive, multiline bool) (*expression, error) {
	if len(pattern) > maxGrepPattern {
		return nil, base.Refuse(messages.CodeTooLarge, "the pattern is %s bytes long (limit %s)", base.Thousands(len(pattern)), base.Thousands(maxGrepPattern))
	}
	flags := ""
	if caseInsensitive {
		flags += "i"
	}
	if multiline {
		flags += "ms"
	}
	if flags != "" {
		pattern = "(?" + flags + ":" + pattern + ")"
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		var bad *syntax.Error
		if errors.As(err, &bad) {
			return nil, base.Refuse(base.CodeInvalidPattern, "the pattern is no RE2 expression: %s: %s", bad.Code, rootdir.Quoted(bad.Expr))
		}
		return nil, base.Refuse(base.CodeInvalidPattern, "the pattern is no RE2 expression")
	}
	e := &expression{re: re}
	literal, _ := re.LiteralPrefix()
	e.literal = []byte(literal)
	if err := e.measure(pattern); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *expression) measure(pattern string) error {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return base.Refuse(base.CodeInvalidPattern, "the pattern is no RE2 expression: %v", err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return base.Refuse(base.CodeInvalidPattern, "the pattern is no RE2 expression: %v", err)
	}
	e.cost = len(program.Inst)
	if e.cost > maxInstructions {
		return base.Refuse(messages.CodeTooLarge, "the pattern expands to %s instructions (limit %s). Use smaller repeat counts", base.Thousands(e.cost), base.Thousands(maxInstructions))
	}
	for _, inst := range program.Inst {
		if inst.Op == syntax.InstEmptyWidth && syntax.EmptyOp(inst.Arg)&syntax.EmptyBeginText != 0 {
			e.textOnly = true
		}
	}
	return nil
}

// find returns the leftmost match in text, or nil. A search that may take long ends when
// ctx ends.
func (e *expression) find(ctx context.Context, text []byte) []int {
	if len(text)*e.cost < slowSearch {
		return e.re.FindIndex(text)
	}
	return e.re.FindReaderIndex(&contextRunes{ctx: ctx, text: text})
}

// contextRunes reads a text, and ends early if its context ends.
type contextRunes struct {
	ctx  context.Context
	text []byte
	read int
}

func (r *contextRunes) ReadRune() (rune, int, error) {
	if r.read&1023 == 0 && r.ctx.Err() != nil || len(r.text) == 0 {
		return 0, 0, io.EOF
	}
	r.read++
	c, size := utf8.DecodeRune(r.text)
	r.text = r.text[size:]
	return c, size, nil
}

// searcher searches files for an expression. It is never changed, so any goroutine may use
// it.
type searcher struct {
	expression    *expression
	mode          string
	multiline     bool
	before, after int
}

// unit returns the word for what the answer counts.
func (s searcher) unit() string {
	if s.mode == modeContent {
		return "line"
	}
	return "file"
}

// file returns the lines of the answer about one file, at most limit lines.
func (s searcher) file(ctx context.Context, name string, text []byte, limit int) ([]string, error) {
	most := math.MaxInt
	switch s.mode {
	case "", modeFiles:
		most = 1
	case modeContent:
		most = limit
	}
	matches := s.matches(ctx, text, most)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	switch {
	case len(matches) == 0:
		return nil, nil
	case s.mode == modeContent:
		return s.content(name, text, matches, limit), nil
	case s.mode == modeCount:
		return []string{fmt.Sprintf("%s:%d", name, len(matches))}, nil
	}
	return []string{name}, nil
}

// match is a line that is part of a match: its number, from 0, and the position in it at
// which the match begins.
type match struct{ line, at int }

// matches returns at most most matching lines. It skips lines without the expression's
// literal, which is cheaper than matching them.
func (s searcher) matches(ctx context.Context, text []byte, most int) []match {
	if s.multiline {
		return s.across(ctx, text, most)
	}
	var found []match
	for from, number := 0, 0; len(found) < most && ctx.Err() == nil; number++ {
		hit := bytes.Index(text[from:], s.expression.literal) // 0 if the literal is empty
		if hit < 0 || from == len(text) {
			break
		}
		skip := bytes.LastIndexByte(text[from:from+hit], '\n') + 1
		number += bytes.Count(text[from:from+skip], []byte("\n"))
		from += skip
		line, next := filetext.LineFrom(text, from)
		if at := s.expression.find(ctx, text[line.From:line.To]); at != nil {
			found = append(found, match{number, at[0]})
		}
		from = next
	}
	return found
}

// across finds matches that may span lines. Each search begins in the line after the last
// match.
func (s searcher) across(ctx context.Context, text []byte, most int) []match {
	if !bytes.Contains(text, s.expression.literal) {
		return nil
	}
	var found []match
	for from, number := 0, 0; from < len(text) && ctx.Err() == nil; {
		at := s.expression.find(ctx, text[from:])
		if at == nil {
			break
		}
		start, last := from+at[0], from+max(at[0], at[1]-1) // the last byte of the match
		for from <= last && from < len(text) {
			_, next := filetext.LineFrom(text, from)
			if next > start || next == len(text) {
				if found = append(found, match{number, max(0, start-from)}); len(found) == most {
					return found
				}
			}
			from = next
			number++
		}
		if s.expression.textOnly {
			break
		}
	}
	return found
}

// content returns matching lines as path:12:text and the lines around them as path-13-text.
// Where lines are left out, it puts --.
func (s searcher) content(name string, text []byte, matches []match, limit int) []string {
	lines := filetext.SplitLines(text)
	var out []string
	next := 0 // the first line not yet written
	for i, m := range matches {
		from := max(next, m.line-s.before)
		if s.before+s.after > 0 && len(out) > 0 && from > next {
			out = append(out, "--")
		}
		for l := from; l < m.line; l++ {
			out = append(out, fmt.Sprintf("%s-%d-%s", name, l+1, shownLine(text, lines[l], 0)))
		}
		out = append(out, fmt.Sprintf("%s:%d:%s", name, m.line+1, shownLine(text, lines[m.line], m.at)))
		end := min(len(lines)-1, m.line+s.after)
		if i+1 < len(matches) {
			end = min(end, matches[i+1].line-1)
		}
		for l := m.line + 1; l <= end; l++ {
			out = append(out, fmt.Sprintf("%s-%d-%s", name, l+1, shownLine(text, lines[l], 0)))
		}
		if next = end + 1; len(out) >= limit {
			return out[:limit]
		}
	}
	return out
}

// shownLine returns a line in the form for the answer. Of a long line it shows the part
// around the match.
func shownLine(text []byte, l filetext.Span, at int) string {
	line := text[l.From:l.To]
	if len(line) <= maxGrepLine {
		return strings.ToValidUTF8(string(line), "\uFFFD")
	}
	from := filetext.RuneStart(line, max(0, min(at-maxGrepLine/4, len(line)-maxGrepLine)))
	to := filetext.RuneStart(line, from+maxGrepLine)
	shown := strings.ToValidUTF8(string(line[from:to]), "\uFFFD")
	if from > 0 {
		shown = fmt.Sprintf("[%s bytes] ... ", base.Thousands(from)) + shown
	}
	if to < len(line) {
		shown += fmt.Sprintf(" ... [%s bytes]", base.Thousands(len(line)-to))
	}
	return shown
}
