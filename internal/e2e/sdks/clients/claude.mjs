// @anthropic-ai/claude-agent-sdk. Its loop is inside, so a model of our own answers on this machine:
// each message of the user has it call the tools that a case names. The name of a call is its id.
import { query } from "@anthropic-ai/claude-agent-sdk";
import http from "node:http";
import { cases, textOf } from "./cases.mjs";

const prefix = "mcp__fleet__";

/** A model that makes the calls of plan.calls and takes their results. */
async function model(plan) {
  const server = http.createServer(async (req, res) => {
    let body = "";
    for await (const part of req) body += part;
    const { messages = [], tools = [], stream } = JSON.parse(body || "{}");
    const last = messages.at(-1)?.content;
    const results = Array.isArray(last) ? last.filter((b) => b.type === "tool_result") : [];
    let content = [{ type: "text", text: "done" }];
    if (req.url.startsWith("/v1/messages?") || req.url === "/v1/messages") {
      const names = tools.map((t) => t.name).filter((n) => n?.startsWith(prefix));
      if (names.length > 0) plan.tools = names.map((n) => n.slice(prefix.length));
      if (results.length > 0) {
        plan.results(results);
      } else if (names.length > 0 && plan.calls.length > 0) {
        content = plan.calls.splice(0).map(({ id, name, input }) => ({ type: "tool_use", id, name: prefix + name, input }));
      }
    }
    const stop_reason = content[0].type === "tool_use" ? "tool_use" : "end_turn";
    const message = { id: `msg_${Date.now()}`, type: "message", role: "assistant", model: "scripted", content, stop_reason, stop_sequence: null, usage: { input_tokens: 1, output_tokens: 1 } };
    if (!stream) return res.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(message));
    res.writeHead(200, { "content-type": "text/event-stream" });
    const send = (type, rest) => res.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...rest })}\n\n`);
    send("message_start", { message: { ...message, content: [], stop_reason: null } });
    content.forEach((b, index) => {
      const call = b.type === "tool_use";
      send("content_block_start", { index, content_block: call ? { ...b, input: {} } : { type: "text", text: "" } });
      send("content_block_delta", { index, delta: call ? { type: "input_json_delta", partial_json: JSON.stringify(b.input) } : { type: "text_delta", text: b.text } });
      send("content_block_stop", { index });
    });
    send("message_delta", { delta: { stop_reason, stop_sequence: null }, usage: { output_tokens: 1 } });
    send("message_stop", {});
    res.end();
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return server;
}

await cases(async ({ url, command, args }) => {
  const plan = { calls: [], results: () => {} };
  const server = await model(plan);
  let put;
  let ended;
  const inbox = [];
  async function* prompts() {
    for (;;) {
      while (inbox.length > 0) yield inbox.shift();
      await new Promise((more) => (put = more));
    }
  }
  const { PATH, HOME, NATS_URL } = process.env;
  const talk = query({
    prompt: prompts(),
    options: {
      mcpServers: { fleet: url ? { type: "http", url } : { type: "stdio", command, args, env: { PATH, HOME, NATS_URL } } },
      allowedTools: [`${prefix}*`],
      tools: [],
      settingSources: [],
      strictMcpConfig: true,
      model: "claude-sonnet-4-5",
      cwd: HOME,
      env: {
        PATH, HOME,
        ANTHROPIC_BASE_URL: `http://127.0.0.1:${server.address().port}`, ANTHROPIC_API_KEY: "none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1", ENABLE_TOOL_SEARCH: "false",
      },
    },
  });
  (async () => {
    for await (const m of talk) {
      if (m.type === "result") ended?.();
    }
  })().catch(() => ended?.());
  const turn = (calls) =>
    new Promise((resolve) => {
      let results = [];
      plan.calls = [...calls];
      plan.results = (r) => (results = r);
      ended = () => resolve(results);
      inbox.push({ type: "user", message: { role: "user", content: "go on" }, parent_tool_use_id: null, session_id: "" });
      put?.();
    });
  let made = 0;
  return {
    tools: async () => {
      await turn([]);
      return plan.tools;
    },
    run: async (calls) => {
      const named = calls.map(({ id, name, input }) => ({ id: id ?? `toolu_${process.pid}_${++made}`, name, input }));
      calls[0].signal?.addEventListener("abort", () => talk.interrupt());
      const results = await turn(named);
      return named.map(({ id }) => {
        const r = results.find((b) => b.tool_use_id === id);
        if (r === undefined) return { text: "interrupted", error: true };
        // Claude Code adds reminders of its own.
        const text = (typeof r.content === "string" ? r.content : textOf(r.content)).split("\n<system-reminder>")[0];
        return { text, error: r.is_error ?? false };
      });
    },
    close: async () => {
      talk.close();
      server.close();
    },
    cannot: {
      progress: "the SDK shows no progress of tools",
      ...(url ? { cancel: "it closes the stream of the call, and a call with an id goes on" } : {}),
    },
  };
});
