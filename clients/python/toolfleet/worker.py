"""Tools as functions of a long-lived program. A worker of the fleet starts it by its tools file, and speaks MCP with it over stdio:

    programs: [{command: [python3, tools.py]}]

    from toolfleet.worker import serve, tool

    @tool(kind="read")
    def orders_of(customer: str, limit: int = 10) -> list[dict]:
        '''The orders of a customer.'''
        return database.orders(customer)[:limit]

    serve()
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import json
import os
import sys
import threading
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from typing import IO, Any, Literal

Kind = Literal["read", "write", "compute"]
OnCrash = Literal["once", "idempotent", "checkable"]
Risk = Literal["low", "medium", "high", "critical"]


class ToolError(Exception):
    """An error with a code of its own. The text is for the model. retryable: the same call may succeed later."""

    def __init__(self, message: str, *, code: str | None = None, retryable: bool = False):
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class TryAgain(ToolError):
    """The run has applied nothing, and another run may succeed."""

    def __init__(self, message: str):
        super().__init__(message, retryable=True)


class Cancelled(ToolError):
    """The call was aborted, or its time is over."""


@dataclasses.dataclass(frozen=True)
class Call:
    """The facts about a call that a tool gets besides the input, in a parameter named call."""

    key: str  # idempotency key: the same in every attempt at the call. Pass it on to the service that does the work
    fence: str  # digits of a number that grows with every attempt at a write, so that a store can refuse a late attempt
    attempt: int  # from 1
    session: str  # id of the conversation
    batch: str
    id: str  # the provider's id of the call
    index: int  # place of the call in its batch
    tenant: str  # whose call it is
    traceparent: str | None  # W3C trace context
    cancelled: threading.Event  # is set when the call is aborted or out of time. The run should then end within 0.3 s
    _report: Callable[[float, str | None], None]

    def progress(self, fraction: float, text: str | None = None) -> None:
        """Says how far the run is, from 0 to 1."""
        self._report(fraction, text)

    def check(self) -> None:
        """Raises Cancelled when the call is aborted or out of time."""
        if self.cancelled.is_set():
            raise Cancelled("the call was cancelled")


class Done:
    """The answer of a check that knows the output of the run."""

    def __init__(self, output: Any = ""):
        self.output = output


class Tool:
    """A function with its promises. It can be called like the function."""

    def __init__(self, run: Callable[..., Any], promises: dict[str, str], name: str, description: str, input_schema: dict[str, Any] | None):
        self.run, self.name, self.description = run, name, description
        self.promises = promises
        self._arguments = _Arguments(run, input_schema)
        self._asked: dict[str, Callable[..., Any]] = {}  # the function that answers each question about a call: probe, semantic_check, check_permissions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def check(self, check: Callable[..., Any]) -> Callable[..., Any]:
        """Marks the function that says whether a write was applied. It gets the arguments of the run, and must change nothing.

        It returns "done", Done(output) or "not_done", and raises when it cannot tell.
        """
        self._asked["probe"] = check
        self.promises.setdefault("on_crash", "checkable")
        return check

    def validate(self, validate: Callable[..., Any]) -> Callable[..., Any]:
        """Marks the function that is called first: does an input that fits the schema make sense? It gets the arguments of the run, and must change nothing.

        It raises to refuse the call. A ToolError gives a code of its own. The return value is
        ignored.
        """
        return self._ask("semantic_check", validate)

    def permit(self, permit: Callable[..., Any]) -> Callable[..., Any]:
        """Marks the function that decides before a run whether the call may run. It gets the arguments of the run, and must change nothing.

        It returns "allow", "ask" or "deny", or one of them with the reason as a tuple. If it
        raises, the call is refused.
        """
        return self._ask("check_permissions", permit)

    def _ask(self, question: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        self._asked[question] = answer
        self.promises["checks"] = " ".join(asked for asked in ("semantic_check", "check_permissions") if asked in self._asked)
        return answer

    def listed(self) -> dict[str, Any]:
        """The definition in tools/list, with the promises in _meta."""
        return {"name": self.name, "description": self.description, "inputSchema": self._arguments.schema,
                "_meta": {f"toolfleet/{name}": value for name, value in self.promises.items()}}

    def answer(self, input: dict[str, Any], call: Call, question: str) -> dict[str, Any]:
        """Runs a call, or answers a question about it, and returns the result in MCP's form. A failure is also a result."""
        try:
            if question and question not in self._asked:
                raise ToolError(f"{self.name} has no answer to {question}")
            do = self._asked[question] if question else self.run
            output = do(**self._arguments.of(input, do, call))
            if inspect.isawaitable(output):
                output = asyncio.run(_awaited(output))
            if question == "semantic_check":
                return _text("ok")
            if question == "check_permissions" and isinstance(output, tuple):
                return _text("\n".join(map(str, output)))
            if isinstance(output, Done):
                return _text("\n".join(["done", *(block.get("text", "") for block in _result(output.output)["content"])]))
            return _result(output)
        except Exception as error:
            if not isinstance(error, ToolError):
                traceback.print_exc()
            about = {"toolfleet/retryable": getattr(error, "retryable", False) is True}
            if isinstance(error, ToolError) and error.code:
                about["toolfleet/code"] = error.code
            return {**_text(str(error) or type(error).__name__), "isError": True, "_meta": about}


