/**
 * The agent's side of toolfleet: it submits the message of a model and returns what to append
 * to the conversation.
 *
 *     import { connect } from "toolfleet";
 *     const fleet = connect();
 *     const reply = await fleet.run({ session, id: message.id, provider: "anthropic", message });
 *     history.push(message, ...reply.append);
 *
 * It needs only `fetch`, so it runs in Node 20, Deno, Bun and edge runtimes.
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
 * Returns the fleet behind an HTTP API. The first request is sent by the first method.
 * @param {object} [to]
 * @param {string} [to.url] Address of the API. Default: TOOLFLEET_URL, else `http://127.0.0.1:8090`, where `toolfleet dev` serves.
 * @param {string} [to.token] Token, if the server requires one. Default: TOOLFLEET_TOKEN.
 * @param {number} [to.patienceMs] How long methods retry when a fleet that has answered before
 *   cannot be reached; then they throw `Unavailable`. Default: a minute. A fleet that has
 *   never answered is tried for at most 3 s.
 * @param {typeof globalThis.fetch} [to.fetch] Sends the requests. Default: the global one.
 */
export function connect({ url = env("TOOLFLEET_URL") ?? "http://127.0.0.1:8090", token = env("TOOLFLEET_TOKEN"), patienceMs = 60_000, fetch = globalThis.fetch } = {}) {
  return new Fleet(new Api({ url, token, patienceMs, fetch }));
}

/** @param {string} name */
const env = (name) => globalThis.process?.env?.[name];
