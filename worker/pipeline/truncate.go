package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// minBlock is how many characters a block of content keeps at least, if it has that many.
// If the limit is too small for this, the last blocks are left out.
const minBlock = 200

// bound cuts the output of the call to the limit of its tool, after it has stored the whole
// output. This happens after the hooks, so nothing is stored that a hook has removed.
func (c *callRun) bound(ctx context.Context) {
	limit := cmp.Or(c.tool.MaxOutput, schemas.DefaultMaxOutput)
	if fits(c.result.Outcome, limit) {
		return
	}
	var ref string
	if c.cfg.Keep != nil {
		var err error
		if ref, err = c.cfg.Keep(ctx, c.job, c.result.Outcome); err != nil {
			c.log().Error("the whole output of a call cannot be stored, and its model reads a part: check the object store", "err", err)
		}
	}
	c.result.Outcome, c.result.Truncated = truncate(c.result.Outcome, limit, c.tool.Truncate, ref)
}

// fits reports whether the model may read a whole outcome. For a JSON value, the characters
// of its JSON count. Media do not count.
func fits(o messages.Outcome, limit int) bool {
	chars := 0
	for _, text := range textsOf(o.Content) {
		chars += utf8.RuneCountInString(*text)
	}
	if len(o.Output) > limit {
		chars = utf8.RuneCountInString(textOf(o.Output))
	}
	return chars <= limit
}

// truncate cuts an outcome that has more than limit characters (code points). A text keeps
// its start, its end, or half of each. A marker says what is missing; markers do not count
// towards the limit. Each block of content is cut separately. A JSON value that is not a
// string becomes an object: see [cutter.json]. ref is the name of the whole output, or ""
// if it was not stored.
func truncate(o messages.Outcome, limit int, keep schemas.Truncate, ref string) (messages.Outcome, *messages.Cut) {
	c := cutter{keep: keep, missing: messages.Cut{Ref: ref}}
	text, isText := o.OutputString()
	switch {
	case o.Content != nil:
		o.Content = c.blocks(o.Content, limit)
	case isText:
		o.Output = rawjson.Quote(c.text(text, limit))
	default:
		o.Output = c.json(string(o.Output), limit)
	}
	return o, &c.missing
}

// cut cuts a text that is not stored as a whole.
func cut(s string, limit int, keep schemas.Truncate) (string, messages.Cut) {
	c := cutter{keep: keep}
	return c.text(s, limit), c.missing
}

// cutter cuts texts, and adds up what is missing.
type cutter struct {
	keep    schemas.Truncate
	missing messages.Cut
}

// text cuts a text. If a line ends shortly before the cut, the cut moves there.
func (c *cutter) text(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := utf8.RuneCountInString(s)
	if n <= limit {
		return s
	}
	from, to := span(s, n, limit, c.keep)
	chars, lines := utf8.RuneCountInString(s[from:to]), strings.Count(s[from:to], "\n")
	c.missing.Chars += chars
	c.missing.Lines += lines
	head, tail, marker := s[:from], s[to:], c.marker(fmt.Sprintf("%d more lines", lines), chars)
	if head != "" && !strings.HasSuffix(head, "\n") {
		marker = "\n" + marker
	}
	if tail != "" {
		marker += "\n"
	}
	return head + marker + tail
}

func (c *cutter) marker(what string, chars int) string {
	marker := fmt.Sprintf("[truncated - %s, %d characters", what, chars)
	if c.missing.Ref != "" {
		marker += "; ref " + c.missing.Ref
	}
	return marker + "]"
}

