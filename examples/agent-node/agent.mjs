// An agent in twenty lines: ask the model, let the fleet run its calls, append both, until there are no calls.
import { randomUUID } from "node:crypto";

import { askModel, show } from "./script.mjs";
import { run } from "./toolfleet.mjs";

const session = `chat-${randomUUID()}`;
const history = [{ role: "user", content: "What is left to do? Keep the list up to date." }];

for (;;) {
  const message = await askModel(history); // the call of your provider's SDK goes here
  history.push(message);
  const reply = await run({ session, id: `turn-${history.length}`, provider: "anthropic", message });
  if (reply.results.length === 0) break; // no calls: the model is done
  history.push(...reply.append);
}

show(history);
