import { pause } from "./repeat.js";

/**
 * @typedef {import("./messages.js").Event} Event
 * @typedef {Event & {batch: string, attempt?: number, approval?: {id: string}}} Told
 */

/**
 * The sources of a feed: live events, which may be lost, and the stored lists and timelines.
 * @typedef {object} Source
 * @property {AbortSignal} [signal]
 * @property {(take: (event: Told) => void, missed: () => void) => () => void} subscribe Calls
 *   `take` for each live event and each stored reply, and `missed` when some may be lost.
 *   Returns the function that unsubscribes.
 * @property {(after?: number) => Promise<{batches: {batch: string, place?: number}[], place: number, more?: boolean}>} list The open
 *   batches of the session, and before them those that have ended after a place.
 * @property {(batch: string) => Promise<{status?: string, events?: Told[]}>} timeline The durable events of a batch so far.
 */

/** How often a session without events is read. */
const lookMs = 30_000;
/** The pause between two reads of the same session. */
const restMs = 100;
/** How many live events wait for the caller. Further ones are dropped; the timeline has the durable ones. */
const most = 4096;

/**
 * Yields the events of a session: those of its open batches from their beginning, then those
 * of each new batch. A live event of a durable kind only causes a read of the timeline, which
 * has the durable events in order. Progress and hook events are yielded as they come, while
 * their call runs. Without a session, follow yields the live events of all sessions, and a
 * `gap` where some may be missing.
 * @param {string | undefined} session
 * @param {Source} source
 * @returns {AsyncGenerator<Event, never>}
 */
export async function* follow(session, { signal, subscribe, list, timeline }) {
  signal?.throwIfAborted();
  /** @type {Told[]} */
  let live = [];
  let missed = false;
  let wake = () => {};
  const stop = subscribe((event) => {
    if (live.length < most) live.push(event);
    else missed = true;
    wake();
  }, () => {
    missed = true;
    wake();
  });
  const abort = () => wake();
  signal?.addEventListener("abort", abort);
  /** @type {Map<string, Batch>} in the order in which the fleet accepted them */
  let batches = new Map();
  /** @type {number | undefined} */
  let after;
  let stale = session !== undefined; // there may be a batch that is not in batches, or one of them may have ended
  try {
    for (;;) {
      signal?.throwIfAborted();
      const told = live;
      const gap = missed;
      [live, missed] = [[], false];
      if (session === undefined) {
        if (gap) yield { type: "gap" };
        for (const event of told) if (event.type !== undefined && !("append" in event)) yield event;
      } else {
        stale ||= gap;
        for (const batch of batches.values()) batch.due ||= gap;
        for (const event of told) {
          const batch = batches.get(event.batch);
          if (!batch || "append" in event) stale = true; // a new batch, or a stored reply
          batch?.hint(event);
        }
        while (stale) {
          const page = await list(after);
          stale = page.more === true;
          if (stale) await pause(restMs, signal);
          const listed = new Map();
          for (const { batch: id, place } of page.batches) {
            const batch = batches.get(id) ?? new Batch(session, id);
            batches.delete(id);
            if (place && !batch.ended) batch.due = batch.ended = true;
            if (!batch.over || !batch.ended) listed.set(id, batch);
          }
          after = page.place;
          batches = new Map([...listed, ...batches]);
        }
        for (const batch of [...batches.values()]) {
          if (!batch.due) continue;
          batch.due = false;
          const { status, events } = await timeline(batch.id);
          if (status === "unknown") batches.delete(batch.id);
          else yield* batch.read(events ?? []);
          if (batch.over && batch.ended) batches.delete(batch.id);
          stale ||= batch.over && !batch.ended;
        }
        for (const event of told) if (batches.get(event.batch)?.runs(event)) yield event;
        await pause(restMs, signal);
      }
      if (live.length || missed || stale || [...batches.values()].some(({ due }) => due)) continue;
      await new Promise((resolve) => {
        const timer = setTimeout(() => {
          missed = session !== undefined;
          wake();
        }, lookMs);
        wake = () => resolve(clearTimeout(timer));
        if (signal?.aborted) wake();
      });
    }
  } finally {
    signal?.removeEventListener("abort", abort);
    stop();
  }
}

/** A batch, and which of its events were shown. */
class Batch {
  due = true; // its timeline may have something new
  ended = false; // the list has its reply
  over = false; // its reply was shown
  /** @type {Set<string>} */
  #shown = new Set();
  /** @type {Set<number>} the calls that have started and not ended */
  #open = new Set();

  /** @param {string} session @param {string} id */
  constructor(session, id) {
    this.session = session;
    this.id = id;
  }

  /** @param {Told} event a live one */
  hint(event) {
    if (!isPassing(event)) this.due ||= !this.#shown.has(keyOf(event));
  }

  /** @param {Told} event @returns {boolean} it is a live one about a call that runs */
  runs(event) {
    return isPassing(event) && this.#open.has(event.index ?? -1);
  }

  /** @param {Told[]} events those of a timeline @returns {Event[]} the new ones */
  read(events) {
    const fresh = events.filter((event) => !this.#shown.has(keyOf(event)));
    for (const event of fresh) {
      this.#shown.add(keyOf(event));
      if (event.type === "start") this.#open.add(event.index ?? -1);
      if (event.type === "end") this.#open.delete(event.index ?? -1);
      if (event.type === "reply") this.over = true;
    }
    return fresh.map((event) => ({ ...event, session: this.session, batch: this.id }));
  }
}

/** @param {Told} event */
const keyOf = ({ type, index, attempt, approval }) => [type, index, type === "running" ? attempt : "", approval?.id ?? ""].join();
/** @param {Told} event */
const isPassing = ({ type }) => type === "progress" || type === "hook";