_tools: list[Tool] = []


def tool(run: Callable[..., Any] | None = None, *, name: str | None = None, description: str | None = None, kind: Kind = "write",
         on_crash: OnCrash | None = None, risk: Risk | None = None, timeout: str | None = None, pool: str | None = None,
         input_schema: dict[str, Any] | None = None) -> Any:
    """Makes a tool of a function, for serve.

    The schema of the input comes from the annotations: text, numbers, bool, list, dict, Literal, unions, dataclasses, TypedDict, and models
    of pydantic where it is installed. A parameter without a default is required; one named call gets the Call. With input_schema the
    function gets the members of the input as they are.

    name: default that of the function. description: default its docstring. kind: what it does to the world; write, the default, runs
    alone. on_crash: what may happen to a write whose worker is lost in the middle: once never runs it again, idempotent does with the same
    key, checkable asks the function marked with check first. risk: the tier that its calls have at least. timeout: of one run, for example
    "5s"; default read 5s, compute 2s, write 30s. pool: which workers run it.
    """

    def make(run: Callable[..., Any]) -> Tool:
        promises = {"kind": kind, "on_crash": on_crash, "risk": risk, "timeout": timeout, "pool": pool}
        made = Tool(run, {name: value for name, value in promises.items() if value is not None}, name or run.__name__,
                    description or inspect.getdoc(run) or "", input_schema)
        _tools.append(made)
        return made

    return make(run) if run else make


def serve(tools: list[Tool] | None = None, *, input: IO[str] | None = None, output: IO[str] | None = None) -> None:
    """Serves the tools of this program to the worker that has started it, until the worker ends. What the program prints goes to stderr.

    tools: default all that were made. input, output: default stdin and stdout. Calls that run at once run in threads of their own.
    """
    if output is None:
        if sys.stdin.isatty():
            print("This program is for a worker: put it under `programs` in a tools file, and start `toolfleet dev --tools FILE`.", file=sys.stderr)
        output = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
    if input is None:
        input = os.fdopen(os.dup(0), encoding="utf-8")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)  # what a tool starts must not read the worker's messages
    _Server(tools if tools is not None else _tools, output).serve(input)


