import Anthropic from "@anthropic-ai/sdk";
import { connect } from "toolfleet";

const [fleet, anthropic, history] = [connect(), new Anthropic(), [{ role: "user", content: "What has ann ordered?" }]];
const tools = await fleet.tools("anthropic");
await fleet.loop({ session: crypto.randomUUID(), provider: "anthropic", history }, async (messages) => {
  const { role, content } = await anthropic.messages.create({ model: "claude-sonnet-5", max_tokens: 1024, tools, messages });
  return { role, content };
});
console.log(history.at(-1).content[0].text);
