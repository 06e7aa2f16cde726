/**
 * A fleet for the tests of an agent: a table of functions in place of workers. It needs no process and no network.
 *
 *     const fleet = fakeFleet({ orders_of: ({ customer }) => [{ id: "A-1", customer }] });
 *     await myAgent(fleet, "What has ann ordered?");
 *     assert.deepEqual(fleet.calls, [{ session: "chat-1", id: "toolu_1", name: "orders_of", input: { customer: "ann" } }]);
 *
 * The calls of a session run one after another, in call order. As with a real fleet, the same batch again gets the same reply and runs nothing.
 * @module
 */
import { Fleet } from "./fleet.js";
import { Api } from "./http.js";

/** @typedef {{id: string, name: string, input?: any, bad?: string}} Asked a call in a message; `bad` says why its arguments cannot be read */
/** @typedef {{session: string, id: string, name: string, input: any}} Made a call that was run */

/**
 * Makes a fleet whose tools are functions. The return value of a function is the output of its
 * call; a thrown error is the call's error.
 * @param {Record<string, (input: any, call: Made) => any>} tools
 * @returns {Fleet & {calls: Made[]}} `calls` are the calls that were run, in order
 */
export function fakeFleet(tools) {
  const server = new Server(tools);
  const fetch = /** @type {typeof globalThis.fetch} */ ((url, init) => server.answer(String(url), init));
  return Object.assign(new Fleet(new Api({ url: "http://fake", patienceMs: 0, fetch })), { calls: server.calls });
}

/** An HTTP API in memory. */
class Server {
  /** @type {Made[]} */
  calls = [];
  /** @type {Map<string, {body: string, reply: Promise<any>}>} by session and id */
  #batches = new Map();
  /** @type {Map<string, Promise<any>>} the newest batch of each session */
  #newest = new Map();
  /** @type {Map<string, any[]>} what was said to a session and not taken along */
  #said = new Map();

  /** @param {Record<string, (input: any, call: Made) => any>} tools */
  constructor(tools) {
    this.tools = tools;
  }

  /**
   * @param {string} address
   * @param {RequestInit} [init]
   */
  async answer(address, { method = "GET", body, headers, signal } = {}) {
    signal?.throwIfAborted();
    const url = new URL(address);
    const [, , place, session, kind, id] = url.pathname.split("/").map(decodeURIComponent);
    if (place === "tools") return json(200, this.#definitions(url.searchParams));
    if (kind === "steer") this.#say(session, JSON.parse(String(body)).steer);
    if (kind === "steer" || kind === "abort") return json(200, { ok: true, seq: 1 });
    const key = JSON.stringify([session, id]);
    const known = this.#batches.get(key);
    if (method === "GET") return known ? json(200, await known.reply) : problem(404, "unknown_batch", "no such batch");
    if (method !== "PUT") return problem(405, "wrong_method", "the fake fleet has no such request");
    if (known && known.body !== body) return problem(409, "batch_conflict", "A batch with this id and another body was submitted before. Use a new id.");
    const reply = known?.reply ?? this.#submit(key, session, id, kind, String(body));
    if (new Headers(headers).get("prefer") === "wait=0") return json(202, { status: "running" });
    const { error, ...answer } = await reply;
    if (error) return problem(422, error.class, error.message);
    if (kind === "calls") {
      const { output, error: failed } = answer.append[0].results[0];
      return json(200, { ...answer.results[0], ...(failed === undefined && { output }) });
    }
    if (!new Headers(headers).get("accept")?.startsWith("text/event-stream")) return json(200, answer);
    const ends = answer.results.map((/** @type {any} */ result) => ({ type: "end", session, batch: id, index: result.index, call_id: result.call_id, tool: result.tool, result }));
    return new Response([...ends, { type: "reply", ...answer }].map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""), {
      headers: { "content-type": "text/event-stream" },
    });
  }

  /**
   * @param {string} key
   * @param {string} session
   * @param {string} id
   * @param {string} kind
   * @param {string} body
   */
  #submit(key, session, id, kind, body) {
    const { provider, message, name, input = {} } = JSON.parse(body);
    const batch = kind === "calls" ? { provider: "canonical", message: { calls: [{ id, name, input }] } } : { provider, message };
    const reply = (this.#newest.get(session) ?? Promise.resolve()).then(() => this.#run(session, id, batch));
    this.#newest.set(session, reply);
    this.#batches.set(key, { body, reply });
    return reply;
  }

  /**
   * @param {string} session
   * @param {string} id
   * @param {{provider: string, message: any}} batch
   */
  async #run(session, id, { provider, message }) {
    const codec = codecs[provider];
    const about = { v: 1, batch: id, session, provider, digest: "" };
    const refused = (/** @type {string} */ word, /** @type {string} */ words) => ({ ...about, status: "refused", error: { class: word, message: words } });
    if (!codec) return refused("unsupported_provider", `the fake fleet does not know provider ${provider}`);
    let asked;
    try {
      asked = codec.calls(message);
    } catch (error) {
      return refused("malformed_message", `the message is not one of ${provider}: ${error}`);
    }
    const results = [];
    for (const [index, call] of asked.entries()) results.push(await this.#call(session, index, call));
    const reinjection = results.length ? codec.reinjection(results) : null;
    const steering = this.#said.get(session) ?? [];
    this.#said.delete(session);
    const append = [...(Array.isArray(reinjection) ? reinjection : reinjection ? [reinjection] : []), ...steering];
    const brief = results.map((/** @type {any} */ { output, ...result }) => result);
    return { ...about, status: "completed", reinjection, append, results: brief, ...(steering.length && { steering }) };
  }

