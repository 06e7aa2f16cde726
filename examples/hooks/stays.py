#!/usr/bin/env python3
"""The hook of tidy.py as a program that stays: it speaks MCP on stdin and stdout, and its tool `hook` answers each call."""

import json
import sys

import tidy

HOOK = {"name": "hook", "inputSchema": {"type": "object"}}


def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "tidy", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        return {"tools": [HOOK]}
    if method == "tools/call":
        call = params["arguments"]
        said = tidy.before(call) if call["hook_event_name"] == "PreToolUse" else tidy.after(call)
        return {"content": [{"type": "text", "text": json.dumps(said)}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:  # a notification has none, and wants no answer
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
