package pipeline

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// truncate cuts the model's copy of an output to the tool's limit, in characters (code points). The
// markers do not count towards the limit. Text is cut as text, and all text blocks of a result are
// cut as one; media are not cut. Other JSON values stay valid JSON: see shrink.
func truncate(t schemas.Tool, o messages.Outcome) (messages.Outcome, *messages.Cut) {
	if t.MaxOutput <= 0 {
		return o, nil
	}
	var missing messages.Cut
	if text, isText := o.OutputString(); isText {
		if text, missing = cut(text, t.MaxOutput, t.Truncate); missing.Chars > 0 {
			o.Output = rawjson.Quote(text)
		}
	} else if len(o.Output) > t.MaxOutput {
		o.Output, missing = shrink(o.Output, t.MaxOutput, t.Truncate)
	}
	if o.Content != nil {
		o.Content, missing = cutBlocks(o.Content, t.MaxOutput, t.Truncate)
	}
	if missing == (messages.Cut{}) {
		return o, nil
	}
	return o, &missing
}

// cut is like [cutTexts], for one text.
func cut(s string, limit int, keep schemas.Truncate) (string, messages.Cut) {
	if len(s) <= limit {
		return s, messages.Cut{}
	}
	texts, missing := cutTexts([]string{s}, limit, keep)
	return texts[0], missing
}

// cutTexts keeps limit characters of the texts taken as one: the start, the end, or half of each. A
// marker in place of the rest says how many characters and line breaks are missing. If a line ends
// close to the cut, the cut moves there, which keeps a little less.
func cutTexts(texts []string, limit int, keep schemas.Truncate) ([]string, messages.Cut) {
	whole := strings.Join(texts, "")
	n := utf8.RuneCountInString(whole)
	if n <= limit {
		return texts, messages.Cut{}
	}
	from, to := span(whole, n, limit, keep)
	missing := messages.Cut{Chars: utf8.RuneCountInString(whole[from:to]), Lines: strings.Count(whole[from:to], "\n")}
	kept, at, marked := make([]string, len(texts)), 0, false
	for i, text := range texts {
		head := text[:min(max(from-at, 0), len(text))]
		tail := text[min(max(to-at, 0), len(text)):]
		at += len(text)
		if at > from && !marked {
			marked = true
			kept[i] = mark(head, tail, missing)
			continue
		}
		kept[i] = head + tail
	}
	return kept, missing
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

func mark(head, tail string, missing messages.Cut) string {
	marker := fmt.Sprintf("[truncated - %d more lines, %d characters]", missing.Lines, missing.Chars)
	if head != "" && !strings.HasSuffix(head, "\n") {
		marker = "\n" + marker
	}
	if tail != "" {
		marker += "\n"
	}
	return head + marker + tail
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

// cutBlocks cuts the text in blocks, embedded resources included. A text block that becomes empty
// is dropped.
func cutBlocks(blocks []messages.Block, limit int, keep schemas.Truncate) ([]messages.Block, messages.Cut) {
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
		if b.Resource != nil {
			texts = append(texts, b.Resource.Text)
		}
	}
	texts, missing := cutTexts(texts, limit, keep)
	if missing.Chars == 0 {
		return blocks, missing
	}
	kept := make([]messages.Block, 0, len(blocks))
	for _, b := range blocks {
		had := b.Text != ""
		b.Text, texts = texts[0], texts[1:]
		if b.Resource != nil {
			own := *b.Resource
			own.Text, texts = texts[0], texts[1:]
			b.Resource = &own
		}
		if b.Type != "text" || b.Text != "" || !had {
			kept = append(kept, b)
		}
	}
	return kept, missing
}
