"""A long-lived program whose tool sends a span below the call's to OTEL_EXPORTER_OTLP_ENDPOINT, with the standard library only."""

import json
import os
import sys
import time
import urllib.request

TOOL = {"name": "score", "inputSchema": {"type": "object"}, "_meta": {"toolfleet/kind": "read", "toolfleet/timeout": "60s"}}


def send_span(traceparent, name, began):
    _, trace, parent, _ = traceparent.split("-")
    span = {"traceId": trace, "spanId": os.urandom(8).hex(), "parentSpanId": parent, "name": name, "kind": 1,
            "startTimeUnixNano": str(began), "endTimeUnixNano": str(time.time_ns())}
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": "scoring"}}]}
    body = json.dumps({"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": [span]}]}]}).encode()
    url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).read()


def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "score", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        began = time.time_ns()
        send_span(params["_meta"]["traceparent"], "score the order", began)
        return {"content": [{"type": "text", "text": "scored"}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
