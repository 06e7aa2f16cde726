"""Stands for the SDK of a provider: one request to the Messages API of Anthropic, with the standard library."""

import json
import os
import urllib.request


def ask_model(messages, tools):
    """Returns the model's next message."""
    url = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com") + "/v1/messages"
    body = {"model": "claude-sonnet-5", "max_tokens": 1024, "messages": messages, "tools": tools}
    headers = {"content-type": "application/json", "x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        message = json.load(response)
    return {"role": message["role"], "content": message["content"]}
