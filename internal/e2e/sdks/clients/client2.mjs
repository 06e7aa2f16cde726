// @modelcontextprotocol/client 2.x. VERSION is the protocol to insist on; "legacy" is the handshake
// of 2025.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { cases, textOf } from "./cases.mjs";

const version = process.env.VERSION;

await cases(async ({ url, command, args }) => {
  const mode = version === "legacy" ? "legacy" : { pin: version };
  const client = new Client({ name: "client2", version: "1" }, { versionNegotiation: { mode } });
  await client.connect(url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport({ command, args, env: process.env }));
  return {
    protocol: client.getNegotiatedProtocolVersion(),
    tools: async () => (await client.listTools()).tools.map((t) => t.name),
    run: (calls) =>
      Promise.all(
        calls.map(async ({ name, input, id, signal, progress }) => {
          const _meta = id && { "toolfleet/id": id };
          const r = await client.callTool({ name, arguments: input, _meta }, { signal, onprogress: progress });
          return { text: textOf(r.content), error: r.isError ?? false };
        }),
      ),
    close: () => client.close(),
  };
});
