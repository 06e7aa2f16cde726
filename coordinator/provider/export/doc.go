// Package export has what the codecs share when they offer tools to a model: the order of the
// tools, their names, their schemas, and the limits. A codec adds only the form of its
// dialect.
//
//	tools, any order -> Prepare -> definitions, by name -> codec -> bytes for a request's tools
//
// The bytes depend only on the tools: not on their order, the process or the time. A prompt
// cache begins with the tools, so a single changed byte in them makes the whole cache useless.
//
// # Schemas
//
// The model gets a copy of the tool's schema. Workers validate against the tool's own schema.
// So the copy may be narrower, but not wider: an input that fits the copy is then never
// refused by a worker. The following rules change the copy, and only the third makes it wider:
//
//   - The root gets "type":"object" and "properties". "$schema" is left out. An array that
//     says nothing about its items gets "items":{}.
//   - An object that lists its properties and says nothing about others gets
//     "additionalProperties":false. An author who wants the object open writes
//     "additionalProperties":true, or lists no properties.
//   - Anthropic, OpenAI and Claude on Bedrock do not accept allOf, anyOf, oneOf, not and enum
//     at the root: they fail the whole request. For these providers, the keywords move, as
//     text, into the root's description. The model still reads them and workers still enforce
//     them.
//
// The canonical dialect gets the tool's schema unchanged, except for the root's type.
//
// # Strict mode
//
// With a strict copy, the provider makes the model keep to the schema while it samples.
// Prepare never removes a constraint to make a copy strict. The tool gets a plain copy instead
// if its schema has a keyword outside the provider's subset, an object that is open to unknown
// properties, or nesting over the provider's limits. [Definition.Strict] says whether a copy
// is strict. In a strict copy every object has "additionalProperties":false. OpenAI also wants
// all properties in "required", so its copy is exact only if the tool has no optional
// properties. These options ask for strict copies:
//
//   - [StrictDefault]: what the provider does by default. The Responses API reads a missing
//     flag as true, so the flag is always sent: true if the copy is exact and within the
//     subset that every strict model accepts, else false. The other providers default to
//     false and get no flag. On Anthropic, all strict tools of a request share one grammar
//     with low limits, and the caller decides which tools to use them for.
//   - [StrictExact]: strict for each copy that means the same as the tool's schema.
//   - [StrictNullable]: strict also for a copy whose optional properties must become required
//     and nullable. The model then sends null for a property that it would have left out, and
//     the tool's own schema refuses that null. An agent that exports like this must pass each
//     input through [DropNulls] before it is validated.
//   - [StrictOff]: never strict.
//
// # Names
//
// If a provider does not accept a name, the model gets a stable other name, which ends with a
// hash. [Names] maps both ways. A name that the provider accepts is never mapped, so a model
// cannot call a tool by an alias.
//
// The caller decides which tools an agent may see, and passes only those.
package export
