// @openai/agents, as its runner uses MCP servers: their tools as function tools, invoked with the
// call's signal.
import { Agent, getAllMcpTools, MCPServerStdio, MCPServerStreamableHttp, RunContext } from "@openai/agents";
import { cases } from "./cases.mjs";

await cases(async ({ url, command, args }) => {
  const options = {
    name: "fleet",
    errorFunction: null, // errors are thrown, so that the test sees them
    toolMetaResolver: ({ runContext }) => runContext.context.meta,
  };
  const server = url ? new MCPServerStreamableHttp({ ...options, url }) : new MCPServerStdio({ ...options, command, args, env: process.env });
  await server.connect();
  const tools = await getAllMcpTools({ mcpServers: [server], runContext: new RunContext({}), agent: new Agent({ name: "a" }) });
  const tool = Object.fromEntries(tools.map((t) => [t.name, t]));
  return {
    tools: async () => tools.map((t) => t.name),
    run: (calls) =>
      Promise.all(
        calls.map(async ({ name, input, id, signal }, i) => {
          const context = new RunContext({ meta: id && { "toolfleet/id": id } });
          const toolCall = { type: "function_call", callId: `call-${i}`, name, arguments: JSON.stringify(input) };
          const r = await tool[name].invoke(context, JSON.stringify(input), { toolCall, signal });
          return { text: r.text };
        }),
      ),
    close: () => server.close(),
    cannot: { progress: "the client asks for no progress" },
  };
});
