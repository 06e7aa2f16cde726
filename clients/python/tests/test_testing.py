import asyncio
import copy
import json
import pathlib
import unittest

import toolfleet
from toolfleet.testing import FakeAsyncFleet, FakeFleet

TABLE = [json.loads(line) for line in (pathlib.Path(__file__).parents[2] / "testdata" / "double.jsonl").read_text().splitlines()]


def message(*calls):
    return {"calls": [{"id": id, "name": name, "input": input} for id, name, input in calls]}


class FakeFleetTest(unittest.TestCase):
    def test_it_answers_as_the_codecs_of_the_fleet_do(self):
        for line in TABLE:
            answers = list(line["results"])

            def answer(**_):
                given = answers.pop(0)
                if "error" in given:
                    raise RuntimeError(given["error"])
                return given["output"]

            fleet = FakeFleet(dict.fromkeys(["text", "value", "fails"], answer))
            reply = fleet.run(session="s", id="b", provider=line["provider"], message=line["message"])
            self.assertEqual(reply["append"], line["append"])

    def test_the_same_batch_runs_once(self):
        fleet = FakeFleet({"note": lambda: "ok"})
        batch = {"session": "s", "id": "b", "provider": "canonical"}
        first = fleet.run(**batch, message=message(("1", "note", {})))
        self.assertEqual(fleet.run(**batch, message=message(("1", "note", {}))), first)
        self.assertEqual(len(fleet.calls), 1)
        with self.assertRaises(toolfleet.Refused) as refused:
            fleet.run(**batch, message=message())
        self.assertEqual(refused.exception.code, "batch_conflict")

    def test_calls_keep_their_order_with_asyncio(self):
        fleet = FakeAsyncFleet({"note": lambda n: n})

        async def all():
            return await asyncio.gather(*(fleet.call(session="s", id=str(n), name="note", input={"n": n}) for n in range(20)))

        results = asyncio.run(all())
        self.assertEqual([toolfleet.output_of(r) for r in results], list(range(20)))
        self.assertEqual([call["input"]["n"] for call in fleet.calls], list(range(20)))

    def test_a_failed_call_is_a_result(self):
        result = FakeFleet({}).call(session="s", id="c", name="nope")
        self.assertEqual(result["status"], "unknown_tool")
        with self.assertRaises(toolfleet.CallFailed):
            toolfleet.output_of(result)

    def test_a_loop_goes_on_from_where_it_was_stored(self):
        script = [message(("1", "look", {})), message(("2", "look", {})), message()]
        fleet, stored = FakeFleet({"look": lambda: "seen"}), []
        conversation = {"session": "s", "provider": "canonical", "history": []}
        fleet.loop(conversation, lambda history: script[len(history) // 2], save=lambda now: stored.append(copy.deepcopy(now)))
        self.assertEqual(len(conversation["history"]), 5)
        for before in stored[:-1]:
            fleet.loop(before, lambda history: script[len(history) // 2])
            self.assertEqual(before["history"], conversation["history"])
        self.assertEqual(len(fleet.calls), 2)

    def test_a_loop_stops_after_its_last_round(self):
        fleet = FakeAsyncFleet({"look": lambda: "seen"})
        conversation = {"session": "s", "provider": "canonical", "history": []}

        async def ask(history):
            return message((str(len(history)), "look", {}))

        with self.assertRaises(toolfleet.Stopped) as stopped:
            asyncio.run(fleet.loop(conversation, ask, max_rounds=2))
        self.assertEqual((stopped.exception.code, len(conversation["history"])), ("max_rounds", 4))

    def test_what_people_say_comes_with_the_next_reply(self):
        fleet, said, events = FakeFleet({"look": lambda: "seen"}), {"role": "user", "content": "Hurry."}, []
        fleet.steer("s", said)
        reply = fleet.run(session="s", id="b", provider="canonical", message=message(("1", "look", {})), on_event=events.append)
        self.assertEqual(reply["append"][-1], said)
        self.assertEqual([event["type"] for event in events], ["end"])


if __name__ == "__main__":
    unittest.main()
