import { FleetError, Unavailable } from "./errors.js";
import { eventsOf, problemOf } from "./http.js";
import { loop } from "./loop.js";

/**
 * @typedef {import("./messages.js").Provider} Provider
 * @typedef {import("./messages.js").Batch} Batch
 * @typedef {import("./messages.js").Call} Call
 * @typedef {import("./messages.js").Reply} Reply
 * @typedef {import("./messages.js").Result} Result
 * @typedef {import("./messages.js").Event} Event
 */

/** How long one request waits for its batch. What is on the way cuts off longer ones. */
const waitSeconds = 20;

/**
 * A fleet. `connect` makes one.
 *
 * Every method but `steer` repeats its request until it is answered, and runs nothing twice by that: a batch and a call have an id. A
 * program that was killed gets the reply in the same way: it runs the same batch again.
 *
 * Methods throw `Refused` when the fleet does not take a request, `Unavailable` when it is away, else `FleetError`; and the reason of their
 * `signal` when that aborts. A signal ends the waiting and nothing else: the batch goes on until `abort`.
 */
export class Fleet {
  #api;
  /** @type {Map<string, () => Promise<void>>} for each session, waits until its newest call is handed over */
  #newest = new Map();

  /** @param {import("./http.js").Api} api */
  constructor(api) {
    this.#api = api;
  }

  /**
   * The definitions of the tools, as a request to a model of the provider has them.
   * @param {Provider} [provider] Default: canonical, `{tools: [{name, description, input_schema}]}`.
   * @param {Definitions} [options]
   * @returns {Promise<any>} a list, but for providers that wrap it
   */
  async tools(provider, options) {
    return (await this.catalogue(provider, options)).tools;
  }

  /**
   * The definitions with their digest. A batch that names the digest as `catalogue` uses the tools in the versions that its model knows.
   * @param {Provider} [provider]
   * @param {Definitions} [options]
   * @returns {Promise<{provider: Provider, digest: string, tools: any}>}
   *
   * @typedef {object} Definitions
   * @property {string[]} [names] Only these tools.
   * @property {"off" | "exact" | "nullable"} [strict] Which definitions the provider enforces.
   * @property {boolean} [cache] They end with the provider's cache mark.
   * @property {AbortSignal} [signal]
   */
  async catalogue(provider, { names, strict, cache, signal } = {}) {
    const query = new URLSearchParams();
    if (provider !== undefined) query.set("provider", provider);
    if (names !== undefined) query.set("names", names.join(","));
    if (strict !== undefined) query.set("strict", strict);
    if (cache) query.set("cache", "1");
    return this.#api.ask("GET", `/v1/tools${query.size ? `?${query}` : ""}`, { signal });
  }

  /**
   * Runs the calls of a model's message and returns what to append to the history. The same batch again gets the same reply, and runs
   * nothing: after any error, or a crash, run it again.
   * @param {Batch & {signal?: AbortSignal, onEvent?: (event: Event) => void}} batch `onEvent` hears what happens, live: events may be
   *   missed; `follow` misses none.
   * @returns {Promise<Reply>}
   */
  async run({ session, id, signal, onEvent, timeoutMs, ...batch }) {
    const body = JSON.stringify({ ...batch, timeout_ms: timeoutMs });
    return this.#put(pathOf(session, "batches", id), body, { signal, onEvent });
  }

