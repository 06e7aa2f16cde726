package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
)

// maxBrackets limits the opening brackets of a settings file. Settings need few.
const maxBrackets = 100

// fileReader reads a settings file into a Config.
type fileReader struct {
	*strictyaml.File
	c *Config
}

// readFile applies the settings of a file and records the line of each. The error joins all
// mistakes in the file.
func (c *Config) readFile(name string, body []byte) error {
	r := fileReader{strictyaml.Parse(name, body, maxBrackets), c}
	if len(r.Errors) == 0 {
		r.section("", r.Root)
	}
	return r.Err()
}

// section reads a mapping. Each key of the mapping, with prefix before it, names a setting or
// a further section.
func (r fileReader) section(prefix string, n strictyaml.Node) {
	if n.Value == nil {
		return
	}
	members, ok := n.Value.([]strictyaml.Member)
	if !ok {
		r.Add(n.Position, "%swant settings such as queue_timeout: 60s, got %s", under(prefix), n.TypeName())
		return
	}
	for _, member := range members {
		key := prefix + member.Key
		if s, ok := lookup(key); ok {
			r.setting(s, member)
		} else if isSection(key) {
			r.section(key+".", member.Node)
		} else {
			r.Add(member.KeyAt, "unknown key %q%s", strictyaml.Clip(key), suggestion(prefix, member.Key))
		}
	}
}

// setting reads one value, and records its file and line as its source.
func (r fileReader) setting(s setting, member strictyaml.Member) {
	before := len(r.Errors)
	r.value(s, member.Node)
	if len(r.Errors) > before {
		return
	}
	if p, ok := s.field(r.c).(*Path); ok {
		*p = resolve(r.c.file, *p)
	}
	r.c.origins[s.key] = fmt.Sprintf("%s:%d", r.c.file, member.KeyAt.Line)
}

// value reads the value of a setting into the Config.
func (r fileReader) value(s setting, n strictyaml.Node) {
	switch field := s.field(r.c).(type) {
	case *[]string:
		r.texts(s, field, n)
	case *map[string]int:
		r.pools(s, field, n)
	case *map[string]int64:
		r.sizes(s, field, n)
	case *map[string]string:
		r.names(s, field, n)
	default:
		if !fits(field, n) {
			r.Add(n.Position, "%s: want %s, got %s", s.key, s.shape(), n.TypeName())
		} else if err := s.readText(r.c, n.Text); err != nil {
			r.Add(n.Position, "%s: %v", s.key, err)
		}
	}
}

// fits reports whether a YAML value can be a value of the field. A number does not fit where a
// text is wanted, and a text does not fit where a number is wanted.
func fits(field any, n strictyaml.Node) bool {
	_, isBool := n.Value.(bool)
	_, isNumber := n.Value.(json.Number)
	switch field.(type) {
	case *bool:
		return isBool
	case *int:
		return isNumber && !n.IsText
	case *Size:
		return isNumber || n.IsText
	}
	return n.IsText
}

func (r fileReader) texts(s setting, field *[]string, n strictyaml.Node) {
	items, ok := n.Value.([]strictyaml.Node)
	if !ok {
		r.Add(n.Position, "%s: want %s, got %s", s.key, s.shape(), n.TypeName())
		return
	}
	texts := []string{}
	for _, item := range items {
		if !item.IsText {
			r.Add(item.Position, "%s: want text (put it into quotes), got %s", s.key, item.TypeName())
		}
		texts = append(texts, item.Text)
	}
	*field = texts
}

func (r fileReader) pools(s setting, field *map[string]int, n strictyaml.Node) {
	pools := map[string]int{}
	for _, pool := range r.members(n, s.key, s.shape()) {
		name := s.key + "." + strictyaml.Clip(pool.Key)
		for _, member := range r.members(pool.Node, name, "{max_in_flight: 50}") {
			if member.Key != "max_in_flight" {
				r.Add(member.KeyAt, "unknown key %q; the key of a pool is max_in_flight", strictyaml.Clip(member.Key))
				continue
			}
			bound, err := wholeNumber(member.Text, 1)
			if err != nil || member.IsText {
				r.Add(member.Position, "%s.max_in_flight: want a whole number from 1, got %s", name, member.TypeName())
			}
			pools[pool.Key] = bound
		}
	}
	*field = pools
}

func (r fileReader) sizes(s setting, field *map[string]int64, n strictyaml.Node) {
	sizes := map[string]int64{}
	for _, member := range r.members(n, s.key, s.shape()) {
		bound, err := size(member.Text)
		if err != nil {
			r.Add(member.Position, "%s.%s: want a size such as 64KB, 10MB or 2GiB, got %s", s.key, strictyaml.Clip(member.Key), member.TypeName())
		}
		sizes[member.Key] = int64(bound)
	}
	*field = sizes
}

func (r fileReader) names(s setting, field *map[string]string, n strictyaml.Node) {
	names := map[string]string{}
	for _, member := range r.members(n, s.key, s.shape()) {
		if !member.IsText {
			r.Add(member.Position, "%s.%s: want text (put it into quotes), got %s", s.key, strictyaml.Clip(member.Key), member.TypeName())
		}
		names[member.Key] = member.Text
	}
	*field = names
}

// members returns the members of a mapping. It records any other value as a mistake.
func (r fileReader) members(n strictyaml.Node, key, want string) []strictyaml.Member {
	members, ok := n.Value.([]strictyaml.Member)
	if !ok {
		r.Add(n.Position, "%s: want %s, got %s", key, want, n.TypeName())
	}
	return members
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

// suggestion names the key that was probably meant. If no key is similar, it lists the keys of
// the section. At the top level it refers to `config print` instead.
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
	switch near := strictyaml.Nearest(name, names); {
	case near != "":
		return fmt.Sprintf("; did you mean %s?", prefix+near)
	case prefix != "":
		return "; there are " + strings.Join(names, ", ")
	}
	return "; `toolfleet config print` lists the keys"
}
