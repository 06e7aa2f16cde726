package schemas

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// MaxFileBytes is the largest YAML file, in bytes.
const MaxFileBytes = 1 << 20

// FileError is one mistake in a file; its message says what to write instead.
type FileError struct {
	File         string
	Line, Column int // from 1; 0: the whole file
	Message      string
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// mistakes collects everything that is wrong with a file, so that all of it is reported at once.
type mistakes struct {
	file   string
	source []byte // of the file
	all    []*FileError
}

func (m *mistakes) add(at position, format string, args ...any) {
	m.all = append(m.all, &FileError{m.file, at.line, at.column, fmt.Sprintf(format, args...)})
}

// err joins the mistakes in the order of the file; nil when there are none.
func (m *mistakes) err() error {
	slices.SortStableFunc(m.all, func(a, b *FileError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var errs []error
	for _, e := range m.all {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

type position struct{ line, column int }

// yamlNode is a YAML value in JSON's types, with its place in the file.
type yamlNode struct {
	position
	value any // nil, bool, json.Number, string, []yamlNode or []yamlMember
}

type yamlMember struct {
	position // of the key
	key      string
	node     yamlNode
}

// parseYAML reads the part of YAML that JSON can express: one document, text keys, no anchors and
// no tags. Duplicate keys are mistakes. The result is complete only when there are no mistakes.
func parseYAML(data []byte, m *mistakes) (root yamlNode) {
	m.source = data
	if len(data) > MaxFileBytes {
		m.add(position{}, "%d bytes long (limit %d)", len(data), MaxFileBytes)
		return root
	}
	defer func() {
		if p := recover(); p != nil { // a panic of the YAML library
			m.add(position{}, "cannot be read as YAML")
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if !checkNesting(tokens, m) {
		return root
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at, message := position{}, err.Error()
		var where yaml.Error
		if errors.As(err, &where) {
			at, message = tokenPosition(where.GetToken()), where.GetMessage()
		}
		m.add(at, "not valid YAML: %s", message)
		return root
	}
	documents := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool {
		return d.Body == nil || d.Body.Type() == ast.DirectiveType
	})
	switch len(documents) {
	case 0:
		return root
	case 1:
		return m.node(documents[0].Body)
	}
	m.add(nodePosition(documents[1].Body), "a second document starts here; put everything into one")
	return root
}

// checkNesting refuses deeply nested brackets before the parser sees them: it takes minutes for
// them.
func checkNesting(tokens token.Tokens, m *mistakes) bool {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		if depth > rawjson.MaxDepth {
			m.add(tokenPosition(t), "nested more than %d deep", rawjson.MaxDepth)
			return false
		}
	}
	return true
}

func (m *mistakes) node(n ast.Node) yamlNode {
	at := nodePosition(n)
	if _, ok := n.(ast.ScalarNode); ok {
		at = scalarPosition(n.GetToken())
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return yamlNode{at, nil}
	case *ast.BoolNode:
		return yamlNode{at, n.Value}
	case *ast.IntegerNode:
		return yamlNode{at, number(n.Token.Value, n.Value)}
	case *ast.FloatNode:
		return yamlNode{at, number(n.Token.Value, n.Value)}
	case *ast.StringNode:
		// The library reads large and exponential numbers as text. A text that looks like a number
		// is quoted.
		if n.Token.Type == token.StringType && isNumber(n.Value) {
			return yamlNode{at, json.Number(n.Value)}
		}
		return yamlNode{at, n.Value}
	case *ast.LiteralNode:
		return yamlNode{at, n.Value.Value}
	case *ast.SequenceNode:
		items := make([]yamlNode, 0, len(n.Values))
		for _, item := range n.Values {
			items = append(items, m.node(item))
		}
		return yamlNode{at, items}
	case *ast.MappingNode:
		return yamlNode{at, m.members(n.Values)}
	case *ast.MappingValueNode:
		return yamlNode{at, m.members([]*ast.MappingValueNode{n})}
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		m.add(at, "anchors and aliases are not read; write the value out")
	case *ast.TagNode:
		m.add(at, "tags are not read; write the value without it")
	default:
		m.add(at, "want a JSON value: text, number, true, false, null, a list or a mapping")
	}
	return yamlNode{at, nil}
}

func (m *mistakes) members(values []*ast.MappingValueNode) []yamlMember {
	members := make([]yamlMember, 0, len(values))
	first := map[string]int{} // line of each key
	for _, v := range values {
		at := nodePosition(v.Key)
		var key string
		switch k := v.Key.(type) {
		case *ast.StringNode:
			key = k.Value
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			key = k.GetToken().Value
		default:
			m.add(at, "want text as the key (anchors, aliases and << are not read)")
			continue
		}
		if line, twice := first[key]; twice {
			m.add(at, "key %q is there twice, first in line %d", clip(key), line)
			continue
		}
		first[key] = at.line
		members = append(members, yamlMember{at, key, m.node(v.Value)})
	}
	return members
}

// number keeps the digits as written, where JSON can write them so.
func number(text string, value any) json.Number {
	if !isNumber(text) {
		text = fmt.Sprint(value)
	}
	return json.Number(text)
}

func isNumber(text string) bool {
	return text != "" && strings.ContainsAny(text[:1], "-0123456789") && json.Valid([]byte(text))
}

// nodePosition is the place where a reader sees the value start.
func nodePosition(n ast.Node) position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return nodePosition(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return nodePosition(n.Key)
	}
	return tokenPosition(n.GetToken())
}

func tokenPosition(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{}
	}
	return position{t.Position.Line, t.Position.Column}
}

// scalarPosition is the place where a scalar begins. The library adds the blanks behind a plain
// scalar to its column, so the column is computed from the blanks before it.
func scalarPosition(t *token.Token) position {
	at := tokenPosition(t)
	if t == nil || t.Prev == nil {
		return at
	}
	column := at.column
	blanks := t.Origin[:len(t.Origin)-len(strings.TrimLeft(t.Origin, " \t\r\n"))]
	if newline := strings.LastIndexByte(blanks, '\n'); newline >= 0 {
		column = len(blanks) - newline
	} else if before := tokenPosition(t.Prev); before.line == at.line && len(t.Prev.Value) == 1 { // : or -
		column = before.column + 1 + len(blanks)
	}
	return position{at.line, min(column, at.column)}
}

// json is the node as JSON.
func (n yamlNode) json() json.RawMessage { return rawjson.MustMarshal(n.plain()) }

func (n yamlNode) plain() any {
	switch v := n.value.(type) {
	case []yamlNode:
		items := make([]any, 0, len(v))
		for _, item := range v {
			items = append(items, item.plain())
		}
		return items
	case []yamlMember:
		object := make(map[string]any, len(v))
		for _, member := range v {
			object[member.key] = member.node.plain()
		}
		return object
	}
	return n.value
}

// typeName names the node's type in YAML's terms.
func (n yamlNode) typeName() string {
	switch n.value.(type) {
	case nil:
		return "nothing"
	case bool:
		return "true or false"
	case json.Number:
		return "a number"
	case string:
		return "text"
	case []yamlNode:
		return "a list"
	}
	return "a mapping"
}

// clip bounds what a file adds to an error text.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "..."
	}
	return s
}
