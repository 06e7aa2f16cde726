// The conformance suite imports fs.globSync, which Node 22 brought, and does not need it to try a
// server. This gives it one with an older Node.
import { register } from "node:module";

const fs = `export * from "node:fs"; export { default } from "node:fs"; export const globSync = () => { throw new Error("fs.globSync needs Node 22") };`;
const hooks = `export const resolve = (name, context, next) =>
  name === "fs" && context.parentURL?.includes("/conformance-20") ? { url: ${JSON.stringify("data:text/javascript," + encodeURIComponent(fs))}, shortCircuit: true } : next(name, context);`;
register("data:text/javascript," + encodeURIComponent(hooks));
