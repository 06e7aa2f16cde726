// The cases that every client is tried with. A client's program gives one function:
//
//   await cases(async (where) => client)
//
// where is {url, headers} of the HTTP endpoint or {command, args} of a program, and {id} is the id
// of the only call that the case makes with one. client has
//
//   protocol                 the version of the protocol that was agreed on, if the client says it
//   tools()                  the names of the tools
//   run(calls)               hands calls over together, as the SDK does with the calls of one
//                            message. A call is {name, input, id, signal, progress}, a result
//                            {text, error}; without error the client does not tell whether it failed
//   close()
//   cannot                   cases that the client cannot do, with the reason
//
// The test starts the program with the names of cases, and reads a line for each on stdout. It
// writes a line to stdin when it has seen what a case waits for.
import assert from "node:assert/strict";
import readline from "node:readline";

const { CASES, URL: url, COMMAND: command, SESSION: session, ID: id, ROUNDS } = process.env;
const rounds = Number(ROUNDS);
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const heard = async (what) => assert.equal((await input.next()).value, what);
const one = async (c, call) => (await c.run([call]))[0];
const fine = (result, text) => assert.deepEqual({ ...result, error: result.error ?? false }, { text, error: false });
const failed = (result, says) => {
  assert.ok(result.error ?? true);
  assert.match(result.text, says);
};

const table = {
  async list(c) {
    assert.deepEqual((await c.tools()).sort(), ["fail", "hold", "idle", "look", "meet", "note", "steps"]);
  },
  async call(c) {
    fine(await one(c, { name: "look", input: { note: "ünï\u2028😀" } }), "0 ünï\u2028😀");
  },
  async error(c) {
    failed(await one(c, { name: "fail", input: {} }), /The shop is closed\./);
    failed(await one(c, { name: "look", input: { wrong: 1 } }), /wrong|schema/); // LangChain looks itself, and names no key
  },
  // Each read sees the write before it and not the one after it.
  async order(c) {
    for (let i = 1; i <= rounds; i++) {
      fine(await one(c, { name: "note", input: {} }), `${i}`);
      fine(await one(c, { name: "look", input: {} }), `${i} `);
    }
  },
  // The same, with both calls handed over before the first one has ended. Over stdio the order is
  // that of the lines. Over HTTP it is that of two requests: the test counts the swapped ones.
  async together(c) {
    let swapped = 0;
    for (let i = 1; i <= rounds; i++) {
      const [wrote, read] = await c.run([{ name: "note", input: {} }, { name: "look", input: {} }]);
      fine(wrote, `${i}`);
      if (read.text !== `${i} `) swapped++;
    }
    return { swapped };
  },
  // A read ends when all three have begun.
  async reads(c) {
    for (const r of await c.run([1, 2, 3].map(() => ({ name: "meet", input: {} })))) fine(r, "all three are here");
  },
  async progress(c) {
    const heardOf = [];
    let told;
    const halfway = new Promise((resolve) => (told = resolve));
    const progress = (p) => {
      heardOf.push(p);
      if (/half/.test(p.message)) told();
    };
    const ended = one(c, { name: "steps", input: {}, progress });
    await Promise.race([halfway, ended]);
    say({ case: "progress", go: true });
    fine(await ended, "stepped");
    const numbers = heardOf.map((p) => p.progress);
    assert.ok(numbers.every((n, i) => i === 0 || n > numbers[i - 1]), `${numbers} do not grow`);
    assert.match(heardOf.map((p) => p.message).join(), /steps runs.*half/);
  },
  async cancel(c) {
    const stop = new AbortController();
    const ended = one(c, { name: "idle", input: {}, signal: stop.signal }).then(
      (r) => r.error,
      () => true,
    );
    await heard("entered");
    stop.abort();
    assert.equal(await ended, true);
    say({ case: "cancel", go: true });
    await heard("aborted"); // the client stays until the call is
  },
  // The first process is killed while the call runs. The second one asks for the same call.
  async kill(c) {
    const call = { name: "hold", input: {}, id };
    say({ case: "kill", go: true });
    fine(await one(c, call), "held");
  },
};

export async function cases(connect) {
  for (const name of CASES.split(",")) {
    try {
      // Each case has a session of its own, as a conversation has.
      const s = `${session}-${name}`;
      const withID = name === "kill" ? { id } : {};
      const where = url
        ? { url: `${url}/mcp/${encodeURIComponent(s)}`, headers: {}, ...withID }
        : { command, args: ["mcp", "--session", s], ...withID };
      const c = await connect(where);
      if (c.cannot?.[name]) {
        say({ case: name, cannot: c.cannot[name] });
      } else {
        const found = await table[name](c);
        say({ case: name, ok: true, protocol: c.protocol, ...found });
      }
      await c.close();
    } catch (e) {
      say({ case: name, failed: String(e?.stack ?? e).split("\n    at ")[0] });
    }
  }
  process.exit(0);
}

/** Returns the text of a list of blocks. */
export const textOf = (content) => content.map((b) => (b.type === "text" ? b.text : `[${b.type}]`)).join("");
