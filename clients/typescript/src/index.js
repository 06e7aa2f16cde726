/**
 * The agent's side of toolfleet: hand over the message of a model, get back what to append to the conversation.
 *
 *     import { connect } from "toolfleet";
 *     const fleet = connect();
 *     const reply = await fleet.run({ session, id: message.id, provider: "anthropic", message });
 *     history.push(message, ...reply.append);
 *
 * It needs `fetch` and nothing else, so it runs in Node 20, Deno, Bun and edge runtimes.
 * @module
 */
import { Fleet } from "./fleet.js";
import { Api } from "./http.js";

export { CallFailed, FleetError, outputOf, Refused, Stopped, textOf, Unavailable } from "./errors.js";
export { Fleet } from "./fleet.js";

/**
 * @typedef {import("./messages.js").Provider} Provider
 * @typedef {import("./messages.js").Batch} Batch
 * @typedef {import("./messages.js").Call} Call
 * @typedef {import("./messages.js").Reply} Reply
 * @typedef {import("./messages.js").Result} Result
 * @typedef {import("./messages.js").Event} Event
 * @typedef {import("./loop.js").Conversation} Conversation
 */

/**
 * The fleet behind an HTTP API. It sends nothing yet.
 * @param {object} [to]
 * @param {string} [to.url] Address of the API. Default: TOOLFLEET_URL, else `http://127.0.0.1:8090`, where `toolfleet dev` serves.
 * @param {string} [to.token] Token, where the server wants one. Default: TOOLFLEET_TOKEN.
 * @param {number} [to.patienceMs] How long a fleet that was there may be away before a method throws `Unavailable`. Default: a minute.
 *   One that has never answered is tried for 3 s at most.
 * @param {typeof globalThis.fetch} [to.fetch] Sends the requests. Default: the global one.
 */
export function connect({ url = env("TOOLFLEET_URL") ?? "http://127.0.0.1:8090", token = env("TOOLFLEET_TOKEN"), patienceMs = 60_000, fetch = globalThis.fetch } = {}) {
  return new Fleet(new Api({ url, token, patienceMs, fetch }));
}

/** @param {string} name */
const env = (name) => globalThis.process?.env?.[name];
