import uuid

from model import ask_model  # the call of your provider's SDK goes here
from toolfleet import Fleet

fleet, history = Fleet(), [{"role": "user", "content": "What has ann ordered?"}]
tools = fleet.tools("anthropic")
fleet.loop({"session": str(uuid.uuid4()), "provider": "anthropic", "history": history}, lambda messages: ask_model(messages, tools))
print(history[-1]["content"][0]["text"])
