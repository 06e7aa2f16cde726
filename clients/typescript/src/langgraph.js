/**
 * A fleet in the place of LangGraph's ToolNode.
 *
 *     new StateGraph(MessagesAnnotation).addNode("agent", agent).addNode("tools", fleetNode(fleet))
 *
 * @module
 */
import { ToolMessage } from "@langchain/core/messages";

/**
 * Makes a node that runs all calls of the last message as one batch. The id of the batch is
 * the id of the message, or the id of the first call if the message has none.
 * @param {import("./fleet.js").Fleet} fleet
 * @param {{session?: string}} [options] Default: the thread of the run, `configurable.thread_id`.
 */
export function fleetNode(fleet, options = {}) {
  return async (/** @type {{messages: any[]}} */ state, /** @type {{configurable?: Record<string, any>, signal?: AbortSignal}} */ config) => {
    const message = state.messages.at(-1);
    /** @type {{id: string, name: string, args: any}[]} */
    const calls = message.tool_calls ?? [];
    if (calls.length === 0) return { messages: [] };
    const session = options.session ?? config.configurable?.thread_id;
    if (!session) throw new Error("fleetNode needs a session: give it one, or run the graph with a thread_id");
    const reply = await fleet.run({
      session, id: message.id ?? calls[0].id, signal: config.signal, provider: "canonical",
      message: { calls: calls.map(({ id, name, args }) => ({ id, name, input: args })) },
    });
    const [{ results }, ...said] = reply.append;
    const answers = results.map((/** @type {any} */ { id, name, output, error }) => new ToolMessage({
      tool_call_id: id, name, status: error === undefined ? "success" : "error",
      content: error ?? (typeof output === "string" ? output : JSON.stringify(output)),
    }));
    return { messages: [...answers, ...said] };
  };
}
