/**
 * The same client over NATS, with the package `@nats-io/transport-node`: without an HTTP server in between.
 *
 *     import { connect } from "toolfleet/nats";
 *     const fleet = await connect({ url: "nats://127.0.0.1:4222" });
 *     const reply = await fleet.run({ session, id: message.id, provider: "anthropic", message });
 *     await fleet.close();
 *
 * Repeat a batch over NATS if it was first run over NATS: over HTTP the same batch has other
 * bytes, and the fleet refuses it.
 * @module
 */
import { createHash } from "node:crypto";
import { connect as dial, createInbox, headers as newHeaders } from "@nats-io/transport-node";
import { FleetError, Refused, Unavailable } from "./errors.js";
import { follow } from "./feed.js";
import { Fleet } from "./fleet.js";
import { Repeater } from "./repeat.js";

/**
 * @typedef {import("./messages.js").Event} Event
 * @typedef {import("@nats-io/transport-node").NatsConnection} NatsConnection
 * @typedef {import("@nats-io/transport-node").Msg} Msg
 * @typedef {import("./fleet.js").Wire} Wire
 * @typedef {{subject: string, body: string, single: boolean}} Handed
 */

/** A fleet behind a NATS server. */
export class NatsFleet extends Fleet {
  #wire;

  /** @param {Nats} wire */
  constructor(wire) {
    super(wire);
    this.#wire = wire;
  }

  /** Closes the connection. Methods that still wait throw a `FleetError` of the code `closed`; batches go on. */
  async close() {
    await this.#wire.close();
  }
}

/**
 * Connects to the NATS server of a fleet. It tries for 3 s. If the connection is lost later,
 * the client reconnects by itself until it is closed.
 * @param {object} [to]
 * @param {string} [to.url] Address of the server, or several with commas between. Default: NATS_URL, else `nats://127.0.0.1:4222`.
 * @param {string} [to.tenant] The tenant for which the calls are, in a fleet with several
 *   tenants.
 * @param {string} [to.prefix] First word of the fleet's subjects. Default: `toolfleet`.
 * @param {number} [to.patienceMs] How long methods retry when a fleet that has answered before
 *   cannot be reached; then they throw `Unavailable`. Default: a minute.
 * @param {import("@nats-io/transport-node").NodeConnectionOptions} [to.options] Options of the NATS client, such as `authenticator`,
 *   `tls` and `inboxPrefix`.
 */
export async function connect({ url = process.env.NATS_URL || "nats://127.0.0.1:4222", tenant = "_", prefix = "toolfleet", patienceMs = 60_000, options = {} } = {}) {
  const servers = url.split(",");
  const connection = await new Repeater(patienceMs).repeat(async () => {
    try {
      return await dial({ name: "toolfleet client", reconnectTimeWait: 250, reconnectJitter: 100, ...options, servers, maxReconnectAttempts: -1 });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      if (error instanceof Error && error.name === "AuthorizationError") throw new FleetError("unauthorized", `${url}: ${why}`, { status: 401, cause: error });
      throw new Unavailable("no_connection", `${url} cannot be reached: ${why}; start a fleet with \`toolfleet dev\``, { cause: error });
    }
  });
  return new NatsFleet(new Nats(connection, { tenant, prefix, patienceMs, inboxPrefix: options.inboxPrefix }));
}

/** How long nothing may arrive before a request counts as lost. The answer to a batch has a sign of life every 10 s. */
const silenceMs = { run: 30_000, other: 10_000 };

/**
 * The subjects of a fleet.
 * @implements {Wire}
 */
export class Nats {
  #repeater;
  /** @type {Set<{subject: string, fail: (error: Error) => void}>} the requests that wait for an answer */
  #open = new Set();
  /** @type {Set<() => void>} what to call when events may have been missed */
  #watchers = new Set();
  /** Resolves when there is a connection, or never will be. */
  #up = Promise.resolve();
  #ready = () => {};

  /**
   * @param {NatsConnection} connection
   * @param {{tenant: string, prefix: string, patienceMs: number, inboxPrefix?: string}} to
   */
  constructor(connection, { tenant, prefix, patienceMs, inboxPrefix }) {
    this.connection = connection;
    this.tenant = tenant;
    this.prefix = prefix;
    this.inboxPrefix = inboxPrefix;
    this.#repeater = new Repeater(patienceMs);
    this.#watch();
  }

  async close() {
    await this.connection.close();
  }

  /**
   * @param {{provider?: string, names?: string[], strict?: string, cache?: boolean}} want
   * @param {AbortSignal} [signal]
   */
  definitions(want, signal) {
    return this.#ask(`${this.prefix}.tools.${this.tenant}`, JSON.stringify(want), { signal });
  }

