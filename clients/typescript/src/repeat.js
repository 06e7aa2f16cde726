import { FleetError, Unavailable } from "./errors.js";

/** How long a fleet that has never answered is tried, in milliseconds. */
const firstContactMs = 3000;

/** Repeats requests to a fleet until there is a final answer. */
export class Repeater {
  /** A fleet has answered. */
  #met = false;

  /** @param {number} patienceMs */
  constructor(patienceMs) {
    this.patienceMs = patienceMs;
  }

  /**
   * @template T
   * @param {(alive: () => void) => Promise<T>} attempt sends the request once. It calls `alive` when something arrives.
   * @param {{signal?: AbortSignal, once?: boolean}} [options] `once`: the request must not be repeated.
   * @returns {Promise<T>}
   */
  async repeat(attempt, { signal, once } = {}) {
    let lostAt = 0; // since when the fleet is away
    for (let wait = 100; ; wait = Math.min(2 * wait, 2000)) {
      const began = Date.now();
      let heard = began;
      const alive = () => {
        this.#met = true;
        [heard, lostAt] = [Date.now(), 0];
      };
      try {
        const answer = await attempt(alive);
        this.#met = true;
        return answer;
      } catch (error) {
        signal?.throwIfAborted();
        if (!(error instanceof FleetError)) throw error;
        this.#met ||= !(error instanceof Unavailable);
        if (once || !mayRepeat(error)) throw error;
        const { code, retryAfterMs } = error;
        if (!(error instanceof Unavailable)) {
          lostAt = 0; // the fleet has answered: the batch runs, or the fleet is busy
        } else {
          lostAt ||= heard;
          if (Date.now() - lostAt >= (this.#met ? this.patienceMs : Math.min(firstContactMs, this.patienceMs))) throw error;
        }
        // If the request has already waited for the batch, send the next one at once.
        await pause(code === "running" ? (retryAfterMs ?? 0) - (Date.now() - began) : Math.max(wait, retryAfterMs ?? 0), signal);
      }
    }
  }
}

/** @param {FleetError} error */
const mayRepeat = (error) => error instanceof Unavailable || [408, 429].includes(error.status) || error.code === "running";

/**
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function pause(ms, signal) {
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
