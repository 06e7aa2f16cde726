// A scripted model behind the APIs of Anthropic (Messages, with and without a stream) and OpenAI (Responses and Chat). It makes three calls
// of meet, then one message with note and look, or ROUNDS of them, one after the other, then none. With ROUNDS it begins with three calls of nap.
// Where there is a tool orders_of, it makes one call of that. GET /results tells which results it was sent last, GET /naps how long it waited for those of nap, in ms.
import http from "node:http";

let made = 0;
let results = [];
let naps = { began: 0, ms: 0 };
const rounds = Number(process.env.ROUNDS ?? 0);
const id = (kind) => `${kind}_${process.pid}_${++made}`;
const call = (name, input = {}) => ({ id: id("call"), name, input });
const script = (answered, tools = []) => {
  if (tools.some(({ name }) => name === "orders_of")) return answered === 0 ? [call("orders_of", { customer: "ann" })] : [];
  const first = rounds ? ["nap", "nap", "nap"] : [];
  if (first.length && answered === 0) naps.began = performance.now();
  if (first.length && answered === 3) naps.ms ||= performance.now() - naps.began;
  if (answered < first.length) return first.map((name) => call(name));
  if (answered < first.length + 3) return ["meet", "meet", "meet"].map((name) => call(name));
  return answered < first.length + 3 + 2 * (rounds || 1) ? ["note", "look"].map((name) => call(name)) : [];
};
const mcp = "mcp__fleet__"; // what Claude Code puts before the names of the fleet's tools
const textOf = (content) => (typeof content === "string" ? content : content.map((block) => block.text).join(""));

const apis = {
  "/v1/messages": ({ messages, tools, stream }, res) => {
    const blocks = messages.flatMap(({ content }) => (Array.isArray(content) ? content : [])).filter(({ type }) => type === "tool_result");
    const prefix = tools?.some(({ name }) => name.startsWith(mcp)) ? mcp : "";
    const ours = tools?.length > 0; // Claude Code asks for other things too, without tools
    // Claude Code adds reminders of its own to a result.
    if (ours) results = blocks.map(({ content, is_error }) => (is_error ? "error: " : "") + textOf(content).split("\n<system-reminder>")[0]);
    const calls = ours ? script(blocks.length, tools) : [];
    const content = calls.length ? calls.map((call) => ({ type: "tool_use", ...call, name: prefix + call.name })) : [{ type: "text", text: "done" }];
    const message = { id: id("msg"), type: "message", role: "assistant", model: "scripted", content, stop_reason: calls.length ? "tool_use" : "end_turn", stop_sequence: null, usage: { input_tokens: 1, output_tokens: 1 } };
    if (!stream) return json(res, message);
    const send = events(res);
    send("message_start", { message: { ...message, content: [], stop_reason: null } });
    content.forEach((block, index) => {
      const call = block.type === "tool_use";
      send("content_block_start", { index, content_block: call ? { ...block, input: {} } : { type: "text", text: "" } });
      send("content_block_delta", { index, delta: call ? { type: "input_json_delta", partial_json: JSON.stringify(block.input) } : { type: "text_delta", text: block.text } });
      send("content_block_stop", { index });
    });
    send("message_delta", { delta: { stop_reason: message.stop_reason, stop_sequence: null }, usage: { output_tokens: 1 } });
    send("message_stop", {});
    res.end();
  },
  "/v1/responses": ({ input }, res) => {
    const answers = input.filter(({ type }) => type === "function_call_output");
    results = answers.map(({ output }) => (typeof output === "string" ? output : textOf(output)));
    const calls = script(answers.length).map((call) => ({ type: "function_call", id: id("fc"), call_id: call.id, name: call.name, arguments: "{}", status: "completed" }));
    const text = { type: "message", id: id("msg"), role: "assistant", status: "completed", content: [{ type: "output_text", text: "done", annotations: [] }] };
    json(res, { id: id("resp"), object: "response", created_at: 1, status: "completed", model: "scripted", output: calls.length ? calls : [text], parallel_tool_calls: true, tool_choice: "auto", tools: [],
      error: null, incomplete_details: null, instructions: null, metadata: {}, usage: { input_tokens: 1, output_tokens: 1, total_tokens: 2, input_tokens_details: { cached_tokens: 0 }, output_tokens_details: { reasoning_tokens: 0 } } });
  },
  "/v1/chat/completions": ({ messages }, res) => {
    const answers = messages.filter(({ role }) => role === "tool");
    results = answers.map(({ content }) => textOf(content));
    const calls = script(answers.length).map(({ id, name }) => ({ id, type: "function", function: { name, arguments: "{}" } }));
    const message = calls.length ? { role: "assistant", content: null, tool_calls: calls } : { role: "assistant", content: "done" };
    json(res, { id: id("chatcmpl"), object: "chat.completion", created: 1, model: "scripted", choices: [{ index: 0, message, finish_reason: calls.length ? "tool_calls" : "stop" }], usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } });
  },
};

const json = (res, body) => res.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
const events = (res) => {
  res.writeHead(200, { "content-type": "text/event-stream" });
  return (type, rest) => res.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...rest })}\n\n`);
};

http.createServer(async (req, res) => {
  let body = "";
  for await (const part of req) body += part;
  const path = req.url.split("?")[0];
  if (path === "/results") return json(res, results);
  if (path === "/naps") return json(res, Math.round(naps.ms));
  apis[path]?.(JSON.parse(body), res) ?? (apis[path] || res.writeHead(404).end());
}).listen(0, "127.0.0.1", function () {
  console.log(`http://127.0.0.1:${this.address().port}`);
});
