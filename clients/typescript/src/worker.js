/**
 * Tools as functions of a long-lived program. A worker of the fleet starts it by its tools file, and speaks MCP with it over stdio:
 *
 *     programs: [{command: [node, tools.js]}]
 *
 *     import { serve, tool } from "toolfleet/worker";
 *     serve([tool({ name: "now", description: "The time.", kind: "read", run: () => new Date() })]);
 *
 * @module
 */
import readline from "node:readline";

/**
 * The facts about a call that a tool gets besides the input.
 * @typedef {object} Call
 * @property {string} key Idempotency key: the same in every attempt at the call. Pass it on to the service that does the work.
 * @property {string} fence Digits of a number that grows with every attempt at a write, so
 *   that a store can refuse a late attempt.
 * @property {number} attempt From 1.
 * @property {string} session Id of the conversation.
 * @property {string} batch Id of the batch.
 * @property {string} id The provider's id of the call.
 * @property {number} index Place of the call in its batch.
 * @property {string} tenant Whose call it is.
 * @property {string} [traceparent] W3C trace context.
 * @property {AbortSignal} signal Aborts when the call is aborted or out of time. The run should then end within 0.3 s.
 * @property {(fraction: number, text?: string) => void} progress Says how far the run is, from 0 to 1.
 */

/**
 * A schema that can return its JSON Schema, as those of zod 4 and others can. It also checks
 * the input, and fills in defaults.
 * @template [T=any]
 * @typedef {{"~standard": {
 *   version: 1, vendor: string,
 *   validate: (value: unknown) => any,
 *   jsonSchema: {input: (options: {target: any}) => Record<string, unknown>},
 *   types?: {input: any, output: T} | undefined,
 * }}} StandardSchema
 */

/**
 * What a run returns: text, any JSON value, or content blocks of MCP as `{content: [...]}`.
 * @typedef {any} Output
 */

/**
 * @template [T=any]
 * @typedef {object} Tool
 * @property {string} name What the model calls it: `^[a-zA-Z0-9_-]{1,64}$`.
 * @property {string} description For the model.
 * @property {(input: T, call: Call) => Output | Promise<Output>} run Does the work. What it throws is the call's error.
 * @property {StandardSchema<T> | Record<string, any>} [input] Schema of the input: a Standard JSON Schema, or a JSON Schema. Default: none.
 * @property {"read" | "write" | "compute"} [kind] What it does to the world. Default: write, which runs alone.
 * @property {"once" | "idempotent" | "checkable"} [onCrash] What may happen to a write whose worker is lost in the middle: `once` never runs it
 *   again, `idempotent` does with the same key, `checkable` asks `check` first. Default: checkable if there is a check, else once.
 * @property {(input: T, call: Call) => Checked | Promise<Checked>} [check] Was the write with this key applied? It changes nothing, and throws
 *   when it cannot tell.
 * @property {(input: T, call: Call) => unknown} [validate] Is called first: does an input that
 *   fits the schema make sense? It must change nothing, and throws to refuse the call. A
 *   ToolError gives a code of its own.
 * @property {(input: T, call: Call) => Permit | Promise<Permit>} [permit] Is called before a
 *   run: may the call run? It must change nothing. If it throws, the call is refused.
 * @property {"low" | "medium" | "high" | "critical"} [risk] The tier that its calls have at least. Default: low.
 * @property {string} [timeout] Of one run, for example `5s`. Default: read 5s, compute 2s, write 30s.
 * @property {string} [pool] Which workers run it.
 */

/** @typedef {"done" | "not_done" | {done: Output}} Checked `{done: output}` also gives the output of the run, if it is known. */

/** @typedef {"allow" | "ask" | "deny"} Opinion */
/** @typedef {Opinion | [opinion: Opinion, reason: string]} Permit The reason is for the model and for people. */

/** An error with a code of its own. `retryable` says that the same call may succeed later. */
export class ToolError extends Error {
  /**
   * @param {string} message for the model
   * @param {{code?: string, retryable?: boolean, cause?: unknown}} [about]
   */
  constructor(message, { code, retryable = false, cause } = {}) {
    super(message, { cause });
    this.name = new.target.name;
    this.code = code;
    this.retryable = retryable;
  }
}

/** Nothing was applied, and trying again may help. */
export class TryAgain extends ToolError {
  /** @param {string} message */
  constructor(message) {
    super(message, { retryable: true });
  }
}

/**
 * Declares a tool. It returns its argument; the function exists only for the types.
 * @template T
 * @param {Tool<T>} definition
 * @returns {Tool<T>}
 */
export function tool(definition) {
  return definition;
}

/**
 * Serves tools to the worker that has started this program, until the worker ends. What the
 * program prints goes to stderr.
 * @param {Tool<any>[]} tools
 * @param {{input?: NodeJS.ReadableStream, output?: NodeJS.WritableStream}} [over] Default: stdin and stdout.
 */
