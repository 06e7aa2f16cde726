// Package strictyaml reads the part of YAML that JSON can express: one document with text
// keys. It refuses duplicate keys, anchors, aliases, merge keys and tags. A [File] collects
// all mistakes in a file, each with its line and column, so that they are reported together.
package strictyaml

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Limits of a file.
const (
	MaxBytes = 1 << 20
	MaxDepth = 128 // nested brackets
)

// File is a YAML file: its value, and the mistakes in it.
type File struct {
	Name string // the name in error texts
	// Root is complete only if Parse found no mistake. The root of an empty file is null and has no
	// position.
	Root   Node
	Errors []*Error

	source string
}

// Error is one mistake in a file. Its message says what to write instead.
type Error struct {
	File         string
	Line, Column int // from 1; 0: the whole file
	Message      string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Add records a mistake.
func (f *File) Add(at Position, format string, args ...any) {
	f.Errors = append(f.Errors, &Error{f.Name, at.Line, at.Column, fmt.Sprintf(format, args...)})
}

// Err joins the mistakes in the order of the file. It returns nil if there are none.
func (f *File) Err() error {
	slices.SortStableFunc(f.Errors, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var errs []error
	for _, e := range f.Errors {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// Position is a place in a file. Lines and columns count from 1.
type Position struct{ Line, Column int }

// Node is a YAML value in the types of JSON, with the place at which a human reader sees it
// start.
type Node struct {
	Position
	Value any // nil, bool, json.Number, string, []Node or []Member
	// Text is a scalar as it is written, without quotes. It is "" for null.
	Text string
	// IsText is true for a scalar that YAML reads as text. Value may still be a number: YAML
	// reads an unquoted 1e3 as text, and JSON reads it as a number.
	IsText bool
}

// Member is one key of a mapping with its value.
type Member struct {
	Key   string
	KeyAt Position
	Node
}

// JSON returns the value in the types of encoding/json. Numbers keep their digits.
func (n Node) JSON() any {
	switch v := n.Value.(type) {
	case []Node:
		items := make([]any, 0, len(v))
		for _, item := range v {
			items = append(items, item.JSON())
		}
		return items
	case []Member:
		object := make(map[string]any, len(v))
		for _, member := range v {
			object[member.Key] = member.JSON()
		}
		return object
	}
	return n.Value
}

// Find returns the value at a JSON pointer, and its path as error texts show it, for example
// tools[0].name. If there is no value at the pointer, found is false, and at is the last value
// on the way that exists. For an item of a list, KeyAt is the place of the item.
func (n Node) Find(pointer string) (at Member, path string, found bool) {
	at = Member{KeyAt: n.Position, Node: n}
	_, rest, more := strings.Cut(pointer, "/")
	for more {
		var token string
		token, rest, more = strings.Cut(rest, "/")
		switch v := at.Value.(type) {
		case []Node:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				return at, path, false
			}
			at, path = Member{KeyAt: v[i].Position, Node: v[i]}, fmt.Sprintf("%s[%d]", path, i)
		case []Member:
			key := unescape.Replace(token)
			i := slices.IndexFunc(v, func(m Member) bool { return m.Key == key })
			if i < 0 {
				return at, path, false
			}
			if key = Clip(key); !plainKey(key) {
				key = strconv.Quote(key)
			}
			at, path = v[i], strings.TrimPrefix(path+"."+key, ".")
		default:
			return at, path, false
		}
	}
	return at, path, true
}

func plainKey(key string) bool {
	odd := func(c rune) bool { return c == ' ' || c == '"' || !unicode.IsPrint(c) }
	return key != "" && !strings.ContainsFunc(key, odd)
}

// unescape turns a token of a JSON pointer into a key.
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// TypeName names the type of the value in YAML's terms.
func (n Node) TypeName() string {
	switch n.Value.(type) {
	case nil:
		return "nothing"
	case bool:
		return "true or false"
	case json.Number:
		return "a number"
	case string:
		return "text"
	case []Node:
		return "a list"
	}
	return "a mapping"
}

// Clip shortens a text from a file for use in an error text.
func Clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "..."
	}
	return s
}

// Nearest returns the name that a misspelt one probably means, or "" if no name is similar.
func Nearest(misspelt string, names []string) string {
	best, least := "", 2+len(misspelt)/4
	for _, name := range names {
		if d := distance(misspelt, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the edit distance of two texts, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := min(row[j], row[j+1]) + 1
			if a[i] == b[j] {
				next = min(next, diagonal)
			} else {
				next = min(next, diagonal+1)
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
