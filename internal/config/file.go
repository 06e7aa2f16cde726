package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/toolfleet/toolfleet/schemas"
)

// mistakes collects everything that is wrong with a file, so that all of it is reported at once.
type mistakes []*schemas.FileError

func (m *mistakes) add(t *token.Token, format string, args ...any) {
	e := &schemas.FileError{Message: fmt.Sprintf(format, args...)}
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	*m = append(*m, e)
}

// readFile applies the settings of a file and notes the line of each. The errors are sorted by
// place.
func (c *Config) readFile(name string, body []byte) (errs []error) {
	m := mistakes{}
	if len(body) > schemas.MaxFileBytes {
		m.add(nil, "%d bytes long (limit %d)", len(body), schemas.MaxFileBytes)
	} else if root, err := parse(string(body)); err != nil {
		var where yaml.Error
		if errors.As(err, &where) {
			m.add(where.GetToken(), "not valid YAML: %s", where.GetMessage())
		} else {
			m.add(nil, "not valid YAML: %v", err)
		}
	} else {
		m.section(c, "", root)
	}
	slices.SortStableFunc(m, func(a, b *schemas.FileError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	for _, e := range m {
		e.File = name
		errs = append(errs, e)
	}
	return errs
}

// parse reads one YAML document; nil if it is empty. It refuses more than 100 opening brackets and
// a second document, and turns a panic of the YAML library into an error.
func parse(text string) (root ast.Node, err error) {
	defer func() {
		if p := recover(); p != nil { // the YAML library panicked
			err = errors.New("cannot be read")
		}
	}()
	tokens := lexer.Tokenize(text)
	depth := 0
	// Settings nest little, and very many brackets would keep the parser busy.
	for _, t := range tokens {
		if t.Type == token.MappingStartType || t.Type == token.SequenceStartType {
			if depth++; depth > 100 {
				return nil, errors.New("too many brackets")
			}
		}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, err
	}
	for _, d := range file.Docs {
		switch {
		case d.Body == nil || d.Body.Type() == ast.DirectiveType:
		case root != nil:
			return nil, errors.New("there is more than one document")
		default:
			root = d.Body
		}
	}
	return root, nil
}

// section reads a mapping whose keys are settings, or again sections, that begin with prefix.
func (m *mistakes) section(c *Config, prefix string, n ast.Node) {
	if n == nil || n.Type() == ast.NullType {
		return
	}
	members, ok := membersOf(n)
	if !ok {
		m.add(n.GetToken(), "%swant settings such as queue_timeout: 60s, got %s", under(prefix), typeName(n))
		return
	}
	for _, member := range members {
		name, at := member.Key.GetToken().Value, member.Key.GetToken()
		key := prefix + name
		if s, ok := lookup(key); ok {
			m.setting(c, s, at, member.Value)
		} else if isSection(key) {
			m.section(c, key+".", member.Value)
		} else {
			m.add(at, "unknown key %q%s", clip(key), suggestion(prefix, name))
		}
	}
}

// setting reads one value and notes its file and line as its source.
func (m *mistakes) setting(c *Config, s setting, at *token.Token, n ast.Node) {
	before := len(*m)
	m.readNode(s, c, n)
	if len(*m) > before {
		return
	}
	if p, ok := s.field(c).(*Path); ok {
		*p = resolve(c.file, *p)
	}
	c.origins[s.key] = fmt.Sprintf("%s:%d", c.file, at.Position.Line)
}

// readNode reads the value of a setting into c.
func (m *mistakes) readNode(s setting, c *Config, n ast.Node) {
	if n == nil {
		m.add(nil, "%s: want %s, got nothing", s.key, s.shape())
		return
	}
	switch field := s.field(c).(type) {
	case *[]string:
		m.texts(s, field, n)
	case *map[string]Pool:
		m.pools(s, field, n)
	case *map[string]Size:
		m.sizes(s, field, n)
	default:
		text, ok := scalarOf(n)
		ok = ok && fits(field, n.Type())
		if !ok {
			m.add(n.GetToken(), "%s: want %s, got %s", s.key, s.shape(), typeName(n))
			return
		}
		if err := s.readText(c, text); err != nil {
			m.add(n.GetToken(), "%s: %v", s.key, err)
		}
	}
}

// fits reports whether a YAML scalar of this type can be a value of the field. A number is not
// taken as text, nor a text as a number.
func fits(field any, t ast.NodeType) bool {
	switch field.(type) {
	case *bool:
		return t == ast.BoolType
	case *int:
		return t == ast.IntegerType
	case *Size:
		return t == ast.IntegerType || t == ast.StringType
	}
	return t == ast.StringType || t == ast.LiteralType
}

func (m *mistakes) texts(s setting, field *[]string, n ast.Node) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		m.add(n.GetToken(), "%s: want %s, got %s", s.key, s.shape(), typeName(n))
		return
	}
	texts := []string{}
	for _, item := range list.Values {
		text, ok := scalarOf(item)
		if !ok || item.Type() != ast.StringType && item.Type() != ast.LiteralType {
			m.add(item.GetToken(), "%s: want text (put it into quotes), got %s", s.key, typeName(item))
			continue
		}
		texts = append(texts, text)
	}
	*field = texts
}

