"""A long-lived program that passes the table of package programtest, without any library."""

import json
import os
import sys
import threading

folder = sys.argv[1]
messages = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
os.dup2(2, 1)  # what anybody prints goes to stderr
lock = threading.Lock()
cancelled = {}  # an event for each running call, by the id of its request


def send(message):
    with lock:
        messages.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        messages.flush()


class Failed(Exception):
    def __init__(self, text, retryable=False, code=""):
        super().__init__(text)
        self.retryable = retryable
        self.code = code


class Call:
    def __init__(self, params, stop):
        self.meta = params.get("_meta", {})
        self.input = params.get("arguments", {})
        self.stop = stop

    def of(self, name):
        return self.meta.get("toolfleet/" + name, "")

    def report(self, n, text):
        send({"method": "notifications/progress", "params": {
            "progressToken": self.meta["progressToken"], "progress": n, "total": 2, "message": text}})


def apply(call):
    open(os.path.join(folder, call.of("key")), "w").close()
    return "ok"


def checkable(call):
    if not call.of("probe"):
        return apply(call)
    return "done" if os.path.exists(os.path.join(folder, call.of("key"))) else "not_done"


def wait(call):
    call.report(1, "waiting")
    call.stop.wait()
    raise Failed("cancelled")


def report(call):
    for i, text in enumerate(["one", "two"]):
        call.report(i + 1, text)
    return "ok"


def pay(call):
    amount = call.input["amount"]
    if call.of("check") == "semantic_check" and amount <= 0:
        raise Failed("the amount is not positive", code="bad_amount")
    if call.of("check") == "check_permissions":
        return "deny\nover every limit" if amount > 1000 else "ask\na large amount" if amount > 100 else "allow"
    return "ok" if call.of("check") else apply(call)


def describe(call):
    names = ["session", "batch", "call_id", "index", "attempt", "key", "fence"]
    return "".join(f"{call.of(name)}\n" for name in names)


def fail(call):
    raise Failed("no such customer")


def busy(call):
    raise Failed("no such customer", retryable=True)


def noise(call):
    print("a word on stdout")
    os.system("echo and one of a child")
    return "ok"


tools = {
    "echo": (lambda call: json.dumps(call.input), {"toolfleet/kind": "read"}),
    "fail": (fail, {}),
    "busy": (busy, {}),
    "wait": (wait, {}),
    "report": (report, {}),
    "describe": (describe, {}),
    "apply": (apply, {"toolfleet/on_crash": "idempotent"}),
    "checkable": (checkable, {"toolfleet/on_crash": "checkable"}),
    "pay": (pay, {"toolfleet/checks": "semantic_check check_permissions"}),
    "large": (lambda call: "x" * (6 << 20) + "TAIL", {}),
    "noise": (noise, {}),
    "die": (lambda call: os._exit(3), {}),
    "pid": (lambda call: str(os.getpid()), {"toolfleet/kind": "read"}),
    "noop": (lambda call: "", {"toolfleet/kind": "read"}),
}


def run(id, params):
    try:
        text = tools[params["name"]][0](Call(params, cancelled[id]))
        result = {"content": [{"type": "text", "text": text}]}
    except Exception as error:
        result = {"content": [{"type": "text", "text": str(error)}], "isError": True,
                  "_meta": {"toolfleet/retryable": getattr(error, "retryable", False), "toolfleet/code": getattr(error, "code", "")}}
    cancelled.pop(id, None)
    send({"id": id, "result": result})


def listed():
    return [{"name": name, "description": name, "inputSchema": {"type": "object"}, "_meta": meta}
            for name, (_, meta) in tools.items()]


for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "tools/call":
        cancelled[id] = threading.Event()
        threading.Thread(target=run, args=(id, params), daemon=True).start()
    elif method == "tools/list":
        send({"id": id, "result": {"tools": listed()}})
    elif method == "initialize":
        send({"id": id, "result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                                   "serverInfo": {"name": "program", "version": "1"}}})
    elif method == "notifications/cancelled":
        if (stop := cancelled.get(params.get("requestId"))) is not None:
            stop.set()
    elif method == "ping":
        send({"id": id, "result": {}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": f"no method {method}"}})
