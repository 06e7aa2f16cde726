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
 * How the requests of a fleet travel. Each method repeats its request until it is answered, except a control with `once`.
 * @typedef {object} Wire
 * @property {(want: {provider?: string, names?: string[], strict?: string, cache?: boolean}, signal?: AbortSignal) => Promise<any>} definitions
 * @property {(session: string, id: string, members: object) => any} batch What can be put, and put again with the same bytes.
 * @property {(session: string, id: string, members: object) => any} call
 * @property {(handed: any, options: {signal?: AbortSignal, store?: boolean, onEvent?: (event: Event) => void}) => Promise<any>} put Waits
 *   for the reply of a batch, or the result of a call. With `store` it only waits until the fleet has it.
 * @property {(session: string, id: string, options: {results?: "full", signal?: AbortSignal}) => Promise<any>} get
 * @property {(session: string, what: "steer" | "abort", members: object, options: {signal?: AbortSignal, once?: boolean}) => Promise<any>} control
 * @property {(session: string | undefined, signal?: AbortSignal) => AsyncGenerator<Event, never>} follow
 */

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
  #wire;
  /** @type {Map<string, () => Promise<void>>} for each session, waits until its newest call is handed over */
  #newest = new Map();

  /** @param {Wire} wire */
  constructor(wire) {
    this.#wire = wire;
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
  async catalogue(provider, { signal, ...which } = {}) {
    return this.#wire.definitions({ provider, ...which }, signal);
  }

  /**
   * Runs the calls of a model's message and returns what to append to the history. The same batch again gets the same reply, and runs
   * nothing: after any error, or a crash, run it again.
   * @param {Batch & {signal?: AbortSignal, onEvent?: (event: Event) => void}} batch `onEvent` hears what happens, live: events may be
   *   missed; `follow` misses none.
   * @returns {Promise<Reply>}
   */
  async run({ session, id, signal, onEvent, timeoutMs, ...batch }) {
    return this.#wire.put(this.#wire.batch(session, id, { ...batch, timeout_ms: timeoutMs }), { signal, onEvent });
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
    const handed = this.#wire.call(session, id, { name, input, timeout_ms: timeoutMs, labels });
    let before = this.#newest.get(session);
    let ended = false;
    // Only a call that has another behind it is handed over twice. The fleet takes both for the same one.
    const handOver = memo(async () => {
      await before?.();
      if (!ended) await this.#wire.put(handed, { signal, store: true }).catch(() => {}); // its own caller is told
    });
    this.#newest.set(session, handOver);
    try {
      await before?.();
      return await this.#wire.put(handed, { signal });
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
    return this.#wire.get(session, id, { results, signal });
  }

  /**
   * What happens in a session: of its open batches from their beginning, then of those that come. Each durable event comes once and in
   * order, through any loss of the connection. Without a session: what happens in all of them from now on. It ends with its signal, by
   * throwing the reason, or when the caller leaves the loop.
   * @param {string} [session]
   * @param {{signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<Event, never>}
   */
  follow(session, { signal } = {}) {
    return this.#wire.follow(session, signal);
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
    await this.#wire.control(session, "steer", { steer: message, when, reason }, { signal, once: true });
  }

  /**
   * Ends what a session has in hand, or one batch or call of it. What waits is not started, what runs is stopped, and every call is answered.
   * @param {string} session
   * @param {{id?: string, reason?: string, signal?: AbortSignal}} [options] `id` is that of a batch or call; `reason` is for the model.
   * @returns {Promise<void>}
   */
  async abort(session, { id, reason, signal } = {}) {
    await this.#wire.control(session, "abort", { abort: id ?? true, reason }, { signal });
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
