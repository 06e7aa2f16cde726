package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// minPart is how many characters a part of a value keeps at least. A part that would become shorter
// is left out instead.
const minPart = 200

// node is a JSON value that can be cut. Members keep their order, and numbers keep their digits.
type node struct {
	open byte     // '{' or '['; 0: a scalar
	raw  string   // a scalar as it is written
	keys []string // the keys of an object, as they are written
	kids []*node
	size int // characters of its JSON
}

// shrink cuts a JSON value to about limit characters, and the result is valid JSON. The longest
// parts are cut first; strings are cut as text. If there are too many parts for that, the last
// elements or members are left out (the first ones, if the tail is to be kept), and an element in
// their place says how many. raw must be valid JSON.
func shrink(raw json.RawMessage, limit int, keep schemas.Truncate) (json.RawMessage, messages.Cut) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	s := shrinker{keep: keep}
	root := read(dec)
	if root.size <= limit {
		return raw, messages.Cut{}
	}
	s.cut(root, limit)
	var b bytes.Buffer
	root.write(&b)
	return b.Bytes(), s.missing
}

type shrinker struct {
	keep    schemas.Truncate
	missing messages.Cut
}

func (s *shrinker) cut(n *node, limit int) {
	switch {
	case n.size <= limit:
	case n.open != 0:
		s.container(n, limit)
		n.measure()
	case n.raw[0] == '"':
		s.text(n, limit)
		n.measure()
	}
}

// text cuts a string. Escapes make its JSON longer than its text, so it cuts until the JSON fits.
func (s *shrinker) text(n *node, limit int) {
	full := textOf(json.RawMessage(n.raw))
	keep, missing := limit-minPart/4, messages.Cut{}
	for {
		var text string
		text, missing = cut(full, max(keep, 0), s.keep)
		n.raw = string(rawjson.Quote(text))
		n.measure()
		if n.size <= limit || keep <= 0 {
			break
		}
		keep = min(keep-1, keep*limit/n.size)
	}
	s.missing.Chars += missing.Chars
	s.missing.Lines += missing.Lines
}

// container cuts an object or array to limit. If each part can have at least minPart characters (or
// a quarter of limit), it cuts the long ones to that share. Otherwise it keeps as many parts as fit
// and leaves out the rest.
func (s *shrinker) container(n *node, limit int) {
	sizes, frame := make([]int, len(n.kids)), n.size
	for i, kid := range n.kids {
		sizes[i] = kid.size
		frame -= kid.size
	}
	least := min(minPart, limit/4)
	if part := share(sizes, limit-frame); part >= least {
		for _, kid := range n.kids {
			s.cut(kid, part)
		}
		return
	}
	if s.keep == schemas.TruncateTail {
		slices.Reverse(n.kids)
		slices.Reverse(n.keys)
	}
	left, kept := limit-minPart/4, 0
	for ; kept < len(n.kids); kept++ {
		kid, around := n.kids[kept], 1
		if n.open == '{' {
			around += utf8.RuneCountInString(n.keys[kept]) + 1
		}
		if kid.size+around > left {
			if left-around < least || (kid.open == 0 && kid.raw[0] != '"') {
				break
			}
			s.cut(kid, left-around)
		}
		left -= kid.size + around
	}
	s.drop(n, kept)
	if s.keep == schemas.TruncateTail {
		slices.Reverse(n.kids)
		slices.Reverse(n.keys)
	}
}

// drop removes all but the first kept parts, and puts an element that counts them in their place.
func (s *shrinker) drop(n *node, kept int) {
	gone := n.kids[kept:]
	if len(gone) == 0 {
		return
	}
	for _, kid := range gone {
		s.missing.Chars += kid.size
	}
	count := fmt.Sprintf("%d more", len(gone))
	n.kids = n.kids[:kept:kept]
	if n.open == '[' {
		n.kids = append(n.kids, scalar(string(rawjson.Quote("[truncated - "+count+" elements]"))))
		return
	}
	key := `"[truncated]"`
	for slices.Contains(n.keys, key) {
		key = `"[` + strings.TrimPrefix(key, `"`)
	}
	n.keys = append(n.keys[:kept:kept], key)
	n.kids = append(n.kids, scalar(string(rawjson.Quote(count+" members"))))
}

// share returns the largest length to which every part can be cut so that all of them fit into
// budget.
func share(sizes []int, budget int) int {
	sizes = slices.Clone(sizes)
	slices.Sort(sizes)
	for i, size := range sizes {
		if part := budget / (len(sizes) - i); part < size {
			return part
		}
		budget -= size
	}
	return budget
}

// read returns the next value of JSON that is known to be valid.
func read(dec *json.Decoder) *node {
	tok, _ := dec.Token()
	open, isDelim := tok.(json.Delim)
	if !isDelim {
		return scalar(string(rawjson.MustMarshal(tok)))
	}
	n := &node{open: byte(open)}
	for dec.More() {
		if open == '{' {
			key, _ := dec.Token()
			n.keys = append(n.keys, string(rawjson.MustMarshal(key)))
		}
		n.kids = append(n.kids, read(dec))
	}
	_, _ = dec.Token()
	n.measure()
	return n
}

func scalar(raw string) *node { return &node{raw: raw, size: utf8.RuneCountInString(raw)} }

func (n *node) measure() {
	n.size = utf8.RuneCountInString(n.raw)
	if n.open == 0 {
		return
	}
	n.size = 2 + max(len(n.kids)-1, 0)
	for i, kid := range n.kids {
		if n.open == '{' {
			n.size += utf8.RuneCountInString(n.keys[i]) + 1
		}
		n.size += kid.size
	}
}

func (n *node) write(b *bytes.Buffer) {
	if n.open == 0 {
		b.WriteString(n.raw)
		return
	}
	b.WriteByte(n.open)
	for i, kid := range n.kids {
		if i > 0 {
			b.WriteByte(',')
		}
		if n.open == '{' {
			b.WriteString(n.keys[i] + ":")
		}
		kid.write(b)
	}
	b.WriteByte(n.open + 2) // ']' is '[' + 2, and '}' is '{' + 2
}