class _Server:
    """Threads take turns to read messages. The one that reads a call runs it, and another one reads on: handing each call to a new thread
    would take most of the time of a short one."""

    def __init__(self, tools: list[Tool], output: IO[str]):
        self._tools = {tool.name: tool for tool in tools}
        self._output = output
        self._lock = threading.Lock()  # guards _output
        self._running: dict[Any, threading.Event] = {}  # what cancels each call, by the id of its request
        self._reading = threading.Lock()  # held by the thread that reads
        self._count = threading.Lock()  # guards _waiting
        self._waiting = 0  # threads that wait to read
        self._over = threading.Event()
        self._failed: BaseException | None = None  # why no more messages are read

    def serve(self, lines: IO[str]) -> None:
        self._start(iter(lines))
        self._over.wait()
        if self._failed:
            raise self._failed

    def _start(self, lines: Iterator[str]) -> None:
        threading.Thread(target=self._work, args=(lines,), daemon=True).start()

    def _work(self, lines: Iterator[str]) -> None:
        while (call := self._next(lines)) is not None:
            contextvars.Context().run(self._call, *call)  # a context of its own: the thread has run other calls before

    def _next(self, lines: Iterator[str]) -> tuple[Any, dict[str, Any], threading.Event] | None:
        """Reads messages and answers them, up to a call, which it returns, or to the end."""
        with self._count:
            self._waiting += 1
        with self._reading:
            with self._count:
                self._waiting -= 1
            try:
                for line in lines:
                    if call := self._answer(json.loads(line)):
                        with self._count:
                            alone = self._waiting == 0
                        if alone:
                            self._start(lines)
                        return call
            except BaseException as error:
                self._failed = error
            self._over.set()
        return None

    def _answer(self, message: dict[str, Any]) -> tuple[Any, dict[str, Any], threading.Event] | None:
        """Answers a message, or returns the call that it is."""
        method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "tools/call" and params["name"] in self._tools:
            cancelled = self._running[id] = threading.Event()
            return id, params, cancelled
        if method == "tools/call":
            self._send({"id": id, "error": {"code": -32602, "message": f"there is no tool {params['name']}"}})
        elif method == "tools/list":
            self._send({"id": id, "result": {"tools": [tool.listed() for tool in self._tools.values()]}})
        elif method == "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "toolfleet", "version": "1"}}
            self._send({"id": id, "result": {"protocolVersion": params["protocolVersion"], **about}})
        elif method == "ping":
            self._send({"id": id, "result": {}})
        elif method == "notifications/cancelled":
            if stop := self._running.get(params.get("requestId")):
                stop.set()
        elif id is not None and method:
            self._send({"id": id, "error": {"code": -32601, "message": f"there is no method {method}"}})
        return None

    def _call(self, id: Any, params: dict[str, Any], cancelled: threading.Event) -> None:
        meta = params.get("_meta") or {}
        highest = 0.0  # the protocol requires numbers that do not fall

        def report(fraction: float, text: str | None) -> None:
            nonlocal highest
            highest = max(highest, min(fraction, 1))
            if "progressToken" in meta:
                self._send({"method": "notifications/progress", "params": {
                    "progressToken": meta["progressToken"], "progress": highest, "total": 1, **({"message": text} if text else {})}})

        of = lambda name: meta.get(f"toolfleet/{name}", "")  # noqa: E731
        call = Call(of("key"), of("fence"), of("attempt"), of("session"), of("batch"), of("call_id"), of("index"), of("tenant"),
                    meta.get("traceparent"), cancelled, report)
        _cancelled.set(cancelled)
        result = self._tools[params["name"]].answer(params.get("arguments") or {}, call, "probe" if of("probe") else of("check"))
        self._running.pop(id, None)
        self._send({"id": id, "result": result})

    def _send(self, message: dict[str, Any]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False)
        with self._lock:
            self._output.write(text + "\n")
            self._output.flush()


_cancelled: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("cancelled")


