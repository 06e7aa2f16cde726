import { loop } from "./loop.js";

/**
 * @typedef {import("./messages.js").Provider} Provider
 * @typedef {import("./messages.js").Batch} Batch
 * @typedef {import("./messages.js").Call} Call
 * @typedef {import("./messages.js").Reply} Reply
 * @typedef {import("./messages.js").Result} Result
 * @typedef {import("./messages.js").Event} Event
 */

/**
 * The transport of a fleet's requests. Each method repeats its request until it is answered,
 * except a control with `once`.
 * @typedef {object} Wire
 * @property {(want: {provider?: string, names?: string[], strict?: string, cache?: boolean}, signal?: AbortSignal) => Promise<any>} definitions
 * @property {(session: string, id: string, members: object) => any} batch Makes what `put`
 *   sends; `put` may send it again with the same bytes.
 * @property {(session: string, id: string, members: object) => any} call
 * @property {(handed: any, options: {signal?: AbortSignal, store?: boolean, onEvent?: (event: Event) => void}) => Promise<any>} put Waits
 *   for the reply of a batch, or the result of a call. With `store` it only waits until the fleet
 *   has stored the batch or call.
 * @property {(session: string, id: string, options: {results?: "full", signal?: AbortSignal}) => Promise<any>} get
 * @property {(session: string, what: "steer" | "abort", members: object, options: {signal?: AbortSignal, once?: boolean}) => Promise<any>} control
 * @property {(session: string | undefined, signal?: AbortSignal) => AsyncGenerator<Event, never>} follow
 */

/**
 * A fleet. `connect` makes one.
 *
 * Every method except `steer` repeats its request until it is answered. Nothing runs twice,
 * because batches and calls have ids. A program that was killed gets the reply in the same
 * way: it runs the same batch again.
 *
 * Methods throw `Refused` when the fleet refuses a request, `Unavailable` when it cannot be
 * reached, else `FleetError`. When their `signal` aborts, they throw its reason. A signal ends
 * only the waiting: the batch goes on unless `abort` ends it.
 */
export class Fleet {
  #wire;
  /** @type {Map<string, () => Promise<void>>} for each session, waits until its newest call is handed over */
  #newest = new Map();

  /** @param {Wire} wire */
  constructor(wire) {
    this.#wire = wire;
  }

  /**
   * Returns the definitions of the tools, in the form of a request to a model of the provider.
   * @param {Provider} [provider] Default: canonical, `{tools: [{name, description, input_schema}]}`.
   * @param {Definitions} [options]
   * @returns {Promise<any>} a list; some providers wrap it in an object
   */
  async tools(provider, options) {
    return (await this.catalogue(provider, options)).tools;
  }

  /**
   * Returns the definitions with their digest. A batch that names the digest as `catalogue`
   * uses the tools in the versions that its model knows.
   * @param {Provider} [provider]
   * @param {Definitions} [options]
   * @returns {Promise<{provider: Provider, digest: string, tools: any}>}
   *
   * @typedef {object} Definitions
   * @property {string[]} [names] Only these tools.
   * @property {"off" | "exact" | "nullable"} [strict] Which definitions the provider enforces.
   * @property {boolean} [cache] The definitions end with the provider's cache mark.
   * @property {AbortSignal} [signal]
   */
  async catalogue(provider, { signal, ...which } = {}) {
    return this.#wire.definitions({ provider, ...which }, signal);
  }

  /**
   * Runs the calls of a model's message and returns what to append to the history. The same batch again gets the same reply, and runs
   * nothing: after any error, or a crash, run it again.
   * @param {Batch & {signal?: AbortSignal, onEvent?: (event: Event) => void}} batch `onEvent`
   *   gets the live events of the batch. Events may be missed; `follow` misses none.
   * @returns {Promise<Reply>}
   */
  async run({ session, id, signal, onEvent, timeoutMs, ...batch }) {
    return this.#wire.put(this.#wire.batch(session, id, { ...batch, timeout_ms: timeoutMs }), { signal, onEvent });
  }

  /**
   * Runs one call and returns its result, with the output. For executors that hand over single calls.
   *
   * The calls of a session keep the order in which `call` was called, even if the program does
   * not wait for results: a call is sent when those before it are stored. Reads run at the
   * same time.
   * @param {Call & {signal?: AbortSignal}} call
   * @returns {Promise<Result>}
   */
  async call({ session, id, signal, timeoutMs, name, input, labels }) {
    const handed = this.#wire.call(session, id, { name, input, timeout_ms: timeoutMs, labels });
    let before = this.#newest.get(session);
    let ended = false;
    // Sends a call a second time, only to store it, if another call follows it. The fleet
    // takes both requests for the same call.
    const handOver = memo(async () => {
      await before?.();
      if (!ended) await this.#wire.put(handed, { signal, store: true }).catch(() => {}); // its own caller gets the error
    });
    this.#newest.set(session, handOver);
    try {
      await before?.();
      return await this.#wire.put(handed, { signal });
    } finally {
      ended = true;
      before = undefined; // drop the call before, so that a long chain of calls is not kept in memory
      if (this.#newest.get(session) === handOver) this.#newest.delete(session);
    }
  }

  /**
   * Returns the reply of a batch or call that was submitted. While it runs, `status` is
   * `running` and `results` has the results of the ended calls.
   * @param {string} session
   * @param {string} id
   * @param {{results?: "full", signal?: AbortSignal}} [options] `results: "full"` repeats the outputs in the results.
   * @returns {Promise<Reply | {status: "running", results?: Result[]}>}
   */
  async get(session, id, { results, signal } = {}) {
    return this.#wire.get(session, id, { results, signal });
  }

  /**
   * Yields the events of a session: those of its open batches from their beginning, then those
   * of each new batch. Each durable event comes once and in order, even if the connection is
   * lost meanwhile. Without a session, it yields the events of all sessions from now on. It
   * ends when the caller leaves the loop. When the signal aborts, it throws the signal's
   * reason.
   * @param {string} [session]
   * @param {{signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<Event, never>}
   */
  follow(session, { signal } = {}) {
    return this.#wire.follow(session, signal);
  }

  /**
   * Sends a steering message to a session: the next reply has it at the end of `append`. The
   * request is not repeated, because the model could then read the message twice. After an
   * error the message may be stored or not.
   * @param {string} session
   * @param {any} message A message in the provider's form.
   * @param {{when?: "after_batch" | "between_groups" | "immediate", reason?: string, signal?:
   *   AbortSignal}} [options] `when` says which calls of earlier batches still run. Default:
   *   all.
   * @returns {Promise<void>}
   */
  async steer(session, message, { when, reason, signal } = {}) {
    await this.#wire.control(session, "steer", { steer: message, when, reason }, { signal, once: true });
  }

  /**
   * Ends all open batches of a session, or one batch or call. Waiting calls are not started,
   * running calls are stopped, and every call gets a result.
   * @param {string} session
   * @param {{id?: string, reason?: string, signal?: AbortSignal}} [options] `id` is the id of
   *   a batch or call; `reason` is for the model.
   * @returns {Promise<void>}
   */
  async abort(session, { id, reason, signal } = {}) {
    await this.#wire.control(session, "abort", { abort: id ?? true, reason }, { signal });
  }

  /**
   * Runs a turn: asks the model, runs its calls, appends message and results to the history,
   * and repeats that until the model makes no calls. See `loop.js`.
   * @param {import("./loop.js").Conversation} conversation
   * @param {import("./loop.js").Model} ask
   * @param {import("./loop.js").LoopOptions} [options]
   */
  async loop(conversation, ask, options) {
    return loop(this, conversation, ask, options);
  }
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
