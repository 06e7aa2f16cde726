"""The requests of a fleet to the HTTP API, repeated until they are answered."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from .errors import FleetError, Refused, Unavailable

WAIT = 20  # seconds that one request waits for its batch. Proxies may cut off longer requests.
SILENCE = 45  # seconds after which a request counts as lost. The server says something every 10 s, and waits for WAIT.
FIRST_CONTACT = 3  # seconds for which a fleet that has never answered is tried

Event = dict[str, Any]


@dataclasses.dataclass
class Answer:
    """The head of an answer, and how to read the rest."""

    status: int
    headers: Any
    read: Callable[[], bytes]
    lines: Iterator[bytes]
    close: Callable[[], None] = lambda: None
    cut: Callable[[], None] = lambda: None  # ends the read of another thread
    kept: bool = False  # the connection stays open after ask has returned

    def json(self) -> Any:
        return json.loads(self.read())

    def keep(self) -> "Answer":
        self.kept = True
        return self


class Api:
    """The HTTP API of a fleet. Safe for concurrent use: each request has a connection of its own."""

    def __init__(self, url: str, token: str | None, patience: float, send: Callable | None = None):
        self.url = url.rstrip("/")
        self.patience = patience
        self._token = token
        self._send = send or self._over_http
        self._met = False  # whether a fleet has answered before

    def ask(self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None, once: bool = False,
            read: Callable[[Answer], Any] = Answer.json, stop: threading.Event | None = None) -> Any:
        """Sends a request, repeatedly until there is a final answer. The bytes of the body stay the same.

        once: the request must not be repeated. stop, when it is set, ends the repeating.
        """
        lost_at = None  # since when the fleet has not answered
        wait = 0.1
        while True:
            began = time.monotonic()
            heard = [began]  # the last sign of life
            try:
                return self._attempt(method, path, body, headers or {}, read, heard)
            except FleetError as error:
                if once or stop and stop.is_set() or not (error.status in (0, 408, 429, 502, 503, 504) or error.code == "running"):
                    raise
                if not isinstance(error, Unavailable):
                    lost_at = None  # the fleet has answered: the batch runs, or the fleet is busy
                else:
                    lost_at = heard[0] if heard[0] > began else lost_at or began
                    if time.monotonic() - lost_at >= (self.patience if self._met else min(FIRST_CONTACT, self.patience)):
                        raise
                after = error.retry_after or 0
                # If the request has already waited for the batch, send the next one at once.
                pause = after - (time.monotonic() - began) if error.code == "running" else max(wait, after)
            (stop.wait if stop else time.sleep)(max(0, pause))
            wait = min(2 * wait, 2)

    def _attempt(self, method: str, path: str, body: bytes | None, headers: dict[str, str], read: Callable[[Answer], Any],
                 heard: list[float]) -> Any:
        if body is not None:
            headers = {"content-type": "application/json", **headers}
        if self._token:
            headers = {"authorization": f"Bearer {self._token}", **headers}
        try:
            with self._send(method, path, body, headers) as answer:
                if not 200 <= answer.status < 300:
                    raise problem_of(answer.status, answer.read())
                self._met = True
                heard[0] = time.monotonic()
                answer.lines = _noted(answer.lines, heard)
                return read(answer)
        except FleetError as error:
            self._met = self._met or not isinstance(error, Unavailable)
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable("no_connection", f"{self.url} cannot be reached: {why}; start a fleet with `toolfleet dev`") from error

    def _over_http(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> "_Connection":
        return _Connection(self.url, method, path, body, headers)


def _noted(lines: Iterator[bytes], heard: list[float]) -> Iterator[bytes]:
    """Yields the lines, and sets heard[0] to the time at which each line came."""
    for line in lines:
        heard[0] = time.monotonic()
        yield line


class _Connection:
    """One request on a connection of its own."""

    def __init__(self, url: str, method: str, path: str, body: bytes | None, headers: dict[str, str]):
        at = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(at.hostname or "", at.port, timeout=SILENCE)
        self._request = (method, at.path + path, body, headers)

    def __enter__(self) -> Answer:
        try:
            self._connection.request(*self._request)
            self._socket = self._connection.sock  # http.client forgets it when the answer is the last one
            self._response = response = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self._answer = Answer(response.status, response.headers, response.read, iter(response.readline, b""), self._close, self._cut)
        return self._answer

    def __exit__(self, *_: object) -> None:
        if not self._answer.kept:
            self._close()

    def _close(self) -> None:
        self._response.close()  # the last answer of a connection holds its socket
        self._connection.close()

    def _cut(self) -> None:
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def problem_of(status: int, body: bytes) -> FleetError:
    """Returns the error of an answer. The body may come from a proxy instead of the fleet."""
    try:
        answer = json.loads(body)
        error = answer["error"]
    except (ValueError, KeyError, TypeError):
        answer, error = {}, {}
    kind = Refused if status in (409, 413, 422) else Unavailable if status in (502, 503, 504) else FleetError
    after = error.get("retry_after_ms")
    return kind(error.get("code", f"http_{status}"), error.get("message") or body[:200].decode(errors="replace") or "no words",
                status=status, retry_after=None if after is None else after / 1000, reply=answer.get("reply"))


def events_of(lines: Iterator[bytes]) -> Iterator[tuple[str, str, str]]:
    """The events of a stream (text/event-stream): id, type and data."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id", ""), fields.get("event", "message"), fields["data"]
        if not name:
            fields = {}


def read_stream(on_event: Callable[[Event], None]) -> Callable[[Answer], Any]:
    """Reads the events of a batch up to its reply."""

    def read(answer: Answer) -> Any:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.json()
        for _, kind, data in events_of(answer.lines):
            event = json.loads(data)
            if kind == "reply":
                return event
            if kind == "error":
                raise problem_of(_STATUS.get(event["error"]["code"], 422), data.encode())
            on_event(event)
        raise Unavailable("no_connection", "the stream has ended before its reply")

    return read


# The HTTP status for the code of an error that came inside a stream.
_STATUS = {"batch_conflict": 409, "too_large": 413, "busy": 429, "internal": 500, "unauthorized": 401, "no_fleet": 503,
           "unavailable": 503, "stopping": 503, "no_answer": 503}


def path_of(*parts: str) -> str:
    """The path of a session, or of something in it."""
    for part in parts:
        if not isinstance(part, str) or part in ("", ".", ".."):
            raise ValueError(f"an id is a text that is not empty, . or ..; got {part!r}")
    return "/v1/sessions/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


def encode(**members: Any) -> bytes:
    """A JSON object of the members that are not None."""
    return json.dumps({name: value for name, value in members.items() if value is not None}, ensure_ascii=False,
                      separators=(",", ":")).encode()
