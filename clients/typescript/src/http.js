import { FleetError, Refused, Unavailable } from "./errors.js";

/**
 * @typedef {object} Ask
 * @property {string} [body] JSON. Sent again byte for byte, so that the fleet sees the same batch.
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {boolean} [once] The request must not be repeated.
 * @property {(response: Response, alive: () => void) => Promise<any>} [read] Reads an answer of status 2xx. `alive` says that
 *   something has arrived.
 */

/** How long nothing may arrive before a request counts as lost. The server sends a sign of life every 10 s, and waits for 20 s. */
const silenceMs = 45_000;
/** How long a fleet that has never answered is tried. */
const firstContactMs = 3000;

/** Requests to the HTTP API that are repeated until they are answered. */
export class Api {
  #met = false; // a fleet has answered

  /** @param {{url: string, token?: string, patienceMs: number, fetch: typeof globalThis.fetch}} to */
  constructor({ url, token, patienceMs, fetch }) {
    this.url = url.replace(/\/+$/, "");
    this.token = token;
    this.patienceMs = patienceMs;
    this.fetch = fetch;
  }

  /**
   * Sends a request, and again until there is an answer that says how it stands.
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   */
  async ask(method, path, ask = {}) {
    let lostAt = 0; // since when the fleet is away
    for (let wait = 100; ; wait = Math.min(2 * wait, 2000)) {
      const began = Date.now();
      try {
        return await this.#attempt(method, path, ask);
      } catch (error) {
        ask.signal?.throwIfAborted();
        if (!(error instanceof FleetError) || ask.once || !mayRepeat(error)) throw error;
        const { code, retryAfterMs } = error;
        if (!(error instanceof Unavailable)) {
          lostAt = 0; // it runs, or the fleet has enough to do
        } else {
          lostAt ||= began;
          if (Date.now() - lostAt >= (this.#met ? this.patienceMs : Math.min(firstContactMs, this.patienceMs))) throw error;
        }
        // A batch that was waited for already is asked about at once.
        await pause(code === "running" ? (retryAfterMs ?? 0) - (Date.now() - began) : Math.max(wait, retryAfterMs ?? 0), ask.signal);
      }
    }
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   */
  async #attempt(method, path, { body, headers, signal, read = (response) => response.json() }) {
    const silence = new AbortController();
    const lost = () => silence.abort(new Error(`nothing has arrived for ${silenceMs / 1000} s`));
    let timer = setTimeout(lost, silenceMs);
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(lost, silenceMs);
    };
    try {
      const { fetch } = this; // called without a receiver, as browsers and edge runtimes want it
      const response = await fetch(this.url + path, {
        method,
        body,
        headers: { ...(body && { "content-type": "application/json" }), ...(this.token && { authorization: `Bearer ${this.token}` }), ...headers },
        signal: signal ? AbortSignal.any([signal, silence.signal]) : silence.signal,
      });
      if (!response.ok) throw problemOf(response.status, await response.text());
      this.#met = true;
      return await read(response, alive);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof FleetError) {
        this.#met ||= !(error instanceof Unavailable);
        throw error;
      }
      const why = error instanceof Error ? (error.cause instanceof Error ? error.cause.message || String(error.cause) : error.message) : String(error);
      throw new Unavailable("no_connection", `${this.url} cannot be reached: ${why}; start a fleet with \`toolfleet dev\``, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }
}

/** @param {FleetError} error */
const mayRepeat = ({ code, status }) => [0, 408, 429, 502, 503, 504].includes(status) || code === "running";

/**
 * The error of an answer, whose body may not be ours but that of a proxy.
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
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.max(0, ms));
    signal?.addEventListener("abort", stop, { once: true });
  });
}
