"""An agent in twenty lines: ask the model, let the fleet run its calls, append both, until there are no calls."""

import uuid

import toolfleet
from script import ask_model, show

session = f"chat-{uuid.uuid4()}"
history = [{"role": "user", "content": "What is left to do? Keep the list up to date."}]

while True:
    message = ask_model(history)  # the call of your provider's SDK goes here
    history.append(message)
    reply = toolfleet.run(session=session, id=f"turn-{len(history)}", provider="anthropic", message=message)
    if not reply["results"]:  # no calls: the model is done
        break
    history += reply["append"]

show(history)