  /** @param {string} session @param {string} id @param {object} members */
  batch(session, id, members) {
    return { subject: this.#subject(session, id), body: JSON.stringify({ v: 1, id, session, ...members }), single: false };
  }

  /** @param {string} session @param {string} id @param {any} members */
  call(session, id, { name, input = {}, ...rest }) {
    const batch = { provider: "canonical", message: { calls: [{ id, name, input }] }, ...rest };
    return { ...this.batch(session, id, batch), single: true };
  }

  /**
   * @param {Handed} handed
   * @param {{signal?: AbortSignal, store?: boolean, onEvent?: (event: Event) => void}} options
   */
  async put({ subject, body, single }, { signal, store, onEvent }) {
    if (store) return this.#store(`${this.prefix}.batch.${subject}`, body, signal);
    const headers = newHeaders();
    headers.set("Toolfleet-Progress", "1");
    const reply = await this.#ask(`${this.prefix}.run.${subject}`, body, { signal, headers, silence: silenceMs.run, onEvent });
    if (!single) return reply;
    const { output, content } = reply.reinjection.results[0];
    return { ...reply.results[0], ...(output !== undefined && { output }), ...(content !== undefined && { content }) };
  }

  /** @param {string} session @param {string} id @param {{results?: "full", signal?: AbortSignal}} options */
  async get(session, id, { results, signal }) {
    const answer = await this.#get(session, id, results && { results }, signal);
    if (answer.status === "unknown") throw new FleetError("unknown_batch", "no such batch: it was never accepted, or its reply is no longer kept", { status: 404 });
    return answer;
  }

  /** @param {string} session @param {"steer" | "abort"} _ @param {object} members @param {{signal?: AbortSignal, once?: boolean}} options */
  control(session, _, members, options) {
    return this.#ask(`${this.prefix}.control.${this.tenant}.${token(session)}`, JSON.stringify({ v: 1, ...members }), options);
  }

  /**
   * @param {string | undefined} session
   * @param {AbortSignal} [signal]
   */
  follow(session, signal) {
    const of = session === undefined ? "*" : token(session);
    return follow(session, {
      signal,
      subscribe: (take, missed) => {
        const callback = (/** @type {Error | null} */ error, /** @type {Msg} */ m) => void (error ?? take(m.json()));
        const subscriptions = ["event", "reply"].map((verb) => this.connection.subscribe(`${this.prefix}.${verb}.${this.tenant}.${of}.*`, { callback }));
        this.#watchers.add(missed);
        return () => {
          this.#watchers.delete(missed);
          for (const one of subscriptions) one.unsubscribe();
        };
      },
      list: (after) => this.#get(session ?? "", "_", { batches: true, after }, signal),
      timeline: (id) => this.#get(session ?? "", id, { timeline: true }, signal),
    });
  }

  /** @param {string} session @param {string} id */
  #subject(session, id) {
    return [this.tenant, token(session), token(id)].join(".");
  }

