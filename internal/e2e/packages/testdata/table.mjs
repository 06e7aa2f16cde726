// Does lines of the shared table of client behaviour over NATS, all at once. Each line of the input is one of the table, with the server and
// the prefix that play it; each line of the output is what came of one.
import * as toolfleet from "toolfleet";
import { connect } from "toolfleet/nats";

let text = "";
for await (const part of process.stdin) text += part;

/** Calls a method of the table with what it is called with in this language. */
async function perform(fleet, { do: method, args, listen }, events) {
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
  }
}

await Promise.all(text.trim().split("\n").map(async (text) => {
  const line = JSON.parse(text);
  const fleet = await connect({ url: line.url, prefix: line.prefix, ...("patience_ms" in line && { patienceMs: line.patience_ms }) });
  const events = [];
  const came = { name: line.name, events };
  try {
    came.returns = (await perform(fleet, line, events)) ?? null;
  } catch (error) {
    const kind = ["Refused", "Unavailable", "FleetError"].find((name) => error.constructor === toolfleet[name]);
    if (!kind) throw error;
    came.throws = { kind, code: error.code, status: error.status, reply: error.reply };
  }
  console.log(JSON.stringify(came));
  await fleet.close();
}));
