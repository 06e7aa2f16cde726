package exporttest

import (
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Tools returns the set of tools for all codecs. Each tool has something that a dialect could
// get wrong.
func Tools() []schemas.Tool {
	tool := func(name, description string, kind messages.Kind, schema string) schemas.Tool {
		return schemas.Tool{Name: name, Description: description, Kind: kind, InputSchema: json.RawMessage(schema)}
	}
	return []schemas.Tool{
		// This tool has a pattern, and characters that HTML escaping would change.
		tool("lookup_order", `Fetch an order by its id. Use it when status < "delivered" && id is known.`, messages.KindRead, `{
			"type": "object",
			"properties": {"order_id": {"type": "string", "pattern": "^ORD-\\d+$", "minLength": 5, "maxLength": 40}},
			"required": ["order_id"],
			"additionalProperties": false
		}`),
		// This tool has objects in objects in arrays, an enum, optional properties, and digits
		// beyond 2^53.
		tool("search_products", "Search the catalog. Returns at most `limit` products.", messages.KindRead, `{
			"$schema": "https://json-schema.org/draft/2020-12/schema",
			"type": "object",
			"properties": {
				"query": {"type": "string", "maxLength": 200},
				"category": {"type": "string", "enum": ["books", "games", "music"]},
				"after": {"type": "integer", "minimum": 0, "maximum": 9007199254740993},
				"filters": {
					"type": "array",
					"items": {
						"type": "object",
						"properties": {
							"field": {"type": "string"},
							"range": {"type": "object", "properties": {"min": {"type": "number"}, "max": {"type": "number"}}}
						},
						"required": ["field"]
					}
				},
				"tags": {"type": "array"},
				"extra": {"type": "object"}
			},
			"required": ["query"]
		}`),
		// This tool has optional properties in the strict subset: required and nullable in a
		// nullable copy.
		tool("book_trip", "Book a trip.", messages.KindWrite, `{
			"type": "object",
			"properties": {
				"destination": {"type": "string", "description": "IATA code"},
				"class": {"type": "string", "enum": ["economy", "business"]},
				"passengers": {
					"type": "array",
					"items": {
						"type": "object",
						"properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
						"required": ["name"]
					}
				},
				"note": {"type": ["string", "null"]},
				"payer": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"company": {"type": "string"}}, "required": ["company"]}]}
			},
			"required": ["passengers", "destination"]
		}`),
		// This tool has no arguments, and the schema says so.
		tool("ping", "", messages.KindCompute, `{"type": "object", "properties": {}, "additionalProperties": false}`),
		// This tool's schema says nothing about arguments.
		tool("now", "The current time.", messages.KindCompute, ``),
		// This tool has a name that starts with a digit, and a schema that is strict except
		// for open objects.
		tool("3d_render", "Render a scene.", messages.KindCompute, `{
			"type": "object",
			"properties": {
				"scene": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
				"quality": {"type": "string", "enum": ["draft", "final"]}
			},
			"required": ["scene", "quality"]
		}`),
		// This tool has the longest name.
		tool("z"+strings.Repeat("y", 62)+"x", "Has a name of 64 characters.", messages.KindRead, `{
			"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": true
		}`),
		// This tool has a description that is not ASCII.
		tool("translate", "Übersetzt Text — 翻訳する 🌍.", messages.KindCompute, `{
			"type": "object",
			"properties": {"text": {"type": "string", "description": "El texto, en español"}, "to": {"type": "string", "const": "de"}},
			"required": ["text", "to"]
		}`),
		// This tool has a choice at the root, as generators of MCP servers often write it.
		tool("update_issue", "Change an issue.", messages.KindWrite, `{
			"type": "object",
			"description": "What to change.",
			"properties": {"id": {"type": "string"}, "title": {"type": "string"}, "open": {"type": "boolean"}},
			"required": ["id"],
			"anyOf": [{"required": ["title"]}, {"required": ["open"]}]
		}`),
	}
}
