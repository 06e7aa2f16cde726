#!/usr/bin/env node
// Starts the command toolfleet, which comes in a package of its own for each platform.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { constants } from "node:os";

const name = `@toolfleet/${process.platform}-${process.arch}`;
let command;
try {
  command = createRequire(import.meta.url).resolve(`${name}/bin/toolfleet${process.platform === "win32" ? ".exe" : ""}`);
} catch {
  console.error(`toolfleet: the package ${name} is not installed. Install it with the optional dependencies, or build the command: go build ./cmd/toolfleet`);
  process.exit(1);
}
const argv0 = process.env.npm_command === "exec" ? "npx toolfleet" : "toolfleet"; // what people type to start it
const child = spawn(command, process.argv.slice(2), { stdio: "inherit", argv0 });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal)); // the command decides when it ends
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
