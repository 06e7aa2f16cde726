// Package export is what the codecs share when they tell a model which tools there are: the order, the
// names, the schemas, the limits. A codec adds only the wrapping of its dialect.
//
//	tools, any order -> Prepare -> definitions, by name -> codec -> bytes for the request's "tools"
//
// The bytes depend on the tools and nothing else: not on the order in which they come, nor on the
// process, nor on the time. A prompt cache holds the tools first, so one changed byte there loses all of it.
//
// # Schemas
//
// The model is told of a copy of the tool's schema. Workers validate against the tool's own, so the copy
// may be narrower but never wider: what fits the copy is not refused later. The one exception is last.
//
//   - The root says "type":"object" and has "properties"; "$schema" is left out; an array that says
//     nothing of its items says "items":{}.
//   - An object that lists its properties and says nothing of others gets "additionalProperties":false.
//     An author who wants it open says "additionalProperties":true, or lists no properties.
//   - allOf, anyOf, oneOf, not and enum at the root are refused by Anthropic, OpenAI and Claude on
//     Bedrock, and fail the whole request. There they move, as text, into the root's description: the
//     model still reads them and workers still enforce them.
//
// The canonical dialect gets the tool's schema as it is, but for the root's type.
//
// # Strict mode
//
// A strict copy makes the provider constrain the model's sampling to the schema. It is never had by
// taking a constraint away: a tool with a keyword outside the provider's subset, with an object open to
// unknown properties, or with nesting beyond its bounds is sent plain, and [Definition.Strict] says so.
// In a strict copy every object has "additionalProperties":false. OpenAI also wants all properties in
// "required", which is exact only for a tool without optional ones. How strictness is asked for:
//
//   - [StrictDefault]: as the provider would. The Responses API takes a missing flag for true, so it is
//     always sent: true where the copy is exact and within the subset that every strict model takes, else
//     false. The others default to false and get no flag. On Anthropic in particular strict tools share
//     one grammar with low limits for the whole request, which is the caller's to spend.
//   - [StrictExact]: wherever the copy means what the tool's schema means.
//   - [StrictNullable]: also where optional properties must become required and nullable. The model then
//     sends null for what it would have left out, and the tool's own schema refuses that null: whoever
//     exports like this passes each input through [DropNulls] before it is validated.
//   - [StrictOff]: nowhere.
//
// # Names
//
// A name that a provider refuses is replaced by a stable one with a hash at its end; [Names] maps both
// ways. Nothing else is ever mapped, so a model cannot reach a tool by an alias.
//
// Which tools an agent may know of at all is decided before they come here.
package export
