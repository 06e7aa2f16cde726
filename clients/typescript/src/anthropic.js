/**
 * A fleet behind the tool runner of the Anthropic SDK.
 *
 *     const runner = anthropic.beta.messages.toolRunner({ model, max_tokens, messages, thread: false, tools: await fleet.tools("anthropic") });
 *     for await (const message of fleetRunner(runner, fleet, { session })) console.log(message.content);
 *
 * @module
 */

/**
 * Yields the items of the runner, and runs all calls of each message as one batch of the
 * fleet. The id of the batch is the id of the message. The runner needs `thread: false`, and
 * plain definitions as tools.
 * @template {boolean} Stream
 * @param {import("@anthropic-ai/sdk/lib/tools/BetaToolRunner").BetaToolRunner<Stream>} runner
 * @param {import("./fleet.js").Fleet} fleet
 * @param {{session: string, signal?: AbortSignal, onEvent?: (event: import("./messages.js").Event) => void}} options
 */
export async function* fleetRunner(runner, fleet, options) {
  for await (const item of runner) {
    yield item;
    /** @type {any} */
    const message = "finalMessage" in item ? await item.finalMessage() : item;
    const reply = await fleet.run({ ...options, id: message.id, provider: "anthropic", message });
    if (reply.append.length === 0) continue;
    const { role, content } = message;
    runner.setMessagesParams((params) => ({ ...params, messages: [...params.messages, { role, content }, ...reply.append] }));
  }
}
