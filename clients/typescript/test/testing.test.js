import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { Refused, Stopped } from "../src/index.js";
import { fakeFleet } from "../src/testing.js";

const table = fs.readFileSync(new URL("../../testdata/double.jsonl", import.meta.url), "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));

test("a fake fleet answers as the codecs of the fleet do", async () => {
  for (const { provider, message, results, append } of table) {
    const answers = [...results];
    const answer = () => {
      const { output, error } = answers.shift();
      if (error) throw new Error(error);
      return output;
    };
    const reply = await fakeFleet({ text: answer, value: answer, fails: answer }).run({ session: "s", id: "b", provider, message });
    assert.deepEqual(reply.append, append);
  }
});

const message = (...calls) => ({ calls: calls.map(([id, name, input]) => ({ id, name, input })) });

test("calls run one after another, in call order, across batches", async () => {
  const log = [];
  const slow = async ({ n }) => {
    log.push(`begin ${n}`);
    await new Promise(setImmediate);
    log.push(`end ${n}`);
  };
  const fleet = fakeFleet({ slow });
  await Promise.all([
    fleet.run({ session: "s", id: "b", provider: "canonical", message: message(["1", "slow", { n: 1 }], ["2", "slow", { n: 2 }]) }),
    fleet.call({ session: "s", id: "3", name: "slow", input: { n: 3 } }),
    fleet.call({ session: "s", id: "4", name: "slow", input: { n: 4 } }),
  ]);
  assert.deepEqual(log, [1, 2, 3, 4].flatMap((n) => [`begin ${n}`, `end ${n}`]));
  assert.deepEqual(fleet.calls.map(({ id }) => id), ["1", "2", "3", "4"]);
});

test("the same batch runs once, and another one under its id is refused", async () => {
  const fleet = fakeFleet({ note: () => "ok" });
  const batch = { session: "s", id: "b", provider: /** @type {const} */ ("canonical"), message: message(["1", "note", {}]) };
  assert.deepEqual(await fleet.run(batch), await fleet.run(batch));
  assert.equal(fleet.calls.length, 1);
  await assert.rejects(fleet.run({ ...batch, message: message() }), (error) => error instanceof Refused && error.code === "batch_conflict");
});

test("what fails is a result, and no other call is the worse for it", async () => {
  const fleet = fakeFleet({ fine: () => 1 });
  const args = (text) => ({ type: "function_call", call_id: text, name: text === "x" ? "nope" : "fine", arguments: text });
  const reply = await fleet.run({ session: "s", id: "b", provider: "openai-responses", message: [args("x"), args("{bad"), args("{}")] });
  assert.deepEqual(reply.results.map(({ status }) => status), ["unknown_tool", "validation_error", "ok"]);
  assert.deepEqual((await fleet.call({ session: "s", id: "c", name: "nope" })).status, "unknown_tool");
  await assert.rejects(fleet.run({ session: "s", id: "d", provider: "canonical", message: {} }), (error) => error instanceof Refused && error.code === "malformed_message");
});

test("events, steering and definitions", async () => {
  const fleet = fakeFleet({ look: () => "seen" });
  const said = { role: "user", content: "Hurry." };
  await fleet.steer("s", said);
  const events = [];
  const reply = await fleet.run({ session: "s", id: "b", provider: "canonical", message: message(["1", "look", {}]), onEvent: (event) => events.push(event.type) });
  assert.deepEqual(events, ["end"]);
  assert.deepEqual(reply.append.at(-1), said);
  assert.deepEqual((await fleet.tools("anthropic")).map(({ name }) => name), ["look"]);
});

test("a loop goes on until the model makes no calls, and from where it was stored", async () => {
  const script = [message(["1", "look", {}]), message(["2", "look", {}]), message()];
  const fleet = fakeFleet({ look: () => "seen" });
  const ask = async (history) => script[history.length / 2];
  const stored = [];
  const conversation = { session: "s", provider: /** @type {const} */ ("canonical"), history: [] };
  await fleet.loop(conversation, ask, { save: (now) => stored.push(structuredClone(now)) });
  assert.equal(conversation.history.length, 5);
  for (const from of stored.slice(0, -1)) {
    await fleet.loop(from, ask);
    assert.deepEqual(from.history, conversation.history);
  }
  assert.equal(fleet.calls.length, 2);
  const again = { ...conversation, session: "other", history: [] };
  await assert.rejects(fleet.loop(again, ask, { maxRounds: 1 }), (error) => error instanceof Stopped && error.code === "max_rounds");
  await fleet.loop(again, ask);
  assert.deepEqual(again.history, conversation.history);
});
