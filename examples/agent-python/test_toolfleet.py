"""What toolfleet.py does beyond the straight way. Needs a fleet at NATS_URL that serves the tools echo, sleep and blob:

    NATS_URL=nats://127.0.0.1:4222 python3 -m unittest discover -s examples/agent-python
"""

import os
import socket
import subprocess
import sys
import threading
import unittest
import urllib.parse
import uuid

import toolfleet


def message(*calls):
    return {"calls": [{"id": f"c{i}", "name": name, "input": input} for i, (name, input) in enumerate(calls)]}


class ToolfleetTest(unittest.TestCase):
    def setUp(self):
        self.session = f"s-{uuid.uuid4()}"

    def run_batch(self, id, *calls, **options):
        return toolfleet.run(session=self.session, id=id, provider="canonical", message=message(*calls), **options)

    def test_results_come_in_call_order(self):
        reply = self.run_batch("b", ("sleep", {"ms": 100}), ("echo", {"n": 2**53 + 1}), ("nope", {}))
        self.assertEqual([r["status"] for r in reply["results"]], ["ok", "ok", "unknown_tool"])
        outputs = [r.get("output") for r in reply["reinjection"]["results"]]
        self.assertEqual(outputs[:2], [{"ms": 100}, {"n": 2**53 + 1}])

    def test_events(self):
        events = []
        self.run_batch("b", ("echo", {}), ("echo", {}), on_event=events.append)
        self.assertEqual([e["type"] for e in events][:2], ["start", "start"])
        self.assertIn("running", {e["type"] for e in events})

    def test_ids_of_any_kind(self):
        for odd in ["a.b", "a.>", "*", "two words", "emoji \U0001f642", "\n", "k" * 4096]:
            self.session = odd + str(uuid.uuid4())
            reply = self.run_batch(odd, ("echo", {}))
            self.assertEqual((reply["session"], reply["batch"]), (self.session, odd))

    def test_the_same_batch_again(self):
        first = self.run_batch("b", ("echo", {"n": 1}))
        self.assertEqual(self.run_batch("b", ("echo", {"n": 1})), first)
        self.assertEqual(toolfleet.get(self.session, "b"), first)
        self.assertEqual(toolfleet.get(self.session, "never"), {"status": "unknown"})

    def test_the_same_id_with_another_body(self):
        self.run_batch("b", ("echo", {"n": 1}))
        with self.assertRaises(toolfleet.Refused) as refused:
            self.run_batch("b", ("echo", {"n": 2}))
        self.assertEqual(refused.exception.args[0], "batch_conflict")

    def test_the_same_id_with_another_body_while_it_runs(self):
        running = threading.Event()
        first = threading.Thread(
            target=self.run_batch, args=("b", ("sleep", {"ms": 1000})), kwargs={"on_event": lambda _: running.set()})
        first.start()
        running.wait(30)
        with self.assertRaises(toolfleet.Refused) as refused:
            self.run_batch("b", ("echo", {}))
        first.join()
        self.assertEqual(refused.exception.args[0], "batch_conflict")

    def test_what_cannot_be_run_is_refused(self):
        for text, provider, wrong in [({}, "canonical", "malformed_message"), ({}, "nobody", "unsupported_provider"),
                                      ("x" * 2_000_000, "canonical", "too_large")]:
            with self.assertRaises(toolfleet.Refused) as refused:
                toolfleet.run(session=self.session, id=f"b-{wrong}", provider=provider, message=text)
            self.assertEqual(refused.exception.args[0], wrong)

    def test_a_reply_larger_than_a_message(self):
        reply = self.run_batch("b", ("blob", {"bytes": 700_000}), ("blob", {"bytes": 800_000}))
        sizes = [len(r["output"]) for r in reply["reinjection"]["results"]]
        self.assertEqual(sizes, [700_000, 800_000])

    def test_no_calls(self):
        reply = self.run_batch("b")
        self.assertEqual((reply["status"], reply["results"], reply["reinjection"]), ("completed", [], None))

    def test_a_lost_connection(self):
        cut = Cut(os.environ["NATS_URL"])
        reply = self.run_batch("b", ("sleep", {"ms": 500}), url=cut.url, on_event=lambda _: None)
        self.assertEqual(reply["results"][0]["status"], "ok")
        self.assertEqual(cut.connections, 2)

    def test_a_missed_reply(self):
        patience, toolfleet.PATIENCE = toolfleet.PATIENCE, 0.2
        try:
            reply = self.run_batch("b", ("sleep", {"ms": 700}))  # submitted three times over
        finally:
            toolfleet.PATIENCE = patience
        self.assertEqual(reply["results"][0]["attempt"], 1)

    def test_the_program_without_a_server(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        here = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([sys.executable, "toolfleet.py", "../anthropic.json"], cwd=here, capture_output=True, text=True,
                              env={**os.environ, "NATS_URL": f"nats://127.0.0.1:{free}"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("Connection refused; is a NATS server there?", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_no_server(self):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        with self.assertRaises(ConnectionRefusedError):
            self.run_batch("b", url=f"nats://127.0.0.1:{port}")


class Cut:
    """A way to the server that is cut in the middle of the first event, once."""

    def __init__(self, url):
        self._server = urllib.parse.urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self._listener.accept()
            self.connections += 1
            server = socket.create_connection((self._server.hostname, self._server.port))
            mark = b"Toolfleet-Event" if self.connections == 1 else None
            for source, sink, until in [(client, server, None), (server, client, mark)]:
                threading.Thread(target=self._pass_on, args=(source, sink, until), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink, until):
        passed = b""
        try:
            while data := source.recv(1 << 16):
                at = (passed + data).find(until) if until else -1
                if at >= 0:  # however much has come by now, nobody gets more
                    sink.sendall(data[:max(0, at - len(passed))])
                    break
                sink.sendall(data)
                if until:
                    passed += data
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # one of the two is gone


if __name__ == "__main__":
    unittest.main()
