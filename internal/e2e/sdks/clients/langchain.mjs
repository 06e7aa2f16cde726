// @langchain/mcp-adapters, as ToolNode of LangGraph uses it: the tools of a MultiServerMCPClient.
import { MultiServerMCPClient } from "@langchain/mcp-adapters";
import { cases, textOf } from "./cases.mjs";

await cases(async ({ url, command, args, id }) => {
  let progress;
  const client = new MultiServerMCPClient({
    useStandardContentBlocks: false,
    onProgress: (p) => progress?.(p),
    // The adapter sends no _meta. Over HTTP a header can bring the id.
    beforeToolCall: () => (url && id ? { headers: { "Idempotency-Key": id } } : undefined),
    // Without this the model reads the text, structuredContent and _meta as one JSON object.
    afterToolCall: ({ result: [content] }) => ({ result: typeof content === "string" ? content : textOf(content) }),
    mcpServers: { fleet: url ? { transport: "http", url } : { transport: "stdio", command, args, env: process.env } },
  });
  const tools = await client.getTools();
  const tool = Object.fromEntries(tools.map((t) => [t.name, t]));
  return {
    tools: async () => tools.map((t) => t.name),
    run: (calls) =>
      Promise.all(
        calls.map(async (call) => {
          progress = call.progress;
          try {
            const m = await tool[call.name].invoke(
              { type: "tool_call", id: "c", name: call.name, args: call.input },
              { signal: call.signal },
            );
            return { text: typeof m.content === "string" ? m.content : textOf(m.content), error: m.status === "error" };
          } catch (e) {
            return { text: e.message, error: true };
          }
        }),
      ),
    close: () => client.close(),
    cannot: url ? {} : { kill: "the adapter sends no _meta, so over stdio no call has an id" },
  };
});