export async function serve(tools, { input = process.stdin, output = process.stdout } = {}) {
  const write = output.write.bind(output);
  if (output === process.stdout) {
    process.stdout.write = /** @type {any} */ (process.stderr.write.bind(process.stderr));
    if (process.stdin.isTTY) console.error("This program is for a worker: put it under `programs` in a tools file, and start `toolfleet dev --tools FILE`.");
  }
  const send = (/** @type {object} */ message) => void write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  const byName = new Map(tools.map((one) => [one.name, one]));
  /** @type {Map<unknown, AbortController>} the running calls, by the id of their request */
  const running = new Map();

  /** @type {Record<string, (params: any, id: unknown) => unknown>} */
  const methods = {
    initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "toolfleet", version: "1" } }),
    ping: () => ({}),
    "tools/list": () => ({ tools: tools.map(listed) }),
    "tools/call": async ({ name, arguments: input = {}, _meta = {} }, id) => {
      const found = byName.get(name);
      if (!found) throw new Error(`there is no tool ${name}`);
      const stop = new AbortController();
      running.set(id, stop);
      try {
        return await run(found, input, _meta, stop.signal, (params) => send({ method: "notifications/progress", params }));
      } finally {
        running.delete(id);
      }
    },
    "notifications/cancelled": ({ requestId, reason }) => running.get(requestId)?.abort(new Error(reason || "the call was cancelled")),
  };

  for await (const line of readline.createInterface({ input })) {
    const { id, method, params = {} } = JSON.parse(line);
    const answer = async () => {
      const known = methods[method];
      if (!known && id !== undefined) return send({ id, error: { code: -32601, message: `there is no method ${method}` } });
      try {
        const result = await known?.(params, id);
        if (id !== undefined) send({ id, result });
      } catch (error) {
        if (id !== undefined) send({ id, error: { code: -32602, message: textOf(error) } });
      }
    };
    answer();
  }
}

/**
 * The definition of a tool in tools/list, with its promises in `_meta`.
 * @param {Tool} tool
 */
function listed({ name, description, input, kind = "write", onCrash, check, validate, permit, risk, timeout, pool }) {
  const checks = [validate && "semantic_check", permit && "check_permissions"].filter(Boolean).join(" ") || undefined;
  const promises = { kind, on_crash: onCrash ?? (check && "checkable"), risk, timeout, pool, checks };
  const said = Object.entries(promises).filter(([, value]) => value !== undefined);
  return { name, description, inputSchema: schemaOf(input), _meta: Object.fromEntries(said.map(([key, value]) => [`toolfleet/${key}`, value])) };
}

/** @param {Tool["input"]} input */
function schemaOf(input = { type: "object", properties: {}, additionalProperties: false }) {
  return isStandard(input) ? input["~standard"].jsonSchema.input({ target: "draft-2020-12" }) : input;
}

/**
 * @param {any} input
 * @returns {input is StandardSchema}
 */
const isStandard = (input) => input?.["~standard"]?.jsonSchema !== undefined;

/**
 * Runs a call, or answers a question about it, and returns the result in MCP's form. A failure
 * is also a result.
 * @param {Tool} tool
 * @param {any} input
 * @param {Record<string, any>} meta
 * @param {AbortSignal} signal
 * @param {(params: object) => void} report
 */
async function run(tool, input, meta, signal, report) {
  const of = (/** @type {string} */ name) => meta[`toolfleet/${name}`];
  let highest = 0;
  /** @type {Call} */
  const call = {
    key: of("key"), fence: of("fence"), attempt: of("attempt"), session: of("session"), batch: of("batch"), id: of("call_id"),
    index: of("index"), tenant: of("tenant"), traceparent: meta.traceparent, signal,
    progress(fraction, text) {
      highest = Math.max(highest, Math.min(fraction, 1)); // the protocol requires numbers that do not fall
      if (meta.progressToken !== undefined) report({ progressToken: meta.progressToken, progress: highest, total: 1, message: text });
    },
  };
  try {
    const checked = isStandard(tool.input) ? valueOf(await tool.input["~standard"].validate(input)) : input;
    if (of("check")) return { content: [{ type: "text", text: await opinion(tool, of("check"), checked, call) }] };
    if (!of("probe")) return resultOf(await tool.run(checked, call));
    const was = await tool.check?.(checked, call);
    if (typeof was === "object") return { content: [{ type: "text", text: ["done", ...resultOf(was.done).content.map((block) => block.text)].join("\n") }] };
    return resultOf(was);
  } catch (error) {
    const { code, retryable } = /** @type {any} */ (error ?? {});
    if (!(error instanceof ToolError)) console.error(error);
    const _meta = { "toolfleet/retryable": retryable === true, ...(error instanceof ToolError && code && { "toolfleet/code": code }) };
    return { content: [{ type: "text", text: textOf(error) }], isError: true, _meta };
  }
}

/**
 * Returns what a tool says about a call before it runs.
 * @param {Tool} tool
 * @param {string} question
 * @param {any} input
 * @param {Call} call
 */
async function opinion(tool, question, input, call) {
  if (question === "semantic_check" && tool.validate) {
    await tool.validate(input, call);
    return "ok";
  }
  if (question === "check_permissions" && tool.permit) return [await tool.permit(input, call)].flat().join("\n");
  throw new ToolError(`${tool.name} has no answer to ${question}`);
}

/** @param {unknown} error */
const textOf = (error) => (error instanceof Error ? error.message : String(error));

/**
 * The value of a checked input, with its defaults.
 * @param {{value?: any, issues?: readonly {message: string, path?: readonly any[]}[]}} checked
 */
function valueOf({ value, issues }) {
  if (!issues) return value;
  const texts = issues.map(({ message, path = [] }) => `/${path.map((part) => part?.key ?? part).join("/")}: ${message}`);
  throw new ToolError(texts.join("; "), { code: "invalid_arguments" });
}

/**
 * @param {Output} output
 * @returns {{content: any[]}}
 */
function resultOf(output) {
  if (output === undefined) return { content: [] };
  if (Array.isArray(output?.content) && output.content.every((/** @type {any} */ block) => typeof block?.type === "string")) return { content: output.content };
  return { content: [{ type: "text", text: typeof output === "string" ? output : JSON.stringify(output) }] };
}
