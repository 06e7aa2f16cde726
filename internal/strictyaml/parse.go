package strictyaml

import (
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
)

// notHere is the message of the YAML library for a line with a wrong indentation, among other
// mistakes.
const notHere = "value is not allowed in this context"

// Parse reads a file. It refuses a file with more than maxBrackets opening brackets; 0 means
// any number. The result holds the mistakes that it finds.
func Parse(name string, data []byte, maxBrackets int) *File {
	f := &File{Name: name, source: string(data)}
	if len(data) > MaxBytes {
		f.Add(Position{}, "%d bytes long (limit %d)", len(data), MaxBytes)
		return f
	}
	defer func() {
		if p := recover(); p != nil { // a panic of the YAML library
			f.Add(Position{}, "cannot be read as YAML")
		}
	}()
	tokens := lexer.Tokenize(f.source)
	if !f.checkBrackets(tokens, maxBrackets) {
		return f
	}
	parsed, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at, message := Position{}, err.Error()
		var where yaml.Error
		if errors.As(err, &where) {
			at, message = tokenPosition(where.GetToken()), where.GetMessage()
		}
		if message == notHere {
			message += "; is it indented like the lines above?"
		}
		f.Add(at, "not valid YAML: %s", message)
		return f
	}
	documents := slices.DeleteFunc(parsed.Docs, func(d *ast.DocumentNode) bool {
		return d.Body == nil || d.Body.Type() == ast.DirectiveType
	})
	switch len(documents) {
	case 0:
	case 1:
		f.Root = f.node(documents[0].Body)
	default:
		f.Add(nodePosition(documents[1].Body), "a second document starts here; put everything into one")
	}
	return f
}

// checkBrackets refuses deeply nested brackets before the parser sees them. The parser would
// take minutes for them.
func (f *File) checkBrackets(tokens token.Tokens, most int) bool {
	depth, all := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
			all++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		switch {
		case depth > MaxDepth:
			f.Add(tokenPosition(t), "nested more than %d deep", MaxDepth)
			return false
		case most > 0 && all > most:
			f.Add(tokenPosition(t), "more than %d brackets", most)
			return false
		}
	}
	return true
}

func (f *File) node(n ast.Node) Node {
	at := nodePosition(n)
	if _, ok := n.(ast.ScalarNode); ok {
		at = scalarPosition(n.GetToken())
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return Node{Position: at}
	case *ast.BoolNode:
		return Node{at, n.Value, n.Token.Value, false}
	case *ast.IntegerNode:
		return Node{at, number(n.Token.Value, n.Value), n.Token.Value, false}
	case *ast.FloatNode:
		return Node{at, number(n.Token.Value, n.Value), n.Token.Value, false}
	case *ast.StringNode:
		// The YAML library takes large and exponential numbers for text of the StringType. A
		// quoted text has another type.
		if n.Token.Type == token.StringType && isNumber(n.Value) {
			return Node{at, json.Number(n.Value), n.Value, true}
		}
		return Node{at, n.Value, n.Value, true}
	case *ast.LiteralNode:
		return Node{at, n.Value.Value, n.Value.Value, true}
	case *ast.SequenceNode:
		items := make([]Node, 0, len(n.Values))
		for _, item := range n.Values {
			items = append(items, f.node(item))
		}
		return Node{Position: at, Value: items}
	case *ast.MappingNode:
		return Node{Position: at, Value: f.members(n.Values)}
	case *ast.MappingValueNode:
		return Node{Position: at, Value: f.members([]*ast.MappingValueNode{n})}
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		f.Add(at, "anchors and aliases are not read; write the value out")
	case *ast.TagNode:
		f.Add(at, "tags are not read; write the value without it")
	default:
		f.Add(at, "want a JSON value: text, number, true, false, null, a list or a mapping")
	}
	return Node{Position: at}
}

func (f *File) members(values []*ast.MappingValueNode) []Member {
	members := make([]Member, 0, len(values))
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
			f.Add(at, "want text as the key (anchors, aliases and << are not read)")
			continue
		}
		if line, twice := first[key]; twice {
			f.Add(at, "key %q is there twice, first in line %d", Clip(key), line)
			continue
		}
		first[key] = at.Line
		members = append(members, Member{key, at, f.node(v.Value)})
	}
	return members
}

// number returns a number with its digits as they are written, if JSON allows that form.
// Otherwise it returns the number in the form that Go prints.
func number(text string, value any) json.Number {
	if !isNumber(text) {
		text = fmt.Sprint(value)
	}
	return json.Number(text)
}

func isNumber(text string) bool {
	return text != "" && strings.ContainsAny(text[:1], "-0123456789") && json.Valid([]byte(text))
}
