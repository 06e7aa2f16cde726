// The tools of the tests. Three runs of meet end together, so reads that wait for one another never end.
import fs from "node:fs";
import { serve, tool } from "toolfleet/worker";

const folder = process.argv[2];
const notes = new Map(); // how often each session has noted
const met = new Map(); // who waits in each session

serve([
  tool({ name: "meet", description: "Waits for two others.", kind: "read", timeout: "60s", run: (_, { session }) => new Promise((leave) => {
    const waiting = [...(met.get(session) ?? []), leave];
    met.set(session, waiting.length < 3 ? waiting : []);
    if (waiting.length === 3) for (const go of waiting) go("met");
  }) }),
  tool({ name: "nap", description: "Takes a second.", kind: "read", timeout: "60s", run: () => new Promise((end) => setTimeout(end, 1000, "slept")) }),
  tool({ name: "note", description: "Notes.", run: (_, { session }) => notes.set(session, (notes.get(session) ?? 0) + 1) && "noted" }),
  tool({ name: "look", description: "Tells how often was noted.", kind: "read", run: (_, { session }) => String(notes.get(session) ?? 0) }),
  tool({ name: "large", description: "Tells much.", kind: "read", run: () => "x".repeat(9000) }),
  tool({ name: "hold", description: "Ends when it may.", timeout: "60s", run: async (_, { key, signal }) => {
    fs.appendFileSync(`${folder}/runs`, `${key}\n`);
    while (!signal.aborted && !fs.existsSync(`${folder}/open`)) await new Promise((again) => setTimeout(again, 5));
    signal.throwIfAborted();
    return "held";
  } }),
]);