func (m *mistakes) pools(s setting, field *map[string]Pool, n ast.Node) {
	pools := map[string]Pool{}
	m.each(s, n, func(name string, value ast.Node) {
		members, ok := membersOf(value)
		if !ok {
			m.add(value.GetToken(), "%s.%s: want {max_in_flight: 50}, got %s", s.key, clip(name), typeName(value))
			return
		}
		for _, member := range members {
			if key := member.Key.GetToken().Value; key != "max_in_flight" {
				m.add(member.Key.GetToken(), "unknown key %q; the key of a pool is max_in_flight", clip(key))
				continue
			}
			text, _ := scalarOf(member.Value)
			bound, err := wholeNumber(text, 1)
			if err != nil || member.Value.Type() != ast.IntegerType {
				m.add(member.Value.GetToken(), "%s.%s.max_in_flight: want a whole number from 1, got %s", s.key, clip(name), typeName(member.Value))
				continue
			}
			pools[name] = Pool{MaxInFlight: bound}
		}
	})
	*field = pools
}

func (m *mistakes) sizes(s setting, field *map[string]Size, n ast.Node) {
	sizes := map[string]Size{}
	m.each(s, n, func(name string, value ast.Node) {
		text, ok := scalarOf(value)
		bound, err := size(text)
		if !ok || err != nil {
			m.add(value.GetToken(), "%s.%s: want a size such as 64KB, 10MB or 2GiB, got %s", s.key, clip(name), typeName(value))
			return
		}
		sizes[name] = bound
	})
	*field = sizes
}

// each calls read for every member of a mapping whose keys are free.
func (m *mistakes) each(s setting, n ast.Node, read func(name string, value ast.Node)) {
	members, ok := membersOf(n)
	if !ok {
		m.add(n.GetToken(), "%s: want %s, got %s", s.key, s.shape(), typeName(n))
		return
	}
	for _, member := range members {
		read(member.Key.GetToken().Value, member.Value)
	}
}

func membersOf(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// scalarOf returns the text of a scalar; for a number or a boolean, as it is written.
func scalarOf(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func typeName(n ast.Node) string {
	switch n.Type() {
	case ast.NullType:
		return "nothing"
	case ast.BoolType:
		return "true or false"
	case ast.IntegerType, ast.FloatType:
		return "the number " + clip(n.GetToken().Value)
	case ast.StringType, ast.LiteralType:
		return "text"
	case ast.SequenceType:
		return "a list"
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	}
	return "something that is not read here; write the value out"
}

func isSection(key string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return strings.HasPrefix(s.key, key+".") })
}

func under(prefix string) string {
	if prefix == "" {
		return ""
	}
	return strings.TrimSuffix(prefix, ".") + ": "
}

// suggestion names the key that was probably meant. If none is close, it lists the keys of the
// section; at the top level it refers to `config print` instead.
func suggestion(prefix, name string) string {
	var names []string
	for _, s := range settings {
		if rest, ok := strings.CutPrefix(s.key, prefix); ok {
			first, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, first) {
				names = append(names, first)
			}
		}
	}
	best := slices.MinFunc(names, func(a, b string) int { return cmp.Compare(distance(name, a), distance(name, b)) })
	switch {
	case distance(name, best) <= 1+len(name)/4:
		return fmt.Sprintf("; did you mean %s?", prefix+best)
	case prefix != "":
		return "; there are " + strings.Join(names, ", ")
	}
	return "; `toolfleet config print` lists the keys"
}

// distance is the edit distance of two texts, in bytes.
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
			if same := diagonal; a[i] == b[j] {
				next = min(next, same)
			} else {
				next = min(next, same+1)
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// clip cuts a text from a file to 64 bytes for an error text.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "..."
	}
	return s
}