  /**
   * @param {string} session
   * @param {number} index
   * @param {Asked} asked
   */
  async #call(session, index, { id, name, input, bad }) {
    const result = { v: 1, index, call_id: id, tool: name, kind: "write", duration_ms: 0, queue_ms: 0, attempt: 0, was_concurrent: false };
    const failed = (/** @type {string} */ status, /** @type {string} */ code, /** @type {string} */ message) => ({ ...result, status, error: { code, message, retryable: false } });
    if (!Object.hasOwn(this.tools, name)) return failed("unknown_tool", "unknown_tool", `There is no tool named ${JSON.stringify(name)}. Tools that exist: ${Object.keys(this.tools).sort().join(", ")}.`);
    if (bad) return failed("validation_error", "invalid_arguments", `The arguments are not valid JSON: ${bad}. Send one complete JSON object.`);
    const made = { session, id, name, input };
    this.calls.push(made);
    result.attempt = 1;
    try {
      return { ...result, status: "ok", output: (await this.tools[name](input, made)) ?? "" };
    } catch (error) {
      return failed("error", "tool_error", error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {URLSearchParams} query */
  #definitions(query) {
    const provider = query.get("provider") ?? "canonical";
    const names = query.get("names")?.split(",") ?? Object.keys(this.tools);
    const tools = names.sort().map((name) => definition(provider, name));
    return { v: 1, provider, digest: "0".repeat(64), tools: provider === "canonical" ? { tools } : tools };
  }

  /** @param {string} session @param {any} message */
  #say(session, message) {
    this.#said.set(session, [...(this.#said.get(session) ?? []), message]);
  }
}

/** @param {number} status @param {any} body */
const json = (status, body) => new Response(JSON.stringify(body), { status, headers: { "content-type": "application/json" } });
/** @param {number} status @param {string} code @param {string} message */
const problem = (status, code, message) => json(status, { error: { code, message } });

/** @param {string} provider @param {string} name */
function definition(provider, name) {
  const parameters = { type: "object" };
  if (provider === "openai-chat") return { type: "function", function: { name, description: name, parameters } };
  if (provider === "openai-responses") return { type: "function", name, description: name, parameters, strict: false };
  return { name, description: name, input_schema: parameters };
}

/** @param {any} result what the model reads: words of a tool as they are, of the fleet as JSON */
const wordsOf = ({ output, error }) =>
  !error ? (typeof output === "string" ? output : JSON.stringify(output)) : error.code === "tool_error" ? error.message : JSON.stringify({ error: error.code, message: error.message, retryable: error.retryable });
/** @param {any} result the same, for providers that have no mark for errors */
const marked = (result) => (result.error?.code === "tool_error" ? "Error: " : "") + wordsOf(result);

/** @param {{id: string, name: string, text: string}} call @returns {Asked} */
function parsed({ id, name, text }) {
  try {
    return { id, name, input: JSON.parse(text || "{}") };
  } catch (error) {
    return { id, name, bad: error instanceof Error ? error.message : "" };
  }
}

/** @type {Record<string, {calls: (message: any) => Asked[], reinjection: (results: any[]) => any}>} */
const codecs = {
  canonical: {
    calls: (message) => message.calls.map((/** @type {Asked} */ call) => ({ input: {}, ...call })),
    reinjection: (results) => ({ results: results.map((r) => ({ id: r.call_id, name: r.tool, ...(r.error ? { error: wordsOf(r) } : { output: r.output }) })) }),
  },
  anthropic: {
    calls: ({ content }) => (Array.isArray(content) ? content : []).filter((block) => block.type === "tool_use"),
    reinjection: (results) => ({
      role: "user",
      content: results.map((r) => ({ type: "tool_result", tool_use_id: r.call_id, content: [{ type: "text", text: wordsOf(r) }], ...(r.error && { is_error: true }) })),
    }),
  },
  "openai-chat": {
    calls: ({ tool_calls }) => (tool_calls ?? []).map((/** @type {any} */ call) => parsed({ id: call.id, name: call.function.name, text: call.function.arguments })),
    reinjection: (results) => results.map((r) => ({ role: "tool", tool_call_id: r.call_id, content: marked(r) })),
  },
  "openai-responses": {
    calls: (items) => items.filter((/** @type {any} */ item) => item.type === "function_call").map((/** @type {any} */ item) => parsed({ id: item.call_id, name: item.name, text: item.arguments })),
    reinjection: (results) => results.map((r) => ({ type: "function_call_output", call_id: r.call_id, output: marked(r) })),
  },
};
