/**
 * A request to the fleet failed. A failed tool call is not such an error: its result says that
 * it failed.
 *
 * `code` is a word to branch on: the class of a refusal, or a code of docs/http.md.
 */
export class FleetError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{status?: number, retryAfterMs?: number, reply?: import("./messages.js").Reply, cause?: unknown}} [about]
   */
  constructor(code, message, about = {}) {
    super(`${code}: ${message}`, { cause: about.cause });
    this.name = new.target.name;
    this.code = code;
    /** Status of the HTTP answer; 0 when there was none. */
    this.status = about.status ?? 0;
    /** How long to wait before the next try, in milliseconds, if a next try may help. */
    this.retryAfterMs = about.retryAfterMs;
    /** The stored reply of a batch that was refused. */
    this.reply = about.reply;
  }
}

/** The fleet refused the request, and nothing ran. The same request again is refused again. */
export class Refused extends FleetError {}

/** The fleet cannot be reached, or does not answer. A batch may run nevertheless: run it again, with the same id. */
export class Unavailable extends FleetError {}

/** A call has failed. `message` is for the model. */
export class CallFailed extends Error {
  /** @param {import("./messages.js").Result} result */
  constructor(result) {
    super(textOf(result));
    this.name = "CallFailed";
    this.result = result;
  }
}

/** A turn ended early. The history is valid, and another loop may go on with it. */
export class Stopped extends Error {
  /** @param {"max_rounds" | "aborted"} code */
  constructor(code) {
    super(code === "aborted" ? "the calls of the model were aborted" : "the model still makes calls after the last round that it has");
    this.name = "Stopped";
    this.code = code;
  }
}

/**
 * What the model reads of a result: the output as text, or the sentence of an error.
 * @param {import("./messages.js").Result} result
 * @returns {string}
 */
export function textOf({ output, content, error }) {
  if (error !== undefined) return error.message;
  if (content !== undefined) return content.map((block) => block.text ?? `[${block.type}]`).join("\n");
  return typeof output === "string" ? output : JSON.stringify(output ?? null);
}

/**
 * The output of a call that has succeeded. Throws `CallFailed` if the call has not succeeded.
 * @param {import("./messages.js").Result} result
 * @returns {any} the output, or the content blocks
 */
export function outputOf(result) {
  if (result.status !== "ok") throw new CallFailed(result);
  return result.content ?? result.output;
}
