"""A client for toolfleet with nothing but the standard library: as much of the NATS protocol as a batch needs.

    reply = toolfleet.run(session="chat-1", id="turn-1", provider="anthropic", message=message)
    history += [message, reply["reinjection"]]

The id is the idempotency key of the batch: the same batch may be submitted again and is not executed twice. That is
how run gets over a lost connection, and how a program that crashed gets the reply it was waiting for.

It speaks plain TCP, with the user and password of the URL if there are any. Where TLS or credential files are needed,
use NATS's own Python client: subjects and messages are the same (docs/protocol.md).

As a program it runs the batch of a file and prints what to append: python3 toolfleet.py examples/anthropic.json
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

PREFIX = "toolfleet"
PATIENCE = 30  # seconds without news after which a batch is submitted again, in case its reply was missed


class Refused(Exception):
    """The batch was not run. args: the class of the refusal, and what is wrong."""


def run(*, session, id, provider, message, on_event=None, timeout=3600, url=None):
    """Runs the tool calls of a model's message and returns the reply. on_event is called with each event.

    Raises Refused, or TimeoutError: then the batch goes on, and running it again waits on.
    """
    batch = {"v": 1, "id": id, "session": session, "provider": provider, "message": message}
    return run_body(json.dumps(batch).encode(), session, id, on_event, timeout, url)


def run_body(body, session, id, on_event=None, timeout=3600, url=None):
    """run for a batch that is JSON already. Its bytes are sent as they are."""
    deadline = time.monotonic() + timeout
    connected, said = False, None
    while True:
        try:
            with Wire(url) as wire:
                connected = True
                return _attempt(wire, body, session, id, on_event, deadline)
        except OSError as lost:
            if not connected or time.monotonic() > deadline:
                raise
            if str(lost) != said:
                print(f"toolfleet: {lost}; trying again", file=sys.stderr)
            said = str(lost)
            time.sleep(1)


def _attempt(wire, body, session, id, on_event, deadline):
    limit = wire.info["max_payload"] - 64 * 1024
    if len(body) > limit:
        raise Refused("too_large", f"the batch has {len(body)} bytes; the limit is {limit}")
    digest = hashlib.sha256(body).hexdigest()
    for verb in ["reply", "refused"] + (["event"] if on_event else []):
        wire.subscribe(subject(verb, session, id))
    inbox = wire.inbox()
    accepted, soon = None, 1
    while time.monotonic() < deadline:
        if accepted is None:
            wire.publish(subject("batch", session, id), body, inbox)
            accepted, patience = False, PATIENCE
        news = wire.next(min(patience, deadline - time.monotonic()))
        if news is None:
            if not accepted:
                raise ConnectionError("the server does not answer")
            accepted = None  # submit again: who has replied already replies once more
        elif news.subject == inbox:
            accepted = True  # and durable: from here on it survives a crash of anything
            if not _stored(news):  # it runs, or had its reply before we listened and is just being put away
                patience, soon = min(soon, PATIENCE), 2 * soon
        elif "toolfleet-event" in news.headers:
            on_event(json.loads(news.data))
        else:
            reply = json.loads(news.data)
            if reply["digest"] == digest:
                if reply["status"] == "refused":
                    raise Refused(reply["error"]["class"], reply["error"]["message"])
                return get(session, id, wire) if "ref" in reply else reply
            if news.subject == subject("reply", session, id):
                raise Refused("batch_conflict", f"batch {id} was submitted with another body; use a new id")
    raise TimeoutError(f"no reply to batch {id} yet")


def _stored(ack):
    """Whether JetStream took the batch, or has it already."""
    if ack.status == "503":
        raise ConnectionError("no stream takes batches; `toolfleet coordinator` starts what does")
    error = json.loads(ack.data).get("error")
    if error is None or "per subject" in error["description"]:
        return error is None
    raise ConnectionError(f"the batch was not accepted: {error['description']}")


def get(session, id, wire=None):
    """The reply of a batch again, or {"status": "running"}, or {"status": "unknown"}."""
    if wire is None:
        with Wire() as wire:
            return get(session, id, wire)
    inbox = wire.inbox()
    wire.publish(subject("get", session, id), b"", inbox)
    parts = {}
    while (news := wire.next(10)) is not None:
        if news.subject != inbox:
            continue
        if news.status == "503":
            raise ConnectionError("no coordinator answers")
        number, count = news.headers.get("toolfleet-chunk", "1/1").split("/")  # a large reply comes in parts
        parts[int(number)] = news.data
        if len(parts) == int(count):
            return json.loads(b"".join(parts[i + 1] for i in range(len(parts))))
    raise ConnectionError("the answer did not come")


def subject(verb, session, id, tenant="_"):
    return f"{PREFIX}.{verb}.{tenant}.{token(session)}.{token(id)}"


def token(id):
    """What stands for an id in a subject: the id itself when it is plain, else a hash of it."""
    if re.fullmatch("[A-Za-z0-9_-]{1,64}", id):
        return id
    return "=" + base64.urlsafe_b64encode(hashlib.sha256(id.encode()).digest()).decode().rstrip("=")


Message = collections.namedtuple("Message", "subject headers status data")


class Wire:
    """A connection to a NATS server. https://docs.nats.io/reference/reference-protocols/nats-protocol"""

    def __init__(self, url=None):
        url = url or os.environ.get("NATS_URL") or "nats://127.0.0.1:4222"
        at = urllib.parse.urlsplit(url)
        if at.scheme != "nats":
            raise ValueError(f"{url}: this client speaks nats:// only")
        self._socket = socket.create_connection((at.hostname, at.port or 4222), timeout=10)
        self._buffer = b""
        self._subscriptions = 0
        self.info = None
        while self.info is None:
            self._receive()
            self._take()
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "echo": True,
                   "protocol": 1, "lang": "python", "version": "1", "name": "toolfleet.py"}
        if at.username:
            options["user"] = urllib.parse.unquote(at.username)
            options["pass"] = urllib.parse.unquote(at.password or "")
        self._send(b"CONNECT " + json.dumps(options).encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def subscribe(self, subject):
        self._subscriptions += 1
        self._send(f"SUB {subject} {self._subscriptions}".encode())

    def inbox(self):
        """A subject of our own that is listened to."""
        subject = "_INBOX." + secrets.token_hex(11)
        self.subscribe(subject)
        return subject

    def publish(self, subject, body, reply=""):
        self._send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body)

    def next(self, wait):
        """The next message, or None when none comes for `wait` seconds."""
        deadline = time.monotonic() + wait
        while (message := self._take()) is None:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                self._receive()
            except socket.timeout:
                return None
            finally:
                self._socket.settimeout(10)
        return message

    def _send(self, line):
        self._socket.sendall(line + b"\r\n")

    def _receive(self):
        chunk = self._socket.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the connection was closed")
        self._buffer += chunk

    def _take(self):
        """Takes what is complete out of the buffer, up to and with the first message."""
        while b"\r\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\r\n")
            verb, _, args = line.partition(b" ")
            if verb in (b"MSG", b"HMSG"):
                words = args.decode().split()
                size, head = int(words[-1]), int(words[-2]) if verb == b"HMSG" else 0
                if len(rest) < size + 2:
                    return None
                self._buffer = rest[size + 2:]
                return Message(words[0], *_headers(rest[:head]), rest[head:size])
            self._buffer = rest
            if verb == b"INFO":
                self.info = json.loads(args)
            elif verb == b"PING":
                self._send(b"PONG")
            elif verb == b"-ERR":
                raise Refused("nats", args.decode()) if b"Violation" in args else ConnectionError(args.decode())
        return None


def _headers(block):
    """The headers, named in lower case, and the status of a block like NATS/1.0 503."""
    first, *lines = block.decode().split("\r\n")
    pairs = (line.split(":", 1) for line in lines if line)
    return {name.lower(): value.strip() for name, value in pairs}, first[len("NATS/1.0"):].strip()[:3]


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as f:
        body = f.read()
    batch = json.loads(body)
    try:
        reply = run_body(body, batch["session"], batch["id"])
    except TimeoutError as late:
        sys.exit(f"toolfleet: {late}")
    except OSError as lost:
        where = os.environ.get("NATS_URL") or "nats://127.0.0.1:4222"
        sys.exit(f"toolfleet: {where}: {lost}; is a NATS server there? `toolfleet dev` starts a fleet, NATS_URL names another server")
    except Refused as refused:
        sys.exit(f"toolfleet: refused ({refused.args[0]}): {refused.args[1]}")
    except KeyboardInterrupt:
        sys.exit("toolfleet: interrupted; the batch goes on, and running it again waits on")
    print(json.dumps(reply["reinjection"], indent=2, ensure_ascii=False))
