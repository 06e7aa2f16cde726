"""A fleet for the tests of an agent: a table of functions in place of workers. It needs no process and no network.

    fleet = FakeFleet({"orders_of": lambda customer: [{"id": "A-1", "customer": customer}]})
    my_agent(fleet, "What has ann ordered?")
    assert [call["input"] for call in fleet.calls] == [{"customer": "ann"}]

The calls of a session run one after another, in call order. As with a real fleet, the same batch again gets the same reply and runs nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from ._http import Answer
from .aio import AsyncFleet
from .client import Fleet


class FakeFleet(Fleet):
    """A Fleet whose tools are functions. A function gets the members of the input by name; it returns the output or raises the error.

    calls holds the calls that were run, in order: dicts of session, id, name and input.
    """

    def __init__(self, tools: Mapping[str, Callable[..., Any]]):
        server = _Server(tools)
        super().__init__("http://fake", patience=0, _send=server.send)
        self.calls = server.calls


class FakeAsyncFleet(AsyncFleet):
    """An AsyncFleet of functions, like FakeFleet."""

    def __init__(self, tools: Mapping[str, Callable[..., Any]]):
        server = _Server(tools)
        super().__init__("http://fake", patience=0, _send=server.send)
        self.calls = server.calls


class _Server:
    """An HTTP API in memory."""

    def __init__(self, tools: Mapping[str, Callable[..., Any]]):
        self.calls: list[dict[str, Any]] = []
        self._tools = tools
        self._lock = threading.RLock()  # guards the fields below, and makes calls run one after another
        self._batches: dict[tuple[str, str], tuple[bytes, dict[str, Any]]] = {}
        self._said: dict[str, list[Any]] = {}

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> contextlib.AbstractContextManager[Answer]:
        with self._lock:
            status, answer = self._answer(method, path, body, headers)
        stream = isinstance(answer, list)
        text = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in answer) if stream else json.dumps(answer)
        lines = text.encode().splitlines(keepends=True)
        kind = "text/event-stream" if stream else "application/json"
        return contextlib.nullcontext(Answer(status, {"content-type": kind}, text.encode, iter(lines)))

    def _answer(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
        path, _, query = path.partition("?")
        parts = [urllib.parse.unquote(part) for part in path.split("/")][2:]
        if parts == ["tools"]:
            return 200, self._definitions(dict(urllib.parse.parse_qsl(query)))
        session, kind, id = parts[1], parts[2], parts[3] if len(parts) > 3 else ""
        if kind == "steer":
            self._said.setdefault(session, []).append(json.loads(body or b"")["steer"])
        if kind in ("steer", "abort"):
            return 200, {"ok": True, "seq": 1}
        known = self._batches.get((session, id))
        if method == "GET":
            return (200, known[1]) if known else _problem(404, "unknown_batch", "no such batch")
        if method != "PUT":
            return _problem(405, "wrong_method", "the fake fleet has no such request")
        if known and known[0] != body:
            return _problem(409, "batch_conflict", "A batch with this id and another body was submitted before. Use a new id.")
        reply = known[1] if known else self._run(session, id, kind, json.loads(body or b""))
        self._batches[session, id] = body or b"", reply
        if error := reply.get("error"):
            return _problem(422, error["class"], error["message"])
        if kind == "calls":
            output = {name: value for name, value in reply["reinjection"]["results"][0].items() if name == "output"}
            return 200, {**reply["results"][0], **output}
        if headers.get("accept") == "text/event-stream":
            ends = [{"type": "end", "session": session, "batch": id, "index": r["index"], "call_id": r["call_id"], "tool": r["tool"], "result": r}
                    for r in reply["results"]]
            return 200, [*ends, {"type": "reply", **reply}]
        return 200, reply

    def _run(self, session: str, id: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind == "calls":
            body = {"provider": "canonical", "message": {"calls": [{"id": id, "name": body["name"], "input": body.get("input") or {}}]}}
        provider = body["provider"]
        about = {"v": 1, "batch": id, "session": session, "provider": provider, "digest": ""}
        if provider not in _CODECS:
            return {**about, "status": "refused", "error": {"class": "unsupported_provider", "message": f"the fake fleet does not know provider {provider}"}}
        decode, encode = _CODECS[provider]
        try:
            calls = decode(body["message"])
        except (KeyError, TypeError, AttributeError) as error:
            return {**about, "status": "refused", "error": {"class": "malformed_message", "message": f"the message is not one of {provider}: {error!r}"}}
        results = [self._call(session, index, *call) for index, call in enumerate(calls)]
        reinjection = encode(results) if results else None
        steering = self._said.pop(session, [])
        append = [*(reinjection if isinstance(reinjection, list) else [reinjection] if reinjection else []), *steering]
        brief = [{name: value for name, value in result.items() if name != "output"} for result in results]
        return {**about, "status": "completed", "reinjection": reinjection, "append": append, "results": brief,
                **({"steering": steering} if steering else {})}

    def _call(self, session: str, index: int, id: str, name: str, text: Any) -> dict[str, Any]:
        result = {"v": 1, "index": index, "call_id": id, "tool": name, "kind": "write", "duration_ms": 0, "queue_ms": 0, "attempt": 0,
                  "was_concurrent": False}

        def failed(status: str, code: str, message: str) -> dict[str, Any]:
            return {**result, "status": status, "error": {"code": code, "message": message, "retryable": False}}

        if name not in self._tools:
            return failed("unknown_tool", "unknown_tool", f'There is no tool named "{name}". Tools that exist: {", ".join(sorted(self._tools))}.')
        try:
            input = json.loads(text or "{}") if isinstance(text, str) else text
        except ValueError as error:
            return failed("validation_error", "invalid_arguments", f"The arguments are not valid JSON: {error}. Send one complete JSON object.")
        self.calls.append({"session": session, "id": id, "name": name, "input": input})
        result["attempt"] = 1
        try:
            output = self._tools[name](**input)
        except Exception as error:
            return failed("error", "tool_error", str(error))
        return {**result, "status": "ok", "output": "" if output is None else output}

    def _definitions(self, query: dict[str, str]) -> dict[str, Any]:
        provider = query.get("provider", "canonical")
        names = sorted(query["names"].split(",") if "names" in query else self._tools)
        tools = [_definition(provider, name) for name in names]
        return {"v": 1, "provider": provider, "digest": "0" * 64, "tools": {"tools": tools} if provider == "canonical" else tools}


def _problem(status: int, code: str, message: str) -> tuple[int, Any]:
    return status, {"error": {"code": code, "message": message}}


def _definition(provider: str, name: str) -> dict[str, Any]:
    parameters = {"type": "object"}
    if provider == "openai-chat":
        return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
    if provider == "openai-responses":
        return {"type": "function", "name": name, "description": name, "parameters": parameters, "strict": False}
    return {"name": name, "description": name, "input_schema": parameters}


def _words(result: dict[str, Any]) -> str:
    """The text that the model reads of a result: an error of a tool as its text, an error of the fleet as JSON."""
    error = result.get("error")
    if error is None:
        return result["output"] if isinstance(result["output"], str) else _json(result["output"])
    return error["message"] if error["code"] == "tool_error" else _json({"error": error["code"], "message": error["message"], "retryable": False})


def _marked(result: dict[str, Any]) -> str:
    """Like _words, for providers that have no mark for errors."""
    return ("Error: " if result.get("error", {}).get("code") == "tool_error" else "") + _words(result)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# For each provider, the calls of a message as (id, name, input), and the results in its shape.
_CODECS: dict[str, tuple[Callable[[Any], list[tuple[str, str, Any]]], Callable[[list[dict[str, Any]]], Any]]] = {
    "canonical": (
        lambda message: [(call["id"], call["name"], call.get("input") or {}) for call in message["calls"]],
        lambda results: {"results": [{"id": r["call_id"], "name": r["tool"], **({"error": _words(r)} if "error" in r else {"output": r["output"]})}
                                     for r in results]},
    ),
    "anthropic": (
        lambda message: [(b["id"], b["name"], b["input"]) for b in message["content"] if isinstance(b, dict) and b["type"] == "tool_use"],
        lambda results: {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": r["call_id"], "content": [{"type": "text", "text": _words(r)}],
             **({"is_error": True} if "error" in r else {})} for r in results]},
    ),
    "openai-chat": (
        lambda message: [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []],
        lambda results: [{"role": "tool", "tool_call_id": r["call_id"], "content": _marked(r)} for r in results],
    ),
    "openai-responses": (
        lambda items: [(item["call_id"], item["name"], item["arguments"]) for item in items if item["type"] == "function_call"],
        lambda results: [{"type": "function_call_output", "call_id": r["call_id"], "output": _marked(r)} for r in results],
    ),
}
