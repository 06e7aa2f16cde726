// The parts of the fleet's messages that agents need. The JSON Schemas of toolfleet describe
// the whole messages.

/**
 * Whose form a message has.
 * @typedef {"anthropic" | "openai-chat" | "openai-responses" | "bedrock" | "gemini" | "canonical"} Provider
 */

/**
 * A batch to run: the message of a model with its tool calls, as the model's API gave it.
 * @typedef {object} Batch
 * @property {string} session Id of the conversation. Its writes keep their order.
 * @property {string} id Idempotency key of the batch in its session. The same batch is never run twice.
 * @property {Provider} provider Whose form `message` has.
 * @property {any} message The model's message, or the list of output items of the Responses API.
 * @property {number} [timeoutMs] Calls that have not ended by then are answered as timed out.
 * @property {string} [catalogue] Digest of the definitions that the model was given, see `Fleet.catalogue`.
 * @property {number} [round] How many messages with calls the turn had before.
 * @property {Record<string, string>} [labels] Words for rules, tools and the audit log.
 */

/**
 * One call, for executors that hand over single calls.
 * @typedef {object} Call
 * @property {string} session Id of the conversation.
 * @property {string} id Idempotency key: the id that the model gave the call.
 * @property {string} name Name of the tool.
 * @property {any} [input] Arguments, an object. Default: `{}`.
 * @property {number} [timeoutMs] After this time the call ends with a timeout.
 * @property {Record<string, string>} [labels] Words for rules, tools and the audit log.
 */

/**
 * How a call failed, in words for the model.
 * @typedef {{code: string, message: string, retryable: boolean, details?: any}} CallProblem
 */

/**
 * A piece of content as MCP has it.
 * @typedef {{type: string, text?: string, data?: string, mimeType?: string, uri?: string, name?: string, resource?: any}} Block
 */

/**
 * The result of one call.
 * @typedef {object} Result
 * @property {number} index Place of the call in its message, from 0.
 * @property {string} call_id The provider's id of the call.
 * @property {string} tool Name of the tool.
 * @property {"read" | "write" | "compute"} [kind] What the tool does to the world.
 * @property {"ok" | "validation_error" | "semantic_error" | "hook_error" | "denied" | "error" | "timeout" | "aborted" | "skipped"
 *   | "expired" | "unknown_tool" | "outcome_unknown"} status How the call ended.
 * @property {any} [output] Any JSON value. Left out in a reply, whose `append` has it.
 * @property {Block[]} [content] Blocks in place of an output.
 * @property {CallProblem} [error] Why the call failed.
 * @property {number} duration_ms Time in the worker.
 * @property {number} queue_ms Time in the queue.
 * @property {number} attempt How many attempts at the call began. 0: it never started.
 * @property {boolean} was_concurrent It ran beside another call of its batch.
 */

/**
 * The answer to a batch.
 * @typedef {object} Reply
 * @property {string} batch Id of the batch.
 * @property {string} session Id of the session.
 * @property {Provider} provider Whose form `append` has.
 * @property {"completed" | "aborted" | "refused"} status `aborted`: somebody ended the batch;
 *   every call still has a result.
 * @property {string} digest SHA-256 of the batch, in hex.
 * @property {any[]} append What to append to the history: the results, then the steering
 *   messages.
 * @property {Result[]} results One for each call, in call order. Empty: the model has made no calls.
 * @property {any} reinjection The results in the provider's own shape; null without calls.
 * @property {any[]} [steering] The steering messages that were sent meanwhile.
 */

/**
 * Something that happens to a batch.
 * @typedef {object} Event
 * @property {string} type `start`, `awaiting_approval`, `running`, `progress`, `hook`, `end`, `result`, `reply`; `gap` in the stream of all
 *   sessions: something may have been missed.
 * @property {string} [session] Id of the session.
 * @property {string} [batch] Id of the batch.
 * @property {number} [index] Place of the call; -1 in events of the whole batch.
 * @property {string} [call_id] The provider's id of the call.
 * @property {string} [tool] Name of the tool.
 * @property {{fraction?: number, text?: string}} [progress] How far the call is.
 * @property {Result} [result] How it ended.
 * @property {string} [status] How the batch ended.
 */

export {};
