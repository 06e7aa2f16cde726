"""A model that reads its lines from a script, so that the agent runs without a key."""


def call(id, name, **arguments):
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def text(words):
    return {"type": "text", "text": words}


TODO = "examples/project/todo.txt"

SCRIPT = [
    [
        text("I look for what is left."),
        call("toolu_01", "Grep", pattern="TODO", path="examples/project/src", output_mode="content"),
        call("toolu_02", "Read", file_path=TODO),
    ],
    [
        text("I write the list anew and check it."),
        call("toolu_03", "Bash", command="cd examples/project && grep -rn TODO src | LC_ALL=C sort > todo.txt"),
        call("toolu_04", "Read", file_path=TODO),
    ],
    [text("Three things are left. The list in todo.txt is up to date.")],
]


def ask_model(history):
    """Stands for a request to a provider: history in, the assistant message out, as the provider gave it."""
    return {"role": "assistant", "content": SCRIPT[len(history) // 2]}


def show(history):
    """Prints a conversation, a line for each block."""
    for message in history:
        content = message["content"]
        for block in [text(content)] if isinstance(content, str) else content:
            if block["type"] == "tool_use":
                line = f"call {block['id']} of {block['name']}"
            elif block["type"] == "tool_result":
                line = f"{'error' if block.get('is_error') else 'result'} of {block['tool_use_id']}"
            else:
                line = block["text"]
            print(f"{message['role']}: {line}")
