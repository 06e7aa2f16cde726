package export

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sort"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Strict says which tools get a strict copy. The package comment defines the values.
type Strict string

// The values of Strict.
const (
	StrictDefault  Strict = ""
	StrictOff      Strict = messages.StrictOff
	StrictExact    Strict = messages.StrictExact
	StrictNullable Strict = messages.StrictNullable
)

// Options are an agent's choices. The zero value suits every model of a provider.
type Options struct {
	Strict Strict
	// Cache puts the provider's cache mark at the end of the tools, if the provider has one
	// (Anthropic: cache_control on the last tool; Bedrock: a cachePoint after it). It is off
	// by default, for four reasons. A request may have only four marks, and the agent should
	// place them. A mark on the system prompt covers the tools too. Writing to the cache costs
	// extra. Bedrock refuses the mark for models that cannot cache.
	Cache bool
}

// Definition is the definition of one tool for a provider.
type Definition struct {
	Tool        schemas.Tool    // as it was passed in
	Name        string          // the provider's name for the tool: see [Name]
	Description string          // codecs omit ""
	Schema      json.RawMessage // canonical JSON; its root is an object
	Strict      bool            // Schema is a strict copy
}

// dialect is what a provider requires of tool definitions.
type dialect struct {
	names    *regexp.Regexp // the names that it accepts
	maxTools int            // in one request; 0: no known limit
	verbatim bool           // the model gets the tool's own schema
	bareRoot bool           // it accepts no allOf, anyOf, oneOf, not or enum at the root
	strict   *subset        // nil: no strict mode
	// strictFirst says that StrictDefault makes a copy strict if the copy is exact.
	strictFirst bool
}

var (
	// Anthropic's newest deployments accept 128 characters, all others 64.
	plainNames = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	// Gemini accepts 128 characters; older deployments accept 64.
	geminiNames = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}$`)
	anyNames    = regexp.MustCompile(`(?s)^.+$`)
)

var dialects = map[messages.Provider]dialect{
	messages.Anthropic:       {names: plainNames, bareRoot: true, strict: &claudeSubset},
	messages.OpenAIChat:      {names: plainNames, maxTools: 128, bareRoot: true, strict: &openaiSubset},
	messages.OpenAIResponses: {names: plainNames, bareRoot: true, strict: &openaiSubset, strictFirst: true},
	messages.Bedrock:         {names: plainNames, bareRoot: true, strict: &claudeSubset},
	messages.Gemini:          {names: geminiNames, maxTools: 512},
	messages.Canonical:       {names: anyNames, verbatim: true},
}

// Prepare returns the definitions of tools for a provider, sorted by the provider's names.
// It returns an error if there are too many tools, if two tools have the same name, or if a
// schema does not describe an object.
func Prepare(p messages.Provider, tools []schemas.Tool, o Options) ([]Definition, error) {
	d, ok := dialects[p]
	if !ok {
		return nil, fmt.Errorf("provider %.80q: want one of %v", p, messages.Providers)
	}
	switch o.Strict {
	case StrictDefault, StrictOff, StrictExact, StrictNullable:
	default:
		return nil, fmt.Errorf("strict %.80q: want off, exact or nullable", o.Strict)
	}
	if d.maxTools > 0 && len(tools) > d.maxTools {
		return nil, fmt.Errorf("%d tools: %s takes at most %d in one request", len(tools), p, d.maxTools)
	}
	if _, err := NewNames(p, toolNames(tools)...); err != nil {
		return nil, err
	}
	defs := make([]Definition, 0, len(tools))
	var strict counts
	for _, t := range tools {
		def, seen, err := d.define(t, Name(p, t.Name), o.Strict)
		if err != nil {
			return nil, fmt.Errorf("tool %.80q: input_schema: %w", t.Name, err)
		}
		defs = append(defs, def)
		strict.tools += seen.tools
		strict.optional += seen.optional
		strict.unions += seen.unions
	}
	if d.strict != nil {
		if err := d.strict.checkRequest(p, strict); err != nil {
			return nil, err
		}
	}
	sort.Slice(defs, func(i, j int) bool { return defs[i].Name < defs[j].Name })
	return defs, nil
}

// define returns one definition. If the definition is strict, seen is what it uses of the
// request's limits.
func (d dialect) define(t schemas.Tool, name string, wish Strict) (def Definition, seen counts, err error) {
	def = Definition{Tool: t, Name: name, Description: t.Description}
	schema, err := parse(t.InputSchema)
	if err != nil {
		return def, seen, err
	}
	if strict, takes, ok := d.strictCopy(schema, wish); ok {
		schema, seen, def.Strict = strict, takes, true
	} else if !d.verbatim {
		if schema, err = plain(schema, d.bareRoot); err != nil {
			return def, seen, err
		}
	}
	def.Schema, err = rawjson.Marshal(schema) // maps are written with sorted keys
	return def, seen, err
}

func (d dialect) strictCopy(schema node, wish Strict) (node, counts, bool) {
	if d.strict == nil || wish == StrictOff || wish == StrictDefault && !d.strictFirst {
		return nil, counts{}, false
	}
	return d.strict.apply(schema, wish)
}

func toolNames(tools []schemas.Tool) []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return names
}
