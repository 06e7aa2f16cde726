/**
 * The tools of a fleet for the AI SDK of Vercel.
 *
 *     const tools = await aiTools(fleet, { session });
 *     await generateText({ model, tools, stopWhen: stepCountIs(10), prompt });
 *
 * @module
 */
import { jsonSchema, tool } from "ai";
import { runCall } from "./calls.js";
import { outputOf } from "./errors.js";

/**
 * Makes an SDK tool from each definition of the fleet. A call has the same id in the SDK and
 * in the fleet. A failed call throws, as the SDK expects.
 * @param {import("./fleet.js").Fleet} fleet
 * @param {{session: string, names?: string[]}} options
 * @returns {Promise<import("ai").ToolSet>}
 */
export async function aiTools(fleet, { session, names }) {
  /** @type {{tools: {name: string, description: string, input_schema: any}[]}} */
  const { tools } = await fleet.tools("canonical", { names });
  return Object.fromEntries(tools.map(({ name, description, input_schema }) => [name, tool({
    description,
    inputSchema: jsonSchema(input_schema),
    execute: async (input, { toolCallId: id, abortSignal: signal }) => outputOf(await runCall(fleet, { session, id, name, input, signal })),
  })]));
}