  /** @param {string} session @param {string} id @param {object | undefined} want @param {AbortSignal} [signal] */
  #get(session, id, want, signal) {
    return this.#ask(`${this.prefix}.get.${this.#subject(session, id)}`, want ? JSON.stringify(want) : "", { signal });
  }

  /**
   * Publishes a batch, repeatedly until it is durable. It is no error if the batch is stored
   * already.
   * @param {string} subject
   * @param {string} body
   * @param {AbortSignal} [signal]
   */
  #store(subject, body, signal) {
    return this.#repeater.repeat(async (alive) => {
      const { error } = JSON.parse(await this.#request(subject, body, { signal }, alive));
      if (error && !/per subject exceeded/.test(error.description)) throw new Unavailable("unavailable", error.description, { status: 503 });
    }, { signal });
  }

  /**
   * Sends a request to an endpoint, repeatedly until there is a final answer.
   * @param {string} subject
   * @param {string} body
   * @param {Ask & {once?: boolean}} ask
   */
  #ask(subject, body, ask) {
    return this.#repeater.repeat(async (alive) => {
      const answer = JSON.parse(await this.#request(subject, body, ask, alive));
      if (answer.error) throw refusalOf(answer);
      return answer;
    }, ask);
  }

  /**
   * One request and its answer, which may come in chunks, and after events.
   * @param {string} subject
   * @param {string} body
   * @param {Ask} ask
   * @param {() => void} alive is called when something arrives
   * @returns {Promise<string>}
   *
   * @typedef {object} Ask
   * @property {import("@nats-io/transport-node").MsgHdrs} [headers]
   * @property {AbortSignal} [signal]
   * @property {number} [silence]
   * @property {(event: Event) => void} [onEvent]
   */
  async #request(subject, body, { headers, signal, silence = silenceMs.other, onEvent }, alive) {
    await this.#connected(signal);
    const size = Buffer.byteLength(body);
    const limit = (this.connection.info?.max_payload ?? Infinity) - (64 << 10);
    if (size > limit) throw new Refused("too_large", `the batch has ${size} bytes; the limit is ${limit}`, { status: 413 });
    return new Promise((resolve, reject) => {
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
        this.#open.delete(waiting);
        subscription.unsubscribe();
      };
      const fail = (/** @type {unknown} */ error) => (end(), reject(error));
      const stop = () => fail(signal?.reason);
      const quiet = () => fail(new Unavailable("no_answer", "the fleet did not answer in time", { status: 503 }));
      let timer = setTimeout(quiet, silence);
      const chunks = new Chunks();
      const inbox = createInbox(this.inboxPrefix);
      const subscription = this.connection.subscribe(inbox, {
        callback: (error, m) => {
          if (error) return fail(error);
          if (m.data.length === 0 && m.headers?.code === 503) {
            return fail(new Unavailable("no_fleet", "no coordinator answers: start one with `toolfleet dev` or `toolfleet coordinator`", { status: 503 }));
          }
          alive();
          clearTimeout(timer);
          timer = setTimeout(quiet, silence);
          const kind = m.headers?.get("Toolfleet-Event");
          try {
            if (kind && kind !== "waiting") return onEvent?.(m.json());
            if (kind || !chunks.add(m)) return;
          } catch (problem) {
            return fail(problem);
          }
          end();
          resolve(chunks.text());
        },
      });
      const waiting = { subject, fail };
      this.#open.add(waiting);
      signal?.addEventListener("abort", stop, { once: true });
      this.connection.publish(subject, body, { reply: inbox, headers });
    });
  }

  /**
   * Waits a limited time until a lost connection is back.
   * @param {AbortSignal} [signal]
   */
  async #connected(signal) {
    let timer;
    const late = new Promise((give) => (timer = setTimeout(give, silenceMs.other, "late")));
    const stopped = new Promise((stop) => signal?.addEventListener("abort", stop, { once: true }));
    const came = await Promise.race([this.#up, late, stopped]);
    clearTimeout(timer);
    signal?.throwIfAborted();
    if (came === "late" || this.connection.isClosed()) throw this.#lost();
  }

  /** The error of a request whose answer cannot come. */
  #lost() {
    if (this.connection.isClosed()) return new FleetError("closed", "the connection was closed");
    return new Unavailable("no_connection", `the connection to ${this.connection.getServer()} is lost`);
  }

  /** Ends the requests whose answers cannot come any more. */
  async #watch() {
    for await (const status of this.connection.status()) {
      const error = status.type === "error" ? /** @type {any} */ (status.error) : undefined;
      if (status.type === "disconnect") this.#up = new Promise((ready) => (this.#ready = ready));
      for (const { subject, fail } of [...this.#open]) {
        if (status.type === "disconnect" || status.type === "close") fail(this.#lost());
        if (error?.operation === "publish" && error.subject === subject) fail(new FleetError("forbidden", error.message, { status: 403, cause: error }));
      }
      if (status.type !== "reconnect") continue;
      this.#ready();
      for (const missed of this.#watchers) missed();
    }
    this.#ready(); // it is closed
    for (const { fail } of [...this.#open]) fail(this.#lost());
  }
}

/** An answer that comes in one message, or in numbered ones: `1/3`, `2/3`, `3/3`. */
class Chunks {
  /** @type {Uint8Array[]} */
  #parts = [];
  #missing = 1;

  /** @param {Msg} m @returns {boolean} it is complete */
  add(m) {
    const [part, count] = (m.headers?.get("Toolfleet-Chunk") || "1/1").split("/").map(Number);
    if (!(part >= 1 && part <= count && count <= 1 << 16)) throw new FleetError("unreadable", `a part of the answer is numbered ${part}/${count}`);
    if (this.#parts.length === 0) [this.#parts, this.#missing] = [new Array(count).fill(undefined), count];
    if (this.#parts[part - 1] === undefined) this.#missing--;
    this.#parts[part - 1] = m.data;
    return this.#missing === 0;
  }

  text() {
    return Buffer.concat(this.#parts).toString();
  }
}

/**
 * The status that the HTTP API has for the class of a refusal.
 * @type {Record<string, number>}
 */
const statuses = { batch_conflict: 409, too_large: 413, busy: 429, internal: 500 };

/** @param {{status?: string, error: {class: string, message: string, retry_after_ms?: number}}} answer */
function refusalOf(answer) {
  const { class: code, message, retry_after_ms: retryAfterMs } = answer.error;
  const status = statuses[code] ?? 422;
  const stored = answer.status === "refused" && code !== "busy";
  return new (status === 429 || status === 500 ? FleetError : Refused)(code, message, { status, retryAfterMs, reply: stored ? /** @type {any} */ (answer) : undefined });
}

/**
 * The token of an id in a subject.
 * @param {string} id
 */
function token(id) {
  if (typeof id !== "string" || id === "") throw new TypeError(`an id is a text that is not empty; got ${JSON.stringify(id)}`);
  return /^[A-Za-z0-9_-]{1,64}$/.test(id) ? id : "=" + createHash("sha256").update(id).digest("base64url");
}