// span returns the part of s that is left out, as byte offsets. n is the number of characters in s.
func span(s string, n, limit int, keep schemas.Truncate) (from, to int) {
	head, tail := limit, 0
	switch keep {
	case schemas.TruncateTail:
		head, tail = 0, limit
	case schemas.TruncateMiddle:
		head, tail = limit-limit/2, limit/2
	}
	from = offset(s, head)
	to = from + offset(s[from:], n-head-tail)
	if end := strings.LastIndexByte(s[:from], '\n') + 1; end >= from-from/4 && end > 0 {
		from = end
	}
	if rest := len(s) - to; rest > 0 && s[to-1] != '\n' {
		if i := strings.IndexByte(s[to:], '\n') + 1; i > 0 && i <= rest/4 {
			to += i
		}
	}
	return from, to
}

// offset returns the byte offset of character number k of s.
func offset(s string, k int) int {
	for i := range s {
		if k == 0 {
			return i
		}
		k--
	}
	return len(s)
}

// json returns an object that takes the place of a JSON value that is too long. The object
// says that the value was cut, how many characters it has, the name of the whole, and how
// it begins. It has at most limit characters, unless limit is very small.
func (c *cutter) json(raw string, limit int) json.RawMessage {
	total := utf8.RuneCountInString(raw)
	for keep := limit; ; {
		head := raw[:offset(raw, keep)]
		object := rawjson.MustMarshal(struct {
			Truncated  bool   `json:"truncated"`
			Characters int    `json:"characters"`
			Ref        string `json:"ref,omitempty"`
			Head       string `json:"head"`
		}{true, total, c.missing.Ref, head})
		size := utf8.RuneCount(object)
		if size <= limit || keep == 0 {
			c.missing.Chars += total - keep
			c.missing.Lines += strings.Count(raw[len(head):], "\n")
			return object
		}
		keep = max(0, min(keep-1, keep*limit/size)) // the quotes of raw are escaped in head
	}
}

// blocks cuts the texts of blocks, including those of embedded resources. The longest texts
// are cut to the same length, so that all fit. If there are too many for that, the last
// blocks are left out, and a block in their place says how many.
func (c *cutter) blocks(blocks []messages.Block, limit int) []messages.Block {
	blocks = cloneTexts(blocks)
	var sizes []int
	left := limit
	for _, text := range textsOf(blocks) {
		size := utf8.RuneCountInString(*text)
		if left -= min(size, minBlock); left < 0 && len(sizes) > 0 {
			break
		}
		sizes = append(sizes, size)
	}
	part, gone, chars := share(sizes, limit), 0, 0
	for i, text := range textsOf(blocks) {
		if i < len(sizes) {
			*text = c.text(*text, part)
			continue
		}
		gone++
		chars += utf8.RuneCountInString(*text)
		c.missing.Lines += strings.Count(*text, "\n")
		*text = ""
	}
	if gone == 0 {
		return blocks
	}
	c.missing.Chars += chars
	blocks = slices.DeleteFunc(blocks, func(b messages.Block) bool { return b.Type == "text" && b.Text == "" })
	return append(blocks, messages.Block{Type: "text", Text: c.marker(fmt.Sprintf("%d more blocks", gone), chars)})
}

// cloneTexts returns blocks whose texts may be changed.
func cloneTexts(blocks []messages.Block) []messages.Block {
	blocks = slices.Clone(blocks)
	for i := range blocks {
		if r := blocks[i].Resource; r != nil {
			own := *r
			blocks[i].Resource = &own
		}
	}
	return blocks
}

// textsOf returns the texts of blocks that are not empty.
func textsOf(blocks []messages.Block) (texts []*string) {
	for i := range blocks {
		b := &blocks[i]
		if b.Text != "" {
			texts = append(texts, &b.Text)
		}
		if b.Resource != nil && b.Resource.Text != "" {
			texts = append(texts, &b.Resource.Text)
		}
	}
	return texts
}

// share returns the largest length to which all parts can be cut so that they fit into
// budget. If they fit uncut, it returns budget.
func share(sizes []int, budget int) int {
	sizes = slices.Sorted(slices.Values(sizes))
	left := budget
	for i, size := range sizes {
		if part := left / (len(sizes) - i); part < size {
			return part
		}
		left -= size
	}
	return budget
}
