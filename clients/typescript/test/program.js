// The program of package programtest: what a long-lived program has to do, written with the library.
import fs from "node:fs";
import path from "node:path";
import { serve, tool, ToolError, TryAgain } from "../src/worker.js";

const folder = process.argv[2];
const file = (call) => path.join(folder, call.key);
const apply = (_, call) => {
  fs.writeFileSync(file(call), "");
  return "ok";
};
const define = (name, run, more) => tool({ name, description: name, input: { type: "object" }, run, ...more });

serve([
  define("echo", (input) => input, { kind: "read" }),
  define("fail", () => { throw new ToolError("no such customer"); }),
  define("busy", () => { throw new TryAgain("no such customer"); }),
  define("wait", (_, call) => {
    call.progress(0.5, "waiting");
    return new Promise((_, fail) => call.signal.addEventListener("abort", () => fail(call.signal.reason)));
  }),
  define("report", (_, call) => {
    call.progress(0.5, "one");
    call.progress(1, "two");
    return "ok";
  }),
  define("describe", (_, { session, batch, id, index, attempt, key, fence }) => [session, batch, id, index, attempt, key, fence, ""].join("\n")),
  define("apply", apply, { onCrash: "idempotent" }),
  define("checkable", apply, { check: (_, call) => (fs.existsSync(file(call)) ? "done" : "not_done") }),
  define("pay", apply, {
    validate: ({ amount }) => {
      if (amount <= 0) throw new ToolError("the amount is not positive", { code: "bad_amount" });
    },
    permit: ({ amount }) => (amount > 1000 ? ["deny", "over every limit"] : amount > 100 ? ["ask", "a large amount"] : "allow"),
  }),
  define("large", () => "x".repeat(6 << 20) + "TAIL"),
  define("noise", () => {
    console.log("a word on stdout");
    return "ok";
  }),
  define("die", () => process.exit(3)),
  define("pid", () => String(process.pid), { kind: "read" }),
]);
