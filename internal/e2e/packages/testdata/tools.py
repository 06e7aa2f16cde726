"""The same tools as tools.mjs."""

import collections
import pathlib
import sys
import threading
import time

from toolfleet.worker import Call, serve, tool

folder = pathlib.Path(sys.argv[1])
notes = collections.Counter()
meetings = collections.defaultdict(lambda: threading.Barrier(3))


@tool(kind="read", timeout="60s")
def meet(*, call: Call) -> str:
    """Waits for two others."""
    meetings[call.session].wait()
    return "met"


@tool
def note(*, call: Call) -> str:
    """Notes."""
    notes[call.session] += 1
    return "noted"


@tool(kind="read")
def look(*, call: Call) -> str:
    """Tells how often was noted."""
    return str(notes[call.session])


@tool(timeout="60s")
def hold(*, call: Call) -> str:
    """Ends when it may."""
    with open(folder / "runs", "a") as runs:
        runs.write(call.key + "\n")
    while not (folder / "open").exists():
        time.sleep(0.005)
    return "held"


serve()
