#!/usr/bin/env node
// Starts the program toolfleet. Each platform has a package of its own with the program.
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
const argv0 = process.env.npm_command === "exec" ? "npx toolfleet" : "toolfleet"; // the words with which the user starts it
const child = spawn(command, process.argv.slice(2), { stdio: "inherit", argv0 });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal)); // the program itself decides when to end
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
