"""The fleet for programs with threads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Literal

from . import _http
from ._http import Answer, Api, Event, encode, events_of, path_of, read_stream
from .errors import FleetError
from .looping import Conversation, Model, rounds

Provider = Literal["anthropic", "openai-chat", "openai-responses", "bedrock", "gemini", "canonical"]


class Fleet:
    """A fleet behind an HTTP API. The first request is sent by the first method.

        fleet = Fleet()
        reply = fleet.run(session=chat, id=message["id"], provider="anthropic", message=message)
        history += [message, *reply["append"]]

    url: where the API is. Default: TOOLFLEET_URL, else http://127.0.0.1:8090, where `toolfleet
    dev` serves. token: the token, if the server requires one. Default: TOOLFLEET_TOKEN.
    patience: for how many seconds methods retry when a fleet that has answered before cannot
    be reached; then they raise Unavailable. A fleet that has never answered is tried for at
    most 3 s.

    Every method except steer repeats its request until it is answered. Nothing runs twice,
    because batches and calls have ids. A program that was killed gets the reply in the same
    way: it runs the same batch again.

    Methods raise Refused when the fleet refuses a request, Unavailable when it cannot be
    reached, else FleetError. Replies, results and events are dicts, as docs/http.md has them.
    Safe for concurrent use.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None, patience: float = 60, _send: Callable | None = None):
        url = url or os.environ.get("TOOLFLEET_URL") or "http://127.0.0.1:8090"
        self._api = Api(url, token or os.environ.get("TOOLFLEET_TOKEN"), patience, _send)
        self._lock = threading.Lock()
        self._newest: dict[str, _Handover] = {}  # the newest call of each session; guarded by _lock

    def tools(self, provider: Provider | None = None, **options: Any) -> Any:
        """Returns the definitions of the tools, in the form of a request to a model of the provider. Options are those of catalogue."""
        return self.catalogue(provider, **options)["tools"]

    def catalogue(self, provider: Provider | None = None, *, names: list[str] | None = None,
                  strict: Literal["off", "exact", "nullable"] | None = None, cache: bool = False) -> dict[str, Any]:
        """The definitions with their digest. A batch that names the digest as catalogue uses the tools in the versions that its model knows.

        names: only these tools. strict: which definitions the provider enforces. cache: the
        definitions end with the provider's cache mark.
        """
        query = {"provider": provider, "names": ",".join(names) if names is not None else None, "strict": strict, "cache": "1" if cache else None}
        text = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
        return self._api.ask("GET", "/v1/tools" + (f"?{text}" if text else ""))

    def run(self, *, session: str, id: str, provider: Provider, message: Any, timeout_ms: int | None = None, catalogue: str | None = None,
            round: int | None = None, labels: dict[str, str] | None = None, on_event: Callable[[Event], None] | None = None) -> dict[str, Any]:
        """Runs the calls of a model's message and returns the reply: extend the history with reply["append"].

        The id is the idempotency key: the same batch again gets the same reply, and runs
        nothing. After any error, or a crash, run it again. timeout_ms: calls that have not
        ended by then are answered as timed out. on_event gets the live events of the batch.
        Events may be missed; follow misses none.
        """
        body = encode(provider=provider, message=message, timeout_ms=timeout_ms, round=round, labels=labels, catalogue=catalogue)
        return self._put(path_of(session, "batches", id), body, on_event=on_event)

    def call(self, *, session: str, id: str, name: str, input: Any = None, timeout_ms: int | None = None,
             labels: dict[str, str] | None = None) -> dict[str, Any]:
        """Runs one call and returns its result, with the output. For executors that hand over single calls.

        The calls of a session keep the order in which call was called, also from several threads: a call is sent when those before it
        are stored. Reads run at the same time.
        """
        return self._call(self._take_turn(session, id, encode(name=name, input=input, timeout_ms=timeout_ms, labels=labels)))

    def _take_turn(self, session: str, id: str, body: bytes) -> _Handover:
        """Puts a call into the queue of its session, behind the earlier calls."""
        with self._lock:
            mine = _Handover(self, session, path_of(session, "calls", id), body, self._newest.get(session))
            self._newest[session] = mine
        return mine

    def _call(self, mine: _Handover, stop: threading.Event | None = None) -> dict[str, Any]:
        try:
            if before := mine.before:
                before.wait()
            return self._put(mine.path, mine.body, stop=stop)
        finally:
            mine.end()
            with self._lock:
                if self._newest.get(mine.session) is mine:
                    del self._newest[mine.session]

    def get(self, session: str, id: str, *, results: Literal["full"] | None = None) -> dict[str, Any]:
        """Returns the reply of a batch or call. While it runs, status is running, and results has the results of the ended calls.

        results="full" repeats the outputs in the results.
        """
        return self._api.ask("GET", path_of(session, "batches", id) + (f"?results={results}" if results else ""))

    def follow(self, session: str | None = None) -> Iterator[Event]:
        """Yields the events of a session: of its open batches from their beginning, then of new ones, until the caller leaves the loop.

        Each durable event comes once and in order, even if the connection is lost meanwhile.
        Without a session, it yields the events of all sessions from now on.
        """
        return self._follow(session, [])

    def _follow(self, session: str | None, open: list[Answer]) -> Iterator[Event]:
        """Like follow. It keeps its current answer in open, so that another thread can cut the connection."""
        path = "/v1/events" if session is None else path_of(session) + "/events"
        last = ""
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
            answer = self._api.ask("GET", path, headers=headers, read=Answer.keep)
            open[:] = [answer]
            try:
                for id, kind, data in events_of(answer.lines):
                    last = id or last
                    yield {"type": kind, **json.loads(data)}
            except (OSError, ValueError, http.client.HTTPException):
                pass  # the connection is lost: go on after the last event
            finally:
                answer.close()

    def steer(self, session: str, message: Any, *, when: Literal["after_batch", "between_groups", "immediate"] | None = None,
              reason: str | None = None) -> None:
        """Sends a steering message to a session: the next reply has it at the end of append.

        The request is not repeated, because the model could then read the message twice. After
        an error the message may be stored or not. when says which calls of earlier batches
        still run; the default is all.
        """
        self._api.ask("POST", path_of(session) + "/steer", body=encode(steer=message, when=when, reason=reason), once=True)

    def abort(self, session: str, id: str | None = None, *, reason: str | None = None) -> None:
        """Ends all open batches of a session, or one batch or call. reason is for the model.

        Waiting calls are not started, running calls are stopped, and every call gets a result.
        """
        self._api.ask("POST", path_of(session) + "/abort", body=encode(abort=True if id is None else id, reason=reason))

    def loop(self, conversation: Conversation, ask: Model, *, max_rounds: int = 5, save: Callable[[Conversation], Any] | None = None,
             on_event: Callable[[Event], None] | None = None) -> None:
        """Runs a turn: asks the model, runs its calls and appends both to the history, until the model makes no calls.

        conversation is a dict with session, provider and history. ask gets the history and
        returns the model's next message as the next request has it. save stores the
        conversation each time it has changed; a loop over the stored conversation continues
        there.

        The id of a batch is made from the history before its message. So after a crash a loop
        over the same history runs nothing twice. It raises Stopped after the last round or an
        abort, and Refused when nothing ran. After Refused the message is dropped: change the
        history before another loop.
        """
        act = {"ask": ask, "run": lambda batch: self.run(**batch, on_event=on_event), "save": save or (lambda _: None)}
        steps = rounds(conversation, max_rounds)
        with contextlib.suppress(StopIteration):
            name, given = next(steps)
            while True:
                try:
                    answer = act[name](given)
                except FleetError as error:
                    name, given = steps.throw(error)
                else:
                    name, given = steps.send(answer)

    def _put(self, path: str, body: bytes, *, wait: int = _http.WAIT, on_event: Callable[[Event], None] | None = None,
             stop: threading.Event | None = None) -> Any:
        if on_event:
            return self._api.ask("PUT", path, body=body, headers={"accept": "text/event-stream"}, read=read_stream(on_event), stop=stop)

        def read(answer: Answer) -> Any:
            if answer.status != 202 or wait == 0:
                return answer.json()
            raise FleetError("running", "the batch goes on", status=202, retry_after=float(answer.headers.get("retry-after") or 1))

        return self._api.ask("PUT", path, body=body, headers={"prefer": f"wait={wait}"}, read=read, stop=stop)


class _Handover:
    """A call that the fleet may not have stored yet, with the earlier calls of its session."""

    def __init__(self, fleet: Fleet, session: str, path: str, body: bytes, before: _Handover | None):
        self.session, self.path, self.body = session, path, body
        self.before = before  # None once they are stored
        self._fleet = fleet
        self._lock = threading.Lock()
        self._stored = False  # the call is stored, or need not be stored

    def wait(self) -> None:
        """Returns when the fleet has stored the call. It is called only if another call follows. The fleet takes both requests for the same call."""
        with self._lock:
            if not self._stored and (before := self.before):
                before.wait()
            if not self._stored:
                with contextlib.suppress(FleetError):  # its own caller gets the error
                    self._fleet._put(self.path, self.body, wait=0)
            self._stored, self.before = True, None

    def end(self) -> None:
        self._stored, self.before = True, None
