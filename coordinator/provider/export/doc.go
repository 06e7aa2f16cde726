// Package export holds what the codecs share when they offer tools to a model: the order, the
// names, the schemas, the limits. A codec adds only the wrapping of its dialect.
//
//	tools, any order -> Prepare -> definitions, by name -> codec -> bytes for a request's tools
//
// The bytes depend only on the tools: not on their order, the process or the time. A prompt cache
// begins with the tools, so one changed byte there makes all of it useless.
//
// # Schemas
//
// The model gets a copy of the tool's schema. Workers validate against the tool's own schema, so
// the copy may be narrower but never wider: an input that fits the copy is not refused later. Only
// the third of these rules makes a copy wider:
//
//   - The root says "type":"object" and has "properties". "$schema" is left out. An array that says
//     nothing about its items gets "items":{}.
//   - An object that lists its properties and says nothing about others gets
//     "additionalProperties":false. An author who wants it open writes
//     "additionalProperties":true, or lists no properties.
//   - Anthropic, OpenAI and Claude on Bedrock refuse allOf, anyOf, oneOf, not and enum at the root,
//     and fail the whole request. For them, these keywords move, as text, into the root's
//     description: the model still reads them and workers still enforce them.
//
// The canonical dialect gets the tool's schema unchanged, except for the root's type.
//
// # Strict mode
//
// A strict copy makes the provider constrain the model's sampling to the schema. Prepare never
// removes a constraint to make a copy strict. A tool gets a plain copy instead if its schema has a
// keyword outside the provider's subset, an object open to unknown properties, or nesting beyond
// the provider's bounds. [Definition.Strict] says whether a copy is strict. In a strict copy every
// object has "additionalProperties":false. OpenAI also requires all properties in "required", so
// its copy is exact only for a tool without optional properties. These options ask for strict
// copies:
//
//   - [StrictDefault]: as the provider would. The Responses API reads a missing flag as true, so
//     the flag is always sent: true if the copy is exact and within the subset that every strict
//     model accepts, else false. The other providers default to false and get no flag. On
//     Anthropic in particular, all strict tools of a request share one grammar with low limits,
//     and the caller decides what to spend them on.
//   - [StrictExact]: wherever the copy means the same as the tool's schema.
//   - [StrictNullable]: also where optional properties must become required and nullable. The
//     model then sends null for a property that it would have left out, and the tool's own schema
//     refuses that null. An agent that exports like this must pass each input through [DropNulls]
//     before it is validated.
//   - [StrictOff]: nowhere.
//
// # Names
//
// A name that a provider refuses is replaced by a stable name with a hash at its end; [Names] maps
// both ways. No other name is ever mapped, so a model cannot reach a tool by an alias.
//
// The caller decides which tools an agent may see before it passes them in.
package export
