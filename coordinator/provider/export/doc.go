// Package export holds what the codecs share when they offer tools to a model: the order of
// the tools, their names, their schemas, and the limits. A codec only adds the form of its
// dialect.
//
//	tools, any order -> Prepare -> definitions, by name -> codec -> bytes for a request's tools
//
// The bytes depend only on the tools, and not on their order, the process or the time. A
// prompt cache begins with the tools, so one changed byte in them makes the whole cache
// useless.
//
// # Schemas
//
// The model gets a copy of the tool's schema. Workers validate against the tool's own
// schema. So the copy may be narrower but not wider: then an input that fits the copy is
// not refused later. Of these rules, only the third makes a copy wider:
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
// A strict copy makes the provider keep the model to the schema while it samples. Prepare
// never removes a constraint to make a copy strict. If a schema has a keyword outside the
// provider's subset, an object that is open to unknown properties, or nesting over the
// provider's limits, the tool gets a plain copy instead. [Definition.Strict] says whether a
// copy is strict. In a strict copy every object has "additionalProperties":false. OpenAI
// also requires all properties in "required", so its copy is exact only if the tool has no
// optional properties. These options ask for strict copies:
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
// If a provider refuses a name, it is replaced by a stable name that ends with a hash.
// [Names] maps both ways. No other name is mapped, so a model cannot call a tool by an
// alias.
//
// The caller decides which tools an agent may see, and passes only those.
package export
