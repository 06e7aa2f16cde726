// Every method of the client over NATS, once.
import assert from "node:assert/strict";
import { FleetError, Refused } from "toolfleet";
import { connect } from "toolfleet/nats";

const fleet = await connect();
const session = "every/method";
const message = (...calls) => ({ calls: calls.map(([id, name]) => ({ id, name, input: {} })) });
const batch = (id, ...calls) => ({ session, id, provider: "canonical", message: message(...calls) });

const { digest, tools } = await fleet.catalogue("anthropic", { names: ["look", "note"] });
assert.deepEqual(tools.map(({ name }) => name), ["look", "note"]);

// A batch runs once, and no other has its id.
const first = { ...batch("one", ["w", "note"], ["r", "look"]), catalogue: digest };
const events = [];
const reply = await fleet.run({ ...first, onEvent: (event) => events.push(event.type) });
assert.deepEqual(reply.append[0].results.map(({ output }) => output), ["noted", 1]);
assert.equal(events.filter((type) => type === "end").length, 2);
assert.deepEqual(await fleet.run(first), reply);
assert.deepEqual(await fleet.get(session, "one"), reply);
await assert.rejects(fleet.run(batch("one")), (error) => error instanceof Refused && error.code === "batch_conflict");
await assert.rejects(fleet.run({ ...batch("twins", ["a", "look"], ["a", "look"]) }), (error) => error instanceof Refused && error.code === "duplicate_id" && error.reply.status === "refused");
await assert.rejects(fleet.get(session, "none"), (error) => error instanceof FleetError && error.code === "unknown_batch");

// A reply that is larger than a message comes in parts.
const many = await fleet.run({ ...batch("many", ...Array.from({ length: 130 }, (_, i) => [`c${i}`, "large"])), session: "many" });
assert.ok(many.append[0].results.every(({ output }) => output === "x".repeat(9000)));

// A signal ends the waiting and nothing else. What is said meanwhile comes with the reply.
const left = new AbortController();
const waits = fleet.run({ ...batch("waits", ["h", "hold"]), signal: left.signal, onEvent: ({ type }) => type === "running" && left.abort(new Error("gone")) });
await assert.rejects(waits, { message: "gone" });
assert.equal((await fleet.get(session, "waits")).status, "running");
const followed = [];
const ends = (async () => {
  for await (const { type, batch } of fleet.follow(session)) {
    followed.push(`${batch} ${type}`);
    if (type === "running") await fleet.abort(session, { id: "waits", reason: "enough" });
    if (batch === "next" && type === "reply") return;
  }
})();
await fleet.steer(session, { role: "user", content: "Hurry." });
const again = await fleet.run(batch("waits", ["h", "hold"]));
assert.deepEqual([again.results[0].status, again.steering], ["outcome_unknown", [{ role: "user", content: "Hurry." }]]);
await fleet.run(batch("next", ["r", "look"]));
await ends;
const durable = (of) => ["start", "running", "end", "result", "reply"].map((type) => `${of} ${type}`);
assert.deepEqual(followed, [...durable("waits"), ...durable("next")]);

await fleet.close();
await assert.rejects(fleet.tools(), (error) => error.code === "closed");
console.log("ok");
