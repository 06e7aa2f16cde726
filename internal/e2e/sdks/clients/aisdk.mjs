// @ai-sdk/mcp, as generateText and streamText use it: the execute of each tool.
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport as Stdio } from "@ai-sdk/mcp/mcp-stdio";
import { cases, textOf } from "./cases.mjs";

await cases(async ({ url, command, args, id }) => {
  // The client sends no _meta. Over HTTP a header can bring the id.
  const headers = id ? { "Idempotency-Key": id } : {};
  const transport = url ? { type: "http", url, headers } : new Stdio({ command, args, env: process.env });
  const client = await createMCPClient({ transport });
  const tools = await client.tools();
  let made = 0;
  return {
    tools: async () => Object.keys(tools),
    run: (calls) =>
      Promise.all(
        calls.map(async ({ name, input, signal }) => {
          const r = await tools[name].execute(input, { toolCallId: `call-${++made}`, messages: [], abortSignal: signal });
          return { text: textOf(r.content), error: r.isError ?? false };
        }),
      ),
    close: () => client.close(),
    cannot: {
      progress: "the client asks for no progress",
      ...(url
        ? {}
        : {
            kill: "the client sends no _meta, so over stdio no call has an id",
            cancel: "over stdio the client does not tell the server",
          }),
    },
  };
});
