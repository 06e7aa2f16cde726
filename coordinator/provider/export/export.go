package export

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sort"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Strict says for which tools a strict copy is sent. The package comment has the rules.
type Strict string

// The ways to ask for strict copies.
const (
	StrictDefault  Strict = ""
	StrictOff      Strict = "off"
	StrictExact    Strict = "exact"
	StrictNullable Strict = "nullable"
)

// Options are an agent's wishes. The zero value suits every model of a provider.
type Options struct {
	Strict Strict
	// Cache ends the tools with the provider's cache mark, where it has one (Anthropic: cache_control on
	// the last tool; Bedrock: a cachePoint after it). Off by default: a request may hold four marks,
	// which are the agent's to place; one on its system prompt covers the tools already; a write to the
	// cache costs extra; and Bedrock refuses the mark for models that cannot cache.
	Cache bool
}

// Definition is one tool as a provider is to be told of it.
type Definition struct {
	Tool        schemas.Tool    // as it was handed in
	Name        string          // the provider's name for it: see [Name]
	Description string          // "" is left out by the codecs
	Schema      json.RawMessage // canonical JSON; its root is an object
	Strict      bool            // Schema is a strict copy
}

// dialect is what a provider demands of tool definitions.
type dialect struct {
	names    *regexp.Regexp // which names it takes
	maxTools int            // in one request; 0: no limit is known
	verbatim bool           // the schema is not changed for a model's sake
	bareRoot bool           // no allOf, anyOf, oneOf, not or enum at the root
	strict   *subset        // nil: no strict mode
	// strictFirst: without a wish, exact copies are strict.
	strictFirst bool
}

var (
	// Anthropic takes 128 characters on its newest deployments and 64 on the others.
	plainNames = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	// Gemini takes 128 characters, and 64 on older deployments.
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

// Prepare is the definitions of tools for a provider, sorted by the provider's names. Too many tools,
// two tools under one name and a schema that describes no object are errors that say which and how many.
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

// define is one definition, and where it is strict, what it takes of the request's limits.
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
	def.Schema, err = messages.Marshal(schema) // maps are written with sorted keys
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
