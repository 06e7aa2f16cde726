// A long-lived program that passes the table of package programtest, without any library.

import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";

const folder = process.argv[2];
const running = new Map(); // an AbortController for each running call, by the id of its request
const messages = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // what anybody prints goes to stderr

const send = (message) => messages(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");

class Failed extends Error {
  constructor(text, { retryable = false, code = "" } = {}) {
    super(text);
    Object.assign(this, { retryable, code });
  }
}

class Call {
  constructor(params, signal) {
    this.meta = params._meta ?? {};
    this.input = params.arguments ?? {};
    this.signal = signal;
  }
  of(name) {
    return this.meta["toolfleet/" + name] ?? "";
  }
  get file() {
    return path.join(folder, this.of("key"));
  }
  report(progress, message) {
    const progressToken = this.meta.progressToken;
    send({ method: "notifications/progress", params: { progressToken, progress, total: 2, message } });
  }
}

function apply(call) {
  fs.closeSync(fs.openSync(call.file, "a"));
  return "ok";
}

function pay(call) {
  const { amount } = call.input;
  switch (call.of("check")) {
    case "semantic_check":
      if (amount <= 0) throw new Failed("the amount is not positive", { code: "bad_amount" });
      return "ok";
    case "check_permissions":
      return amount > 1000 ? "deny\nover every limit" : amount > 100 ? "ask\na large amount" : "allow";
  }
  return apply(call);
}

const read = { "toolfleet/kind": "read" };
const tools = {
  echo: [(call) => JSON.stringify(call.input), read],
  fail: [() => { throw new Failed("no such customer"); }, {}],
  busy: [() => { throw new Failed("no such customer", { retryable: true }); }, {}],
  wait: [(call) => {
    call.report(1, "waiting");
    return new Promise((_, fail) => call.signal.addEventListener("abort", () => fail(new Failed("cancelled"))));
  }, {}],
  report: [(call) => {
    ["one", "two"].forEach((text, i) => call.report(i + 1, text));
    return "ok";
  }, {}],
  describe: [(call) => ["session", "batch", "call_id", "index", "attempt", "key", "fence"].map((name) => call.of(name) + "\n").join(""), {}],
  apply: [apply, { "toolfleet/on_crash": "idempotent" }],
  checkable: [(call) => (!call.of("probe") ? apply(call) : fs.existsSync(call.file) ? "done" : "not_done"), { "toolfleet/on_crash": "checkable" }],
  pay: [pay, { "toolfleet/checks": "semantic_check check_permissions" }],
  large: [() => "x".repeat(6 << 20) + "TAIL", {}],
  noise: [() => {
    console.log("a word on stdout");
    return "ok";
  }, {}],
  die: [() => process.exit(3), {}],
  pid: [() => String(process.pid), read],
  noop: [() => "", read],
};

async function run(id, params) {
  const call = new Call(params, running.get(id).signal);
  let result;
  try {
    result = { content: [{ type: "text", text: await tools[params.name][0](call) }] };
  } catch (error) {
    result = { content: [{ type: "text", text: error.message }], isError: true, _meta: { "toolfleet/retryable": error.retryable ?? false, "toolfleet/code": error.code ?? "" } };
  }
  running.delete(id);
  send({ id, result });
}

const answers = {
  initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "program", version: "1" } }),
  "tools/list": () => ({
    tools: Object.entries(tools).map(([name, [, _meta]]) => ({ name, description: name, inputSchema: { type: "object" }, _meta })),
  }),
  ping: () => ({}),
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (method === "tools/call") {
    running.set(id, new AbortController());
    run(id, params);
  } else if (method === "notifications/cancelled") {
    running.get(params.requestId)?.abort();
  } else if (answers[method]) {
    send({ id, result: answers[method](params) });
  } else if (id !== undefined) {
    send({ id, error: { code: -32601, message: `no method ${method}` } });
  }
}
