"""A client for toolfleet with nothing but the standard library: about as little of the NATS protocol as a batch needs.

    with Client() as fleet:
        reply = fleet.run(session="chat-1", id="turn-1", provider="anthropic", message=message)
    history += [message, reply["reinjection"]]

The id is the idempotency key of the batch: whatever happens on the way, the same batch may be run again and is
not executed twice. That is how run survives a lost connection: it connects and submits the batch again.

It speaks plain TCP, with the user and password of the URL if there are any. Where TLS or credential files are
needed, take nats-py, the official library: the subjects and messages are the same (docs/protocol.md).

As a program it runs a batch from a file and prints what to append:  python3 toolfleet.py examples/anthropic.json
"""

import base64
import collections
import hashlib
import json
import os
import re
import secrets
import socket
import sys
import time
import urllib.parse

USUAL = "nats://127.0.0.1:4222"


class Refused(Exception):
    """The batch was not run. args: the class of the refusal, and what is wrong."""


class Client:
    """Submits batches, one at a time. Use one client for each thread."""

    def __init__(self, url=None, tenant="_", prefix="toolfleet"):
        self._url = url or os.environ.get("NATS_URL") or USUAL
        self._tenant, self._prefix = tenant, prefix
        self._wire = Wire(self._url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._wire.close()

    def run(self, *, session, id, provider, message, on_event=None, timeout=3600):
        """Runs the tool calls of a model's message and returns the reply. on_event is called with each event."""
        batch = {"v": 1, "id": id, "session": session, "provider": provider, "message": message}
        return self.run_body(session, id, json.dumps(batch).encode(), on_event, timeout)

    def run_body(self, session, id, body, on_event=None, timeout=3600):
        """run for a batch that is JSON already: its bytes are sent as they are."""
        deadline = time.monotonic() + timeout
        pause = 0.1
        while True:
            try:
                if self._wire is None:
                    self._wire = Wire(self._url)
                return self._attempt(session, id, body, on_event, deadline)
            except OSError as lost:  # TimeoutError and ConnectionError are OSErrors
                if self._wire is not None:
                    self._wire.close()
                self._wire = None
                if time.monotonic() + pause > deadline:
                    raise TimeoutError(f"no reply to batch {id}; it goes on, run it again to wait on ({lost})") from lost
                time.sleep(pause)
                pause = min(2 * pause, 2)

    def get(self, session, id):
        """The reply of a batch again, or {"status": "running"}, or {"status": "unknown"}."""
        parts = []
        subject = self._subject("get", session, id)
        for answer in self._wire.request(subject, b"", wait=10):
            if answer.status == 503:
                raise ConnectionError("no coordinator answers")
            parts.append(answer)
            number, _, count = answer.headers.get("toolfleet-chunk", "1/1").partition("/")
            if len(parts) == int(count):  # a large reply comes in numbered parts, in order
                return json.loads(b"".join(part.data for part in parts))

    def _attempt(self, session, id, body, on_event, deadline):
        wire = self._wire
        if len(body) > wire.max_payload - 64 * 1024:
            raise Refused("too_large", f"the batch has {len(body)} bytes, the limit is {wire.max_payload - 64 * 1024}")
        digest = hashlib.sha256(body).hexdigest()
        verbs = ["reply", "refused"] + (["event"] if on_event else [])
        sids = [wire.subscribe(self._subject(verb, session, id)) for verb in verbs]
        try:
            self._submit(self._subject("batch", session, id), body)
            while True:
                news = wire.next(sids, wait=min(15, deadline - time.monotonic()))
                if news is None:  # nothing for a while: was the reply missed?
                    if time.monotonic() > deadline:
                        raise TimeoutError("the time is up")
                    reply = self.get(session, id)
                    if reply["status"] in ("running", "unknown"):
                        continue
                else:
                    reply = json.loads(news.data)
                    if "toolfleet-event" in news.headers:
                        on_event(reply)
                        continue
                if reply["digest"] != digest:
                    if news is not None and news.sid == sids[1]:
                        continue  # the refusal of somebody else's batch
                    raise Refused("batch_conflict", f"another body was submitted as batch {id} before; use a new id")
                if reply["status"] == "refused":
                    raise Refused(reply["error"]["class"], reply["error"]["message"])
                return self.get(session, id) if "ref" in reply else reply
        finally:
            wire.unsubscribe(sids)

    def _submit(self, subject, body):
        """Publishes to JetStream: when this returns, the batch survives a crash of anything."""
        (ack,) = self._wire.request(subject, body, wait=10, answers=1)
        if ack.status == 503:
            raise ConnectionError("no stream takes batches: is a coordinator running?")
        error = json.loads(ack.data).get("error")
        if error is None or "per subject" in error["description"]:
            return  # stored, or running already
        if error["err_code"] in (10054, 10077, 10047):  # no room at the moment
            raise ConnectionError(error["description"])
        raise Refused("not_accepted", error["description"])

    def _subject(self, verb, session, id):
        return f"{self._prefix}.{verb}.{self._tenant}.{token(session)}.{token(id)}"


def token(id):
    """The part of a subject that stands for an id: the id itself when it is plain, else a hash of it."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", id):
        return id
    return "=" + base64.urlsafe_b64encode(hashlib.sha256(id.encode()).digest()).decode().rstrip("=")


Message = collections.namedtuple("Message", "sid headers status data")


class Wire:
    """One connection. https://docs.nats.io/reference/reference-protocols/nats-protocol"""

    def __init__(self, url):
        at = urllib.parse.urlsplit(url if "://" in url else "nats://" + url)
        if at.scheme != "nats":
            raise ValueError(f"{url}: only nats:// is spoken here")
        self._socket = socket.create_connection((at.hostname, at.port or 4222), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = self._socket.makefile("rb")
        self._waiting = collections.deque()  # messages that came while another was waited for
        self._sids = 0
        info = json.loads(self._line().split(b" ", 1)[1])
        self.max_payload = info["max_payload"]
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
                   "lang": "python", "version": "0", "name": "toolfleet.py"}
        if at.username:
            options["user"], options["pass"] = urllib.parse.unquote(at.username), urllib.parse.unquote(at.password or "")
        self._send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        while self._line() != b"PONG":
            pass

    def close(self):
        self._in.close()
        self._socket.close()

    def subscribe(self, subject):
        self._sids += 1
        self._send(f"SUB {subject} {self._sids}\r\n".encode())
        return self._sids

    def unsubscribe(self, sids):
        try:
            self._send("".join(f"UNSUB {sid}\r\n" for sid in sids).encode())
        except OSError:
            pass  # the connection went, and the subscriptions with it

    def request(self, subject, body, wait, answers=None):
        """Yields what comes back, `answers` messages or as many as are asked for."""
        inbox = f"_INBOX.{secrets.token_hex(12)}"
        sid = self.subscribe(inbox)
        try:
            self._send(f"PUB {subject} {inbox} {len(body)}\r\n".encode() + body + b"\r\n")
            while answers is None or answers > 0:
                answer = self.next([sid], wait)
                if answer is None:
                    raise TimeoutError(f"no answer on {subject}")
                yield answer
                answers = answers and answers - 1
        finally:
            self.unsubscribe([sid])

    def next(self, sids, wait):
        """The next message of these subscriptions; None when none has come for `wait` seconds."""
        for message in self._waiting:
            if message.sid in sids:
                self._waiting.remove(message)
                return message
        deadline = time.monotonic() + wait
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not self._readable(left):
                return None
            message = self._read()
            if message is not None and message.sid in sids:
                return message
            if message is not None:
                self._waiting.append(message)
