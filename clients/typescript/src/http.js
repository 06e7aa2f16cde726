import { FleetError, Refused, Unavailable } from "./errors.js";
import { Repeater } from "./repeat.js";

/**
 * @typedef {import("./messages.js").Event} Event
 * @typedef {import("./fleet.js").Wire} Wire
 * @typedef {{path: string, body: string}} Handed
 */

/**
 * @typedef {object} Ask
 * @property {string} [body] JSON. A repeated request has the same bytes, so that the fleet
 *   sees the same batch.
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {boolean} [once] The request must not be repeated.
 * @property {(response: Response, alive: () => void) => Promise<any>} [read] Reads an answer
 *   of status 2xx. It calls `alive` when something arrives.
 */

/** How long nothing may arrive before a request counts as lost. The server sends a sign of life every 10 s, and waits for 20 s. */
const silenceMs = 45_000;
/** How long one request waits for its batch, in seconds. Proxies may cut off longer requests. */
const waitSeconds = 20;

/**
 * The HTTP API of a fleet.
 * @implements {Wire}
 */
export class Api {
  #repeater;

  /** @param {{url: string, token?: string, patienceMs: number, fetch: typeof globalThis.fetch}} to */
  constructor({ url, token, patienceMs, fetch }) {
    this.url = url.replace(/\/+$/, "");
    this.token = token;
    this.fetch = fetch;
    this.#repeater = new Repeater(patienceMs);
  }

  /**
   * @param {{provider?: string, names?: string[], strict?: string, cache?: boolean}} want
   * @param {AbortSignal} [signal]
   */
  definitions({ provider, names, strict, cache }, signal) {
    const query = new URLSearchParams();
    if (provider !== undefined) query.set("provider", provider);
    if (names !== undefined) query.set("names", names.join(","));
    if (strict !== undefined) query.set("strict", strict);
    if (cache) query.set("cache", "1");
    return this.#ask("GET", `/v1/tools${query.size ? `?${query}` : ""}`, { signal });
  }

  /** @param {string} session @param {string} id @param {object} members */
  batch(session, id, members) {
    return { path: pathOf(session, "batches", id), body: JSON.stringify(members) };
  }

  /** @param {string} session @param {string} id @param {object} members */
  call(session, id, members) {
    return { path: pathOf(session, "calls", id), body: JSON.stringify(members) };
  }

  /**
   * @param {Handed} handed
   * @param {{signal?: AbortSignal, store?: boolean, onEvent?: (event: Event) => void}} options
   */
  put({ path, body }, { signal, store, onEvent }) {
    if (onEvent) return this.#ask("PUT", path, { body, signal, headers: { accept: "text/event-stream" }, read: readStream(onEvent) });
    const read = async (/** @type {Response} */ response) => {
      const answer = await response.json();
      if (response.status !== 202 || store) return answer;
      throw new FleetError("running", "the batch goes on", { status: 202, retryAfterMs: 1000 * Number(response.headers.get("retry-after") ?? 1) });
    };
    return this.#ask("PUT", path, { body, signal, headers: { prefer: `wait=${store ? 0 : waitSeconds}` }, read });
  }

  /** @param {string} session @param {string} id @param {{results?: "full", signal?: AbortSignal}} options */
  get(session, id, { results, signal }) {
    return this.#ask("GET", pathOf(session, "batches", id) + (results ? `?results=${results}` : ""), { signal });
  }

  /** @param {string} session @param {"steer" | "abort"} what @param {object} members @param {{signal?: AbortSignal, once?: boolean}} options */
  control(session, what, members, options) {
    return this.#ask("POST", `${pathOf(session)}/${what}`, { body: JSON.stringify(members), ...options });
  }

