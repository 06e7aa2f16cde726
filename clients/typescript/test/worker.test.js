import assert from "node:assert/strict";
import { PassThrough } from "node:stream";
import { test } from "node:test";
import { serve, tool, ToolError } from "../src/worker.js";

/** Asks a program made of these tools, and returns its answers. */
async function ask(tools, ...requests) {
  const input = new PassThrough();
  const output = new PassThrough({ encoding: "utf8" });
  const served = serve(tools, { input, output });
  const lines = [];
  for (const [i, [method, params]] of requests.entries()) {
    input.write(JSON.stringify({ jsonrpc: "2.0", id: i, method, params }) + "\n");
    for await (const line of output.iterator({ destroyOnReturn: false })) {
      lines.push(JSON.parse(line));
      if (lines.at(-1).id === i) break;
    }
  }
  input.end();
  await served;
  return lines;
}

const call = (name, input, meta) => ["tools/call", { name, arguments: input, _meta: meta }];

test("a tool promises what it says, and nothing else", async () => {
  const [{ result }] = await ask(
    [
      tool({ name: "a", description: "A.", run: () => 1 }),
      tool({ name: "b", description: "B.", kind: "read", risk: "high", timeout: "5s", pool: "p", input: { type: "object" }, run: () => 1 }),
      tool({ name: "c", description: "C.", run: () => 1, check: () => "done" }),
    ],
    ["tools/list"],
  );
  assert.deepEqual(result.tools, [
    { name: "a", description: "A.", inputSchema: { type: "object", properties: {}, additionalProperties: false }, _meta: { "toolfleet/kind": "write" } },
    { name: "b", description: "B.", inputSchema: { type: "object" }, _meta: { "toolfleet/kind": "read", "toolfleet/risk": "high", "toolfleet/timeout": "5s", "toolfleet/pool": "p" } },
    { name: "c", description: "C.", inputSchema: { type: "object", properties: {}, additionalProperties: false }, _meta: { "toolfleet/kind": "write", "toolfleet/on_crash": "checkable" } },
  ]);
});

// A Standard JSON Schema as a library makes it: it says its JSON Schema, checks, and fills in defaults.
const schema = {
  "~standard": {
    version: /** @type {const} */ (1),
    vendor: "test",
    validate: (value) => (value.n > 9 ? { issues: [{ message: "too much", path: ["n"] }] } : { value: { n: 1, ...value } }),
    jsonSchema: { input: ({ target }) => ({ target, type: "object" }) },
  },
};

test("a Standard JSON Schema is listed, checks and fills in", async () => {
  const [list, fine, wrong] = await ask([tool({ name: "a", description: "A.", input: schema, run: (input) => input })], ["tools/list"], call("a", {}), call("a", { n: 10 }));
  assert.deepEqual(list.result.tools[0].inputSchema, { target: "draft-2020-12", type: "object" });
  assert.deepEqual(fine.result, { content: [{ type: "text", text: '{"n":1}' }] });
  assert.deepEqual(wrong.result, { content: [{ type: "text", text: "/n: too much" }], isError: true, _meta: { "toolfleet/retryable": false, "toolfleet/code": "invalid_arguments" } });
});

test("what a run returns", async () => {
  const image = { type: "image", data: "AA==", mimeType: "image/png" };
  for (const [output, content] of [
    ["text", [{ type: "text", text: "text" }]],
    [undefined, []],
    [null, [{ type: "text", text: "null" }]],
    [{ content: [image] }, [image]],
    [{ content: ["no block"] }, [{ type: "text", text: '{"content":["no block"]}' }]],
  ]) {
    const [{ result }] = await ask([tool({ name: "a", description: "A.", run: () => output })], call("a", {}));
    assert.deepEqual(result, { content });
  }
});

test("a probe may know what the run returned", async () => {
  const checked = tool({ name: "a", description: "A.", run: () => 1, check: () => ({ done: { paid: true } }) });
  const [{ result }] = await ask([checked], call("a", {}, { "toolfleet/probe": true }));
  assert.deepEqual(result, { content: [{ type: "text", text: 'done\n{"paid":true}' }] });
});

test("a probe that throws does not know", async () => {
  const checked = tool({ name: "a", description: "A.", run: () => 1, check: () => { throw new ToolError("the bank is closed"); } });
  const [{ result }] = await ask([checked], call("a", {}, { "toolfleet/probe": true }));
  assert.equal(result.isError, true);
});

test("a question never runs the tool", async () => {
  let paid = 0;
  const pay = tool({ name: "a", description: "A.", run: () => void paid++ });
  for (const question of ["semantic_check", "check_permissions"]) {
    const [{ result }] = await ask([pay], call("a", {}, { "toolfleet/check": question }));
    assert.equal(result.isError, true);
  }
  const asked = { ...pay, validate: () => {}, permit: () => "allow" };
  const [{ result: list }] = await ask([asked], ["tools/list", {}]);
  assert.equal(list.tools[0]._meta["toolfleet/checks"], "semantic_check check_permissions");
  const [{ result }] = await ask([asked], call("a", {}, { "toolfleet/check": "semantic_check" }));
  assert.equal(result.content[0].text, "ok");
  assert.equal(paid, 0);
});

test("what is asked and is not there", async () => {
  const [method, name] = await ask([], ["resources/list"], call("a", {}));
  assert.deepEqual([method.error.code, name.error.code], [-32601, -32602]);
});
