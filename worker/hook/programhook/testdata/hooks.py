#!/usr/bin/env python3
"""A long-lived program with a hook for tests. The argument `do` of the tool says what it does."""

import json
import os
import sys
import time

DENY = {"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "no"}}


def answer(params):
    call = params["arguments"]
    do, folder = call["tool_input"].get("do", ""), sys.argv[1]
    if do == "die":
        os._exit(3)
    if do == "die once" and not os.path.exists(folder + "/died"):
        open(folder + "/died", "w").close()
        os._exit(3)
    if do == "hang":
        with open(folder + "/pipe", "w"):
            time.sleep(3600)
    if do == "fail":
        return {"content": [{"type": "text", "text": "SECRET"}], "isError": True}
    if do == "noise":
        print("words between the messages")
    texts = {"deny": json.dumps(DENY), "words": "SECRET", "unknown": '{"SECRET": 1}', "nothing": "", "large": " " * (5 << 20)}
    texts["request"] = json.dumps({"decision": "block", "reason": json.dumps(call)})
    texts["pid"] = json.dumps({"decision": "block", "reason": str(os.getpid())})
    texts["trace"] = json.dumps({"decision": "block", "reason": params["_meta"].get("traceparent", "")})
    texts["environment"] = json.dumps({"decision": "block", "reason": json.dumps(dict(os.environ))})
    return {"content": [{"type": "text", "text": texts.get(do, "{}")}]}


for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    reply = {"result": {}}
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "hooks", "version": "1"}}
        reply = {"result": {"protocolVersion": params["protocolVersion"], **about}}
    elif method == "tools/list":
        reply = {"result": {"tools": [{"name": "hook", "inputSchema": {"type": "object"}}]}}
    elif method == "tools/call" and params["name"] != "hook":
        reply = {"error": {"code": -32602, "message": "SECRET"}}
    elif method == "tools/call":
        reply = {"result": answer(params)}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