  /**
   * Runs one call and returns its result, with the output. For executors that hand over single calls.
   *
   * The calls of a session keep the order in which `call` was called, although nobody waits for their results: a call is sent when those
   * before it are stored. Reads run at the same time.
   * @param {Call & {signal?: AbortSignal}} call
   * @returns {Promise<Result>}
   */
  async call({ session, id, signal, timeoutMs, name, input, labels }) {
    const path = pathOf(session, "calls", id);
    const body = JSON.stringify({ name, input, timeout_ms: timeoutMs, labels });
    let before = this.#newest.get(session);
    let ended = false;
    // Only a call that has another behind it is handed over twice. The fleet takes both for the same one.
    const handOver = memo(async () => {
      await before?.();
      if (!ended) await this.#put(path, body, { signal, wait: 0 }).catch(() => {}); // its own caller is told
    });
    this.#newest.set(session, handOver);
    try {
      await before?.();
      return await this.#put(path, body, { signal });
    } finally {
      ended = true;
      before = undefined; // a chain of calls that never ends must not keep them all
      if (this.#newest.get(session) === handOver) this.#newest.delete(session);
    }
  }

  /**
   * The reply of a batch or call that was handed over. While it runs, `status` is `running` and `results` has what has ended.
   * @param {string} session
   * @param {string} id
   * @param {{results?: "full", signal?: AbortSignal}} [options] `results: "full"` repeats the outputs in the results.
   * @returns {Promise<Reply | {status: "running", results?: Result[]}>}
   */
  async get(session, id, { results, signal } = {}) {
    return this.#api.ask("GET", pathOf(session, "batches", id) + (results ? `?results=${results}` : ""), { signal });
  }

  /**
   * What happens in a session: of its open batches from their beginning, then of those that come. Each durable event comes once and in
   * order, through any loss of the connection. Without a session: what happens in all of them from now on. It ends with its signal, by
   * throwing the reason, or when the caller leaves the loop.
   * @param {string} [session]
   * @param {{signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<Event, never>}
   */
  async *follow(session, { signal } = {}) {
    const path = session === undefined ? "/v1/events" : `${pathOf(session)}/events`;
    let last = "";
    for (;;) {
      const left = new AbortController();
      const headers = { accept: "text/event-stream", ...(last && { "last-event-id": last }) };
      const until = signal ? AbortSignal.any([signal, left.signal]) : left.signal;
      try {
        // The reader goes on after ask has returned, so it watches for silence itself.
        const stream = await this.#api.ask("GET", path, { headers, signal: until, read: async (response) => response });
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
   * Says something to a session: the next reply has it at the end of `append`. After an error it may have been stored or not, so it is not
   * repeated: said twice, the model may read it twice.
   * @param {string} session
   * @param {any} message A message in the provider's form.
   * @param {{when?: "after_batch" | "between_groups" | "immediate", reason?: string, signal?: AbortSignal}} [options] `when` says which
   *   calls still run of what was handed over before. Default: all.
   * @returns {Promise<void>}
   */
  async steer(session, message, { when, reason, signal } = {}) {
    await this.#api.ask("POST", `${pathOf(session)}/steer`, { body: JSON.stringify({ steer: message, when, reason }), signal, once: true });
  }

  /**
   * Ends what a session has in hand, or one batch or call of it. What waits is not started, what runs is stopped, and every call is answered.
   * @param {string} session
   * @param {{id?: string, reason?: string, signal?: AbortSignal}} [options] `id` is that of a batch or call; `reason` is for the model.
   * @returns {Promise<void>}
   */
  async abort(session, { id, reason, signal } = {}) {
    await this.#api.ask("POST", `${pathOf(session)}/abort`, { body: JSON.stringify({ abort: id ?? true, reason }), signal });
  }

  /**
   * Runs a turn: asks the model, has its calls run, appends both to the history, until the model makes no calls. See `loop.js`.
   * @param {import("./loop.js").Conversation} conversation
   * @param {import("./loop.js").Model} ask
   * @param {import("./loop.js").LoopOptions} [options]
   */
  async loop(conversation, ask, options) {
    return loop(this, conversation, ask, options);
  }

  /**
   * @param {string} path
   * @param {string} body
   * @param {{signal?: AbortSignal, wait?: number, onEvent?: (event: Event) => void}} options
   */
  #put(path, body, { signal, wait = waitSeconds, onEvent }) {
    if (onEvent) return this.#api.ask("PUT", path, { body, signal, headers: { accept: "text/event-stream" }, read: readStream(onEvent) });
    const read = async (/** @type {Response} */ response) => {
      const answer = await response.json();
      if (response.status !== 202 || wait === 0) return answer;
      throw new FleetError("running", "the batch goes on", { status: 202, retryAfterMs: 1000 * Number(response.headers.get("retry-after") ?? 1) });
    };
    return this.#api.ask("PUT", path, { body, signal, headers: { prefer: `wait=${wait}` }, read });
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
 * The status that an error of a stream would have as an answer of its own.
 * @param {string} code
 */
const statusOf = (code) =>
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
 * @template T
 * @param {() => T} make
 * @returns {() => T} make, called once
 */
function memo(make) {
  /** @type {T | undefined} */
  let made;
  return () => (made ??= make());
}

/**
 * Ends a stream that has said nothing for three heartbeats.
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
