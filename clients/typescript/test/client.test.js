// The shared table of client behaviour: each line is a method, the HTTP exchanges that it makes, and what comes of it.
import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import { test } from "node:test";
import * as toolfleet from "../src/index.js";

const table = fs.readFileSync(new URL("../../testdata/client.jsonl", import.meta.url), "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));

/** A server that plays the exchanges of a line, and what it found wrong with the requests. */
async function play(exchanges) {
  const wrong = [];
  const sent = new Map(); // the body of each path
  let next = 0;
  const server = http.createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts).toString();
    const [want, answer] = exchanges[next++] ?? [];
    try {
      assert.ok(want, `another request came: ${request.method} ${request.url}`);
      assert.equal(request.method, want.method);
      assert.deepEqual(placeOf(request.url), placeOf(want.path));
      for (const [name, value] of Object.entries(want.headers ?? {})) assert.equal(request.headers[name], value, name);
      if (want.body !== undefined) assert.deepEqual(JSON.parse(body), want.body);
      if (request.method === "PUT") assert.equal(sent.get(request.url) ?? body, body, "the bytes of a batch have changed");
      sent.set(request.url, body);
    } catch (error) {
      wrong.push(error);
    }
    if (!answer?.status) return request.socket.destroy();
    response.writeHead(answer.status, { ...(answer.events && { "content-type": "text/event-stream" }), ...answer.headers });
    if (answer.events) response.write(": open\n\n");
    for (const { id, type, data } of answer.events ?? []) response.write(`${id ? `id: ${id}\n` : ""}event: ${type}\ndata: ${JSON.stringify(data)}\n\n`);
    if (!answer.cut) return response.end(answer.events ? "" : (answer.text ?? JSON.stringify(answer.body)));
    response.write(answer.text ?? ": cut\n\n", () => setImmediate(() => request.socket.destroy()));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    close() {
      server.closeAllConnections();
      server.close();
      assert.deepEqual(wrong, []);
      assert.equal(next, exchanges.length, "requests");
    },
  };
}

const placeOf = (path) => {
  const url = new URL(path, "http://x");
  return [url.pathname.split("/").map(decodeURIComponent), Object.fromEntries(url.searchParams)];
};

/** Calls a method of the table with what it is called with in this language. */
async function perform(fleet, { do: method, args, listen, take }, events) {
  const { session, provider, message, timeout_ms: timeoutMs, ...rest } = args;
  switch (method) {
    case "run":
      return fleet.run({ ...rest, session, provider, message, timeoutMs, onEvent: listen && ((event) => events.push(event)) });
    case "call":
      return fleet.call({ ...rest, session, timeoutMs });
    case "tools":
    case "catalogue":
      return fleet[method](provider, rest);
    case "get":
      return fleet.get(session, rest.id, rest);
    case "steer":
      return fleet.steer(session, message, rest);
    case "abort":
      return fleet.abort(session, rest);
    case "follow": {
      const seen = [];
      for await (const event of fleet.follow(session)) if (seen.push(event) === take) return seen;
    }
  }
}

for (const line of table) {
  test(line.name, async () => {
    const server = await play(line.http);
    const fleet = toolfleet.connect({ url: server.url, token: line.token, ...("patience_ms" in line && { patienceMs: line.patience_ms }) });
    const events = [];
    try {
      const done = perform(fleet, line, events);
      if (line.throws) {
        const { kind, ...about } = line.throws;
        await assert.rejects(done, (error) => {
          assert.equal(error.constructor, toolfleet[kind]);
          for (const [name, value] of Object.entries(about)) assert.deepEqual(error[name], value);
          return true;
        });
      } else {
        assert.deepEqual((await done) ?? null, line.returns);
      }
      if (line.events) assert.deepEqual(events, line.events);
    } finally {
      server.close();
    }
  });
}
