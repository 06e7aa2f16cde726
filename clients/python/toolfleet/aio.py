"""The fleet for programs with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from ._http import Answer, Event, encode
from .client import Fleet, Provider
from .errors import FleetError
from .looping import Conversation, rounds

T = TypeVar("T")


class AsyncFleet:
    """Like Fleet, with methods to await. Each request waits in a thread of its own.

        fleet = AsyncFleet()
        reply = await fleet.run(session=chat, id=message["id"], provider="anthropic", message=message)

    A task that is cancelled stops waiting. The batch goes on unless abort ends it.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None, patience: float = 60, _send: Callable | None = None):
        self._fleet = Fleet(url, token=token, patience=patience, _send=_send)

    async def tools(self, provider: Provider | None = None, **options: Any) -> Any:
        return await _in_thread(self._fleet.tools, provider, **options)

    async def catalogue(self, provider: Provider | None = None, **options: Any) -> dict[str, Any]:
        return await _in_thread(self._fleet.catalogue, provider, **options)

    async def run(self, *, on_event: Callable[[Event], None] | None = None, **batch: Any) -> dict[str, Any]:
        """Like Fleet.run. on_event is called in the event loop."""
        loop = asyncio.get_running_loop()
        if on_event:
            batch["on_event"] = lambda event: loop.call_soon_threadsafe(on_event, event)
        return await _in_thread(self._fleet.run, **batch)

    async def call(self, *, session: str, id: str, name: str, input: Any = None, timeout_ms: int | None = None,
                   labels: dict[str, str] | None = None) -> dict[str, Any]:
        """Like Fleet.call. Calls that are awaited together, as by gather, keep their order."""
        mine = self._fleet._take_turn(session, id, encode(name=name, input=input, timeout_ms=timeout_ms, labels=labels))
        stop = threading.Event()
        try:
            return await _in_thread(self._fleet._call, mine, stop)
        finally:
            stop.set()

    async def get(self, session: str, id: str, **options: Any) -> dict[str, Any]:
        return await _in_thread(self._fleet.get, session, id, **options)

    async def follow(self, session: str | None = None) -> AsyncIterator[Event]:
        open: list[Answer] = []
        events = self._fleet._follow(session, open)
        try:
            while True:
                yield await _in_thread(next, events)
        finally:
            for answer in open:
                answer.cut()

    async def steer(self, session: str, message: Any, **options: Any) -> None:
        await _in_thread(self._fleet.steer, session, message, **options)

    async def abort(self, session: str, id: str | None = None, **options: Any) -> None:
        await _in_thread(self._fleet.abort, session, id, **options)

    async def loop(self, conversation: Conversation, ask: Callable[[list[Any]], Awaitable[Any]], *, max_rounds: int = 5,
                   save: Callable[[Conversation], Awaitable[Any]] | None = None, on_event: Callable[[Event], None] | None = None) -> None:
        """Like Fleet.loop, with an ask and a save to await."""

        async def nothing(_: Any) -> None: ...

        act = {"ask": ask, "run": lambda batch: self.run(**batch, on_event=on_event), "save": save or nothing}
        steps = rounds(conversation, max_rounds)
        with contextlib.suppress(StopIteration):
            name, given = next(steps)
            while True:
                try:
                    answer = await act[name](given)
                except FleetError as error:
                    name, given = steps.throw(error)
                else:
                    name, given = steps.send(answer)


async def _in_thread(do: Callable[..., T], *args: Any, **options: Any) -> T:
    """Runs a function in a daemon thread of its own."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], what: Any) -> None:
        if not done.done():
            set_it(what)

    def run() -> None:
        try:
            outcome = done.set_result, do(*args, **options)
        except BaseException as error:
            outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await done
