// A model that reads its lines from a script, so that the agent runs without a key.
const call = (id, name, input) => ({ type: "tool_use", id, name, input });
const text = (words) => ({ type: "text", text: words });
const todo = "examples/project/todo.txt";

const script = [
  [
    text("I look for what is left."),
    call("toolu_01", "Grep", { pattern: "TODO", path: "examples/project/src", output_mode: "content" }),
    call("toolu_02", "Read", { file_path: todo }),
  ],
  [
    text("I write the list anew and check it."),
    call("toolu_03", "Bash", { command: "cd examples/project && grep -rn TODO src | LC_ALL=C sort > todo.txt" }),
    call("toolu_04", "Read", { file_path: todo }),
  ],
  [text("Three things are left. The list in todo.txt is up to date.")],
];

/** Stands for a request to a provider: history in, the assistant message out, as the provider gave it. */
export const askModel = async (history) => ({ role: "assistant", content: script[Math.floor(history.length / 2)] });

/** Prints a conversation, a line for each block. */
export function show(history) {
  for (const { role, content } of history) {
    for (const block of typeof content === "string" ? [text(content)] : content) {
      const line = {
        text: block.text,
        tool_use: `call ${block.id} of ${block.name}`,
        tool_result: `${block.is_error ? "error" : "result"} of ${block.tool_use_id}`,
      }[block.type];
      console.log(`${role}: ${line}`);
    }
  }
}
