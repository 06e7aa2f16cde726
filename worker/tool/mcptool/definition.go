package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Bounds on what a server may list.
const (
	maxTools       = 1000
	maxPages       = 200
	maxName        = 128
	maxDescription = 20_000
	maxSchema      = 256 << 10
	maxMeta        = 16 << 10
)

// metaPrefix begins the names of the members of `_meta` that are for toolfleet.
const metaPrefix = "toolfleet/"

// Definition holds the parts of a server's tool definition that toolfleet uses.
type Definition struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
	ReadOnly    bool            `json:"read_only,omitempty"`
	Destructive *bool           `json:"destructive,omitempty"`
	Idempotent  bool            `json:"idempotent,omitempty"`
	// Meta holds the members of `_meta` that begin with toolfleet/, without that prefix.
	Meta map[string]any `json:"meta,omitempty"`
}

// Digest returns a hash that identifies exactly this definition.
func (d Definition) Digest() string { return messages.Digest(rawjson.MustMarshal(d)) }

// Refusal names a tool that the server lists and toolfleet does not serve.
type Refusal struct{ Name, Why string }

func (r Refusal) String() string { return r.Name + ": " + r.Why }

// List holds the tools that a server lists: those that can be served and those that are
// refused.
type List struct {
	Tools   []Definition
	Refused []Refusal
}

// quoted returns a name that a server chose, in quotes and cut to maxName, for texts that
// people read.
func quoted(name string) string { return fmt.Sprintf("%.*q", maxName, name) }

// find returns the definition with a name.
func (l List) find(name string) (Definition, bool) {
	for _, d := range l.Tools {
		if d.Name == name {
			return d, true
		}
	}
	return Definition{}, false
}

// list asks a server for its tools. onlyAsTask reports whether a tool runs only as a task of
// the protocol. toolfleet does not start tasks, so list refuses such tools.
func list(ctx context.Context, session *mcp.ClientSession, onlyAsTask func(name string) bool) (List, error) {
	var all List
	seen := map[string]bool{}
	params := &mcp.ListToolsParams{}
	for range maxPages {
		page, err := session.ListTools(ctx, params)
		if err != nil {
			return List{}, fmt.Errorf("list its tools: %w", short(err))
		}
		if len(seen)+len(page.Tools) > maxTools {
			return List{}, fmt.Errorf("it lists more than %d tools", maxTools)
		}
		for _, t := range page.Tools {
			d, err := define(t)
			switch {
			case onlyAsTask(t.Name):
				err = errors.New("it runs only as a task of the protocol (taskSupport: required), which toolfleet does not start")
			case seen[t.Name]:
				err = errors.New("it is listed twice")
			case err == nil:
				all.Tools = append(all.Tools, d)
			}
			if err != nil {
				all.Refused = append(all.Refused, Refusal{quoted(t.Name), err.Error()})
			}
			seen[t.Name] = true
		}
		if page.NextCursor == "" {
			return all, nil
		}
		params.Cursor = page.NextCursor
	}
	return List{}, fmt.Errorf("its list of tools has more than %d pages", maxPages)
}

// define reads the definition of a tool. The error says why the tool cannot be served.
func define(t *mcp.Tool) (Definition, error) {
	schema, err := rawjson.Marshal(t.InputSchema)
	if err != nil {
		return Definition{}, fmt.Errorf("its schema cannot be read: %w", err)
	}
	d := Definition{Name: t.Name, Title: clean(t.Title), Description: clean(t.Description), InputSchema: schema}
	switch {
	case t.Name == "" || len(t.Name) > maxName:
		return d, fmt.Errorf("its name has %d bytes; want 1 to %d", len(t.Name), maxName)
	case len(d.Description)+len(d.Title) > maxDescription:
		return d, fmt.Errorf("its description has more than %d bytes", maxDescription)
	case len(schema) > maxSchema:
		return d, fmt.Errorf("its schema has more than %d bytes", maxSchema)
	}
	if a := t.Annotations; a != nil {
		d.ReadOnly, d.Destructive, d.Idempotent = a.ReadOnlyHint, a.DestructiveHint, a.IdempotentHint
	}
	for name, value := range t.Meta {
		if own, ok := strings.CutPrefix(name, metaPrefix); ok {
			if d.Meta == nil {
				d.Meta = map[string]any{}
			}
			d.Meta[own] = value
		}
	}
	if meta, err := rawjson.Marshal(d.Meta); err != nil || len(meta) > maxMeta {
		return d, fmt.Errorf("its _meta has more than %d bytes", maxMeta)
	}
	return d, nil
}

// clean removes characters that could mislead a terminal or a reader: control characters except
// line breaks and tabs, and characters that change the direction of text.
func clean(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return c
		case unicode.IsControl(c), unicode.Is(unicode.Bidi_Control, c), unicode.Is(unicode.Cf, c) && c >= 0xE0000:
			return -1
		}
		return c
	}, strings.ToValidUTF8(text, "\uFFFD"))
}
