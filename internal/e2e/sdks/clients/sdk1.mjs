// @modelcontextprotocol/sdk 1.x
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { cases, textOf } from "./cases.mjs";

await cases(async ({ url, command, args }) => {
  const client = new Client({ name: "sdk1", version: "1" });
  const transport = url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport({ command, args, env: process.env });
  await client.connect(transport);
  return {
    protocol: transport.protocolVersion, // only over HTTP
    tools: async () => (await client.listTools()).tools.map((t) => t.name),
    run: (calls) =>
      Promise.all(
        calls.map(async ({ name, input, id, signal, progress }) => {
          const _meta = id && { "toolfleet/id": id };
          const r = await client.callTool({ name, arguments: input, _meta }, undefined, { signal, onprogress: progress });
          return { text: textOf(r.content), error: r.isError ?? false };
        }),
      ),
    close: () => client.close(),
  };
});