  /**
   * @param {string | undefined} session
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<Event, never>}
   */
  async *follow(session, signal) {
    const path = session === undefined ? "/v1/events" : `${pathOf(session)}/events`;
    let last = "";
    for (;;) {
      const left = new AbortController();
      const headers = { accept: "text/event-stream", ...(last && { "last-event-id": last }) };
      const until = signal ? AbortSignal.any([signal, left.signal]) : left.signal;
      try {
        // The reader goes on after #ask has returned, so it needs a watch for silence of its
        // own.
        const stream = await this.#ask("GET", path, { headers, signal: until, read: async (response) => response });
        const watch = silence(left);
        try {
          for await (const event of eventsOf(stream, watch.alive)) {
            last = event.id ?? last;
            yield { type: event.type, ...JSON.parse(event.data) };
          }
        } finally {
          watch.stop();
        }
      } catch (error) {
        signal?.throwIfAborted();
        if (error instanceof FleetError) throw error;
      } finally {
        left.abort();
      }
    }
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   */
  #ask(method, path, ask) {
    return this.#repeater.repeat((alive) => this.#attempt(method, path, ask, alive), ask);
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   * @param {() => void} heard
   */
  async #attempt(method, path, { body, headers, signal, read = (response) => response.json() }, heard) {
    const silence = new AbortController();
    const lost = () => silence.abort(new Error(`nothing has arrived for ${silenceMs / 1000} s`));
    let timer = setTimeout(lost, silenceMs);
    const alive = () => {
      heard();
      clearTimeout(timer);
      timer = setTimeout(lost, silenceMs);
    };
    try {
      const { fetch } = this; // called without a receiver, as browsers and edge runtimes require
      const response = await fetch(this.url + path, {
        method,
        body,
        headers: { ...(body && { "content-type": "application/json" }), ...(this.token && { authorization: `Bearer ${this.token}` }), ...headers },
        signal: signal ? AbortSignal.any([signal, silence.signal]) : silence.signal,
      });
      if (!response.ok) throw problemOf(response.status, await response.text());
      alive();
      return await read(response, alive);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof FleetError) throw error;
      const why = error instanceof Error ? (error.cause instanceof Error ? error.cause.message || String(error.cause) : error.message) : String(error);
      throw new Unavailable("no_connection", `${this.url} cannot be reached: ${why}; start a fleet with \`toolfleet dev\``, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }
}

/**
 * Returns the error of an answer. The body may come from a proxy instead of the fleet.
 * @param {number} status
 * @param {string} text
 */
export function problemOf(status, text) {
  /** @type {any} */
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    // a proxy's page
  }
  const { code = `http_${status}`, message = text.slice(0, 200) || "no words", retry_after_ms: retryAfterMs } = body.error ?? {};
  const Kind = [409, 413, 422].includes(status) ? Refused : [502, 503, 504].includes(status) ? Unavailable : FleetError;
  return new Kind(code, message, { status, retryAfterMs, reply: body.reply });
}

/**
 * The events of a stream (text/event-stream).
 * @param {Response} response
 * @param {() => void} alive is called when something arrives
 * @returns {AsyncGenerator<{id?: string, type: string, data: string}>}
 */
export async function* eventsOf(response, alive) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      const parts = (text + decoder.decode(value, { stream: true })).split("\n\n");
      text = /** @type {string} */ (parts.pop());
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n").map((line) => line.split(/: ?(.*)/s)));
        if (fields.data !== undefined) yield { id: fields.id, type: fields.event ?? "message", data: fields.data };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Reads the events of a batch up to its reply.
 * @param {(event: Event) => void} onEvent
 */
function readStream(onEvent) {
  return async (/** @type {Response} */ response, /** @type {() => void} */ alive) => {
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response.json();
    for await (const { type, data } of eventsOf(response, alive)) {
      const event = JSON.parse(data);
      if (type === "reply") return event;
      if (type === "error") throw problemOf(statusOf(event.error.code), data);
      onEvent(event);
    }
    throw new Unavailable("no_connection", "the stream has ended before its reply");
  };
}

/**
 * Returns the HTTP status for the code of an error that came inside a stream.
 * @param {string} code
 */
export const statusOf = (code) =>
  ({ batch_conflict: 409, too_large: 413, busy: 429, internal: 500, unauthorized: 401, no_fleet: 503, unavailable: 503, stopping: 503, no_answer: 503 })[code] ?? 422;

/**
 * The path of a session, or of something in it.
 * @param {...string} parts
 */
function pathOf(...parts) {
  return "/v1/sessions/" + parts.map((part) => {
    if (typeof part !== "string" || part === "" || part === "." || part === "..") throw new TypeError(`an id is a text that is not empty, . or ..; got ${JSON.stringify(part)}`);
    return encodeURIComponent(part);
  }).join("/");
}

/**
 * Ends a stream that was silent for three heartbeats.
 * @param {AbortController} left
 */
function silence(left) {
  const lost = () => left.abort(new Error("no sign of life"));
  let timer = setTimeout(lost, 30_000);
  return {
    alive: () => {
      clearTimeout(timer);
      timer = setTimeout(lost, 30_000);
    },
    stop: () => clearTimeout(timer),
  };
}
