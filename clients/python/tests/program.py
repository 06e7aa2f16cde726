"""The program of package programtest: what a long-lived program has to do, written with the library."""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from toolfleet.worker import Call, Cancelled, ToolError, TryAgain, serve, tool  # noqa: E402

folder = pathlib.Path(sys.argv[1])
anything = {"type": "object"}


@tool(kind="read", input_schema=anything)
def echo(**input):
    return json.dumps(input)


@tool(input_schema=anything)
def fail(**_):
    raise ToolError("no such customer")


@tool(input_schema=anything)
def busy(**_):
    raise TryAgain("no such customer")


@tool(input_schema=anything)
def wait(*, call: Call, **_):
    call.progress(0.5, "waiting")
    call.cancelled.wait()
    raise Cancelled("cancelled")


@tool(input_schema=anything)
def report(*, call: Call, **_):
    call.progress(0.5, "one")
    call.progress(1, "two")
    return "ok"


@tool(input_schema=anything)
def describe(*, call: Call, **_):
    return "".join(f"{word}\n" for word in [call.session, call.batch, call.id, call.index, call.attempt, call.key, call.fence])


@tool(on_crash="idempotent", input_schema=anything)
def apply(*, call: Call, **_):
    (folder / call.key).touch()
    return "ok"


@tool(input_schema=anything)
def checkable(*, call: Call, **_):
    (folder / call.key).touch()
    return "ok"


@checkable.check
def was_applied(*, call: Call, **_):
    return "done" if (folder / call.key).exists() else "not_done"


@tool(input_schema=anything)
def pay(*, call: Call, **_):
    return apply(call=call)


@pay.validate
def makes_sense(*, amount, **_):
    if amount <= 0:
        raise ToolError("the amount is not positive", code="bad_amount")


@pay.permit
def may_pay(*, amount, **_):
    if amount > 1000:
        return "deny", "over every limit"
    return ("ask", "a large amount") if amount > 100 else "allow"


@tool(input_schema=anything)
def large(**_):
    return "x" * (6 << 20) + "TAIL"


@tool(input_schema=anything)
def noise(**_):
    print("a word on stdout")
    os.system("echo and one of a child")
    return "ok"


@tool(input_schema=anything)
def die(**_):
    os._exit(3)


@tool(kind="read", input_schema=anything)
def pid(**_):
    return str(os.getpid())


serve()
