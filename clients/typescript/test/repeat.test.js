import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";
import { connect } from "../src/index.js";

// The time in which a fleet may be away begins with the last sign of life, not with the request.
test("a stream that is cut after a long time is asked for again", async (t) => {
  t.mock.timers.enable({ apis: ["Date"] });
  const reply = { status: "completed", append: [] };
  let requests = 0;
  let stream;
  const server = http.createServer((_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    if (++requests === 2) return response.end(`event: reply\ndata: ${JSON.stringify(reply)}\n\n`);
    response.write('event: start\ndata: {"n":1}\n\n');
    stream = response;
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const onEvent = ({ n }) => {
    if (n === 2) return stream.destroy();
    t.mock.timers.tick(3_600_000);
    stream.write('event: start\ndata: {"n":2}\n\n');
  };
  const fleet = connect({ url: `http://127.0.0.1:${server.address().port}` });
  assert.deepEqual(await fleet.run({ session: "s", id: "b", provider: "canonical", message: {}, onEvent }), reply);
});
