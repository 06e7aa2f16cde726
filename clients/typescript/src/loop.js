import { Refused, Stopped } from "./errors.js";

/**
 * The state of a loop. A program stores it to go on after a crash.
 * @typedef {object} Conversation
 * @property {string} session Id of the conversation.
 * @property {import("./messages.js").Provider} provider The provider in whose form the
 *   messages are.
 * @property {any[]} history Valid for the provider at any time: each call in it is answered. Push the user's message before a turn.
 * @property {any} [message] The model's newest message while its calls are not answered. It is not part of `history`.
 * @property {string} [catalogue] Digest of the definitions that the model is given.
 * @property {number} [rounds] How many messages with calls of the turn are answered.
 */

/**
 * Asks a model for its next message. Returns the message in the form that the next request
 * needs: a message, or the list of output items of the Responses API.
 * @typedef {(history: any[], options: {signal?: AbortSignal}) => Promise<any>} Model
 */

/**
 * @typedef {object} LoopOptions
 * @property {number} [maxRounds] How many messages with calls a turn may have. Default: 5.
 * @property {(conversation: Conversation) => unknown} [save] Stores the conversation each time
 *   it has changed. A loop over the stored conversation continues there.
 * @property {(event: import("./messages.js").Event) => void} [onEvent] Gets the live events of
 *   the calls.
 * @property {AbortSignal} [signal] Ends the waiting.
 */

/**
 * The id of a batch is made from the history before its message. So after a crash a loop over
 * the same history runs nothing twice. It throws `Stopped` after the last round or an abort,
 * and `Refused` when nothing ran. After `Refused` the message is dropped: change the history
 * before another loop.
 * @param {import("./fleet.js").Fleet} fleet
 * @param {Conversation} conversation
 * @param {Model} ask
 * @param {LoopOptions} [options]
 */
export async function loop(fleet, conversation, ask, { maxRounds = 5, save = () => {}, onEvent, signal } = {}) {
  for (;;) {
    const { session, provider, history, catalogue } = conversation;
    if (conversation.message === undefined) {
      conversation.message = await ask(history, { signal });
      await save(conversation);
    }
    const { message } = conversation;
    let reply;
    try {
      const round = (conversation.rounds ?? 0) + 1;
      reply = await fleet.run({ session, id: await roundID(history), provider, message, catalogue, round, signal, onEvent });
    } catch (error) {
      if (error instanceof Refused) {
        delete conversation.message;
        await save(conversation);
      }
      throw error;
    }
    history.push(...(Array.isArray(message) ? message : [message]), ...reply.append);
    delete conversation.message;
    conversation.rounds = (conversation.rounds ?? 0) + 1;
    const done = reply.append.length === 0; // no calls, and no steering message
    const why = done ? undefined : reply.status === "aborted" ? "aborted" : conversation.rounds >= maxRounds ? "max_rounds" : undefined;
    if (done || why) delete conversation.rounds;
    await save(conversation);
    if (why) throw new Stopped(why);
    if (done) return;
  }
}

/**
 * The id of the batch that follows a history. It stays the same when the history is stored and read again.
 * @param {any[]} history
 */
async function roundID(history) {
  const text = history.map((message) => JSON.stringify(message, sorted) + "\n").join("");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return `round-${history.length}-${Array.from(hash.slice(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Sorts the members of objects, for JSON.stringify.
 * @param {string} _
 * @param {any} value
 */
const sorted = (_, value) =>
  value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value;
