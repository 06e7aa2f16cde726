/**
 * The tools of a fleet for the OpenAI Agents SDK.
 *
 *     const agent = new Agent({ name: "clerk", tools: await agentsTools(fleet, { session }) });
 *
 * @module
 */
import { tool } from "@openai/agents";
import { runCall } from "./calls.js";
import { textOf } from "./errors.js";

/**
 * Makes an SDK tool from each definition of the fleet. A call has the same id in the SDK and
 * in the fleet. If a call fails, the model reads why.
 * @param {import("./fleet.js").Fleet} fleet
 * @param {{session: string, names?: string[]}} options
 * @returns {Promise<import("@openai/agents").FunctionTool<any, any, string>[]>}
 */
export async function agentsTools(fleet, { session, names }) {
  /** @type {{tools: {name: string, description: string, input_schema: any}[]}} */
  const { tools } = await fleet.tools("canonical", { names });
  return tools.map(({ name, description, input_schema }) => tool({
    name,
    description,
    strict: false,
    parameters: { type: "object", properties: {}, required: [], additionalProperties: true, ...input_schema },
    execute: async (input, _, details) => {
      const id = details?.toolCall?.callId;
      if (!id) throw new Error(`the SDK gives the call of ${name} no id`);
      return textOf(await runCall(fleet, { session, id, name, input, signal: details.signal }));
    },
  }));
}
