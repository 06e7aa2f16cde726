package config

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Effective is a setting with its value in effect.
type Effective struct {
	Key   string `json:"key"`
	Value string `json:"value"` // as written in a file; secrets are hidden
	From  string `json:"from"`  // "default", a file and line, a variable or a flag
	Env   string `json:"env"`
	About string `json:"about"`
}

// Effective lists every setting, in the order of the table.
func (c *Config) Effective() []Effective {
	list := make([]Effective, len(settings))
	for i, s := range settings {
		list[i] = Effective{s.key, s.show(c), cmp.Or(c.origins[s.key], "default"), Env(s.key), s.about}
	}
	return list
}

// Print writes the settings in effect as YAML that can be read again, each with its source. It
// hides secrets.
func (c *Config) Print(w io.Writer) error {
	var out strings.Builder
	section := ""
	for _, e := range c.Effective() {
		s, _ := lookup(e.Key)
		line := header(&out, &section, e.Key) + ": " + e.Value
		note := e.From
		if note == "default" && s.derived != "" {
			note += ": " + s.derived
		}
		fmt.Fprintf(&out, "%-42s # %s\n", line, note)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// header writes the section of a key if the key before it was in another section. It returns
// the key's name within the section.
func header(out *strings.Builder, section *string, key string) string {
	first, rest, nested := strings.Cut(key, ".")
	if !nested {
		*section = ""
		return key
	}
	if *section != first {
		fmt.Fprintf(out, "%s:\n", first)
		*section = first
	}
	return "  " + rest
}

// Starter returns a settings file to start from. It has every setting with its description,
// and with its default as a comment. The settings in set are written with their values.
func Starter(set map[string]string) []byte {
	var out strings.Builder
	out.WriteString("# Settings of toolfleet. A flag or a TOOLFLEET_ variable goes before what stands here;\n" +
		"# `toolfleet config print` shows what is in effect, `toolfleet config schema` the JSON Schema of this file.\n")
	section := ""
	for _, s := range settings {
		first, rest, nested := strings.Cut(s.key, ".")
		indent, name, mark := "", s.key, "# "
		value, given := set[s.key]
		if given {
			mark = ""
		}
		if nested {
			indent, name = "  ", rest
			if section != first {
				fmt.Fprintf(&out, "\n%s:\n", first)
			}
			section = first
		} else {
			section = ""
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "%s# %s.%s\n", indent, strings.TrimSuffix(s.about, "."), defaultNote(s))
		fmt.Fprintf(&out, "%s%s%s: %s\n", indent, mark, name, s.example(value))
	}
	return []byte(out.String())
}

func defaultNote(s setting) string {
	if s.derived == "" {
		return ""
	}
	return " Default: " + s.derived + "."
}

// example returns what the starter file shows for a setting: the given value, or the default
// if the given value is "".
func (s setting) example(value string) string {
	c := defaults()
	c.derive()
	if value != "" {
		_ = s.readText(c, value) // the value comes from the code; tests read it back
	}
	return s.show(c)
}

// Schema returns the JSON Schema of toolfleet.yaml.
func Schema() []byte {
	root := object("Settings of toolfleet")
	for _, s := range settings {
		section, name := root, s.key
		if first, rest, nested := strings.Cut(s.key, "."); nested {
			properties := root["properties"].(map[string]any)
			if properties[first] == nil {
				properties[first] = object("")
			}
			section, name = properties[first].(map[string]any), rest
		}
		section["properties"].(map[string]any)[name] = s.schema()
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "toolfleet.yaml"
	return rawjson.MustMarshal(root)
}

func object(about string) map[string]any {
	o := map[string]any{"type": []string{"object", "null"}, "additionalProperties": false, "properties": map[string]any{}}
	if about != "" {
		o["description"] = about
	}
	return o
}

const durationPattern = `^\+?([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`

// schema returns the JSON Schema of one value.
func (s setting) schema() map[string]any {
	about := s.about + ". Environment: " + strings.Join(s.envNames(), ", ") + "."
	if s.derived != "" {
		about += " Default: " + s.derived + "."
	}
	v := map[string]any{"description": about}
	switch s.field(&Config{}).(type) {
	case *bool:
		v["type"] = "boolean"
	case *int:
		v["type"], v["minimum"] = "integer", s.least
	case *time.Duration:
		v["type"], v["pattern"] = "string", durationPattern
	case *Interval:
		v["type"], v["pattern"] = "string", "^always$|"+durationPattern
	case *Size:
		v["anyOf"] = sizeSchema()
	case *[]string:
		v["type"], v["items"] = "array", map[string]any{"type": "string"}
	case *map[string]int:
		pool := object("")
		pool["type"] = "object"
		pool["properties"] = map[string]any{"max_in_flight": map[string]any{"type": "integer", "minimum": 1}}
		v["type"], v["additionalProperties"] = "object", pool
	case *map[string]int64:
		v["type"], v["additionalProperties"] = "object", map[string]any{"anyOf": sizeSchema()}
	case *map[string]string:
		v["type"], v["additionalProperties"] = "object", map[string]any{"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
	default:
		v["type"] = "string"
		if len(s.enum) > 0 {
			v["enum"] = s.enum
		}
	}
	if standard := s.fallback(); standard != s.derived {
		v["default"] = standard
		if n, ok := s.field(defaults()).(*int); ok {
			v["default"] = *n
		}
	}
	return v
}

func sizeSchema() []any {
	return []any{map[string]any{"type": "string", "pattern": sizePattern.String()}, map[string]any{"type": "integer", "minimum": 0, "maximum": 999999999}}
}