async def _awaited(output: Any) -> Any:
    """The outcome of a tool that is a coroutine. It is cancelled when its call is."""
    task = asyncio.ensure_future(output)
    loop, cancelled = asyncio.get_running_loop(), _cancelled.get()

    def watch() -> None:
        cancelled.wait()
        with contextlib.suppress(RuntimeError):  # the run has ended, and its event loop with it
            loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=watch, daemon=True).start()
    try:
        return await task
    except asyncio.CancelledError:
        raise Cancelled("the call was cancelled") from None
    finally:
        cancelled.set()  # ends watch


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _result(output: Any) -> dict[str, Any]:
    """What a run returned: text, any JSON value, or {"content": blocks of MCP}."""
    if output is None:
        return {"content": []}
    if isinstance(output, dict) and isinstance(blocks := output.get("content"), list) and all(isinstance(b, dict) and isinstance(b.get("type"), str) for b in blocks):
        return {"content": blocks}
    return _text(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    """What json cannot write by itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "parse_obj"):  # pydantic 1
        return json.loads(value.json())
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


class _Arguments:
    """The parameters of a function as a JSON Schema, and the input of a call as its arguments."""

    def __init__(self, run: Callable[..., Any], schema: dict[str, Any] | None):
        self._own = schema is not None
        self._hints = {} if self._own else typing.get_type_hints(run, include_extras=True)
        self.schema = schema if schema is not None else self._schema(run)

    def _schema(self, run: Callable[..., Any]) -> dict[str, Any]:
        properties, required = {}, []
        for name, parameter in inspect.signature(run).parameters.items():
            if name == "call":
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"{run.__name__}: parameter {name} cannot be given by name; use input_schema")
            if name not in self._hints:
                raise TypeError(f"{run.__name__}: parameter {name} has no annotation, from which its schema could be made")
            properties[name] = _schema_of(self._hints[name])
            if parameter.default is parameter.empty:
                required.append(name)
            elif parameter.default is not None:
                properties[name] = {**properties[name], "default": parameter.default}
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        shared: dict[str, Any] = {}
        for one in properties.values():
            _lift(one, shared)
        return {**schema, **shared}

    def of(self, input: dict[str, Any], do: Callable[..., Any], call: Call) -> dict[str, Any]:
        """The arguments for do, the run or its check."""
        arguments = input if self._own else {name: _value_of(self._hints[name], value) for name, value in input.items() if name in self._hints}
        return {**arguments, "call": call} if _wants_call(do) else dict(arguments)


@functools.cache
def _wants_call(do: Callable[..., Any]) -> bool:
    """Reports whether the function has a parameter for the Call."""
    return "call" in inspect.signature(do).parameters


def _lift(schema: dict[str, Any], shared: dict[str, Any]) -> None:
    """Moves the definitions of pydantic, 2 and 1, to the root, where a $ref starts."""
    for place in ("$defs", "definitions"):
        if place in schema:
            shared.setdefault(place, {}).update(schema.pop(place))
    for part in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ()), *schema.get("properties", {}).values()):
        if isinstance(part, dict):
            _lift(part, shared)


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object", list: "array"}


def _schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hasattr(hint, "model_json_schema"):
        return hint.model_json_schema()
    if hasattr(hint, "parse_obj"):  # pydantic 1
        return hint.schema()
    if origin is typing.Annotated:
        texts = [extra for extra in args[1:] if isinstance(extra, str)]
        return {**_schema_of(args[0]), **({"description": texts[0]} if texts else {})}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(arg) for arg in args]}
    if origin is list:
        return {"type": "array", "items": _schema_of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(args[1])}
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        required = [f.name for f in dataclasses.fields(hint) if f.default is f.default_factory is dataclasses.MISSING]
        return {"type": "object", "properties": {name: _schema_of(of) for name, of in hints.items()}, "required": required, "additionalProperties": False}
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        return {"type": "object", "properties": {name: _schema_of(of) for name, of in hints.items()}, "required": sorted(hint.__required_keys__), "additionalProperties": False}
    raise TypeError(f"no schema can be made of {hint!r}; use input_schema")


def _value_of(hint: Any, value: Any) -> Any:
    """A value that fits the schema of its annotation, as the annotation wants it."""
    if hasattr(hint, "model_validate"):
        return hint.model_validate(value)
    if hasattr(hint, "parse_obj"):  # pydantic 1
        return hint.parse_obj(value)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: _value_of(hints[name], member) for name, member in value.items()})
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType) and value is not None:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return _value_of(kinds[0], value) if len(kinds) == 1 else value
    if origin is list:
        return [_value_of(typing.get_args(hint)[0], member) for member in value]
    return value
