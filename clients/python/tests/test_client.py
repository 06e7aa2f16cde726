"""The shared table of client behaviour: each line is a method, the HTTP exchanges that it makes, and what comes of it."""

import asyncio
import http.server
import json
import pathlib
import threading
import unittest
import unittest.mock
import urllib.parse

import toolfleet

TABLE = [json.loads(line) for line in (pathlib.Path(__file__).parents[2] / "testdata" / "client.jsonl").read_text().splitlines()]


class Server(http.server.ThreadingHTTPServer):
    """Plays the exchanges of a line, and notes what is wrong with the requests."""

    def __init__(self, exchanges):
        super().__init__(("127.0.0.1", 0), Handler)
        self.exchanges, self.next, self.wrong, self.sent = exchanges, 0, [], {}
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        pass  # the other side has gone


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        server, body = self.server, self.rfile.read(int(self.headers.get("content-length", 0)))
        want, answer = server.exchanges[server.next] if server.next < len(server.exchanges) else ({}, {})
        server.next += 1
        for what, got, wanted in [
            ("method", self.command, want.get("method")), ("path", place(self.path), place(want.get("path", ""))),
            *((name, self.headers[name], value) for name, value in want.get("headers", {}).items()),
            ("body", json.loads(body or b"null"), want.get("body")) if "body" in want else ("body", 0, 0),
            ("bytes", body, server.sent.setdefault(self.path, body)) if self.command == "PUT" else ("bytes", 0, 0),
        ]:
            if got != wanted:
                server.wrong.append(f"{what}: got {got!r}, want {wanted!r}")
        self.close_connection = True
        if "status" not in answer:
            return
        text = answer.get("text", json.dumps(answer.get("body"))).encode()
        headers = {"content-type": "text/event-stream"} if "events" in answer else {"content-length": str(len(text))}
        self.send_response(answer["status"])
        for name, value in {**headers, **answer.get("headers", {}), "connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if "events" not in answer:
            self.wfile.write(text)
            return
        self.wfile.write(b": open\n\n")
        for event in answer["events"]:
            id = f"id: {event['id']}\n" if "id" in event else ""
            self.wfile.write(f"{id}event: {event['type']}\ndata: {json.dumps(event['data'])}\n\n".encode())

    do_GET = do_PUT = do_POST = answer

    def log_message(self, *_):
        pass


def place(path):
    path, _, query = path.partition("?")
    return [urllib.parse.unquote(part) for part in path.split("/")], dict(urllib.parse.parse_qsl(query))


def perform(fleet, line, events):
    """Calls a method of the table with what it is called with in this language."""
    args = dict(line["args"])
    match line["do"]:
        case "run":
            return fleet.run(**args, on_event=events.append if line.get("listen") else None)
        case "get" | "abort" | "steer":
            return getattr(fleet, line["do"])(args.pop("session"), *([args.pop("message")] if "message" in args else []), **args)
        case "follow":
            seen = []
            for event in fleet.follow(args.get("session")):
                seen.append(event)
                if len(seen) == line["take"]:
                    return seen
        case method:
            return getattr(fleet, method)(**args)


async def perform_async(fleet, line, events):
    if line["do"] != "follow":
        return await perform(fleet, line, events)
    seen = []
    async for event in fleet.follow(line["args"].get("session")):
        seen.append(event)
        if len(seen) == line["take"]:
            return seen


class ClientTest(unittest.TestCase):
    def play(self, line, kind, perform):
        server = Server(line["http"])
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        options = {"patience": line["patience_ms"] / 1000} if "patience_ms" in line else {}
        fleet, events = kind(server.url, token=line.get("token"), **options), []
        try:
            if want := line.get("throws"):
                with self.assertRaises(toolfleet.FleetError) as raised:
                    perform(fleet, line, events)
                error = raised.exception
                self.assertEqual(type(error).__name__, want["kind"])
                for name in want.keys() - {"kind"}:
                    self.assertEqual(getattr(error, name), want[name])
            else:
                self.assertEqual(perform(fleet, line, events), line["returns"])
            if "events" in line:
                self.assertEqual(events, line["events"])
        finally:
            server.shutdown()
            server.server_close()
        self.assertEqual(server.wrong, [])
        self.assertEqual(server.next, len(line["http"]))

    def test_table(self):
        for line in TABLE:
            with self.subTest(line["name"]):
                self.play(line, toolfleet.Fleet, perform)

    def test_table_with_asyncio(self):
        for line in TABLE:
            with self.subTest(line["name"]):
                self.play(line, toolfleet.AsyncFleet, lambda *args: asyncio.run(perform_async(*args)))

    def test_a_stream_that_is_cut_after_a_long_time_is_asked_for_again(self):
        """The time in which a fleet may be away begins with the last sign of life, not with the request."""
        now = [0.0]
        events = [{"type": "start", "data": {"n": 1}}, {"type": "start", "data": {"n": 2}}]
        put = {"method": "PUT", "path": "/v1/sessions/s/batches/b"}
        reply = {"status": "completed", "append": []}
        server = Server([[put, {"status": 200, "events": events}], [put, {"status": 200, "events": [{"type": "reply", "data": reply}]}]])
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def on_event(event):
            if event["n"] == 1:
                now[0] += 3600

        with unittest.mock.patch("toolfleet._http.time.monotonic", lambda: now[0]):
            fleet = toolfleet.Fleet(server.url)
            self.assertEqual(fleet.run(session="s", id="b", provider="canonical", message={}, on_event=on_event), reply)
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    unittest.main()
