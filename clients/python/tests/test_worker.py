import contextvars
import dataclasses
import io
import json
import threading
import unittest
from typing import Annotated, Any, Literal, TypedDict

from toolfleet import worker

try:
    import pydantic
except ImportError:
    pydantic = None


@dataclasses.dataclass
class Address:
    street: str
    number: int = 1


class Item(TypedDict):
    name: str


def made(run, **options):
    one = worker.tool(**options)(run)
    worker._tools.remove(one)
    return one


def ask(tools, *requests):
    """Asks a program made of these tools, and returns its answers. A call has ended before the next request is read."""
    lines = [json.dumps({"id": i, "method": method, "params": params}) for i, (method, params) in enumerate(requests)]
    output = io.StringIO()

    def one_by_one():
        for i, line in enumerate(lines):
            yield line
            while f'"id": {i}' not in output.getvalue():
                pass

    worker.serve(tools, input=one_by_one(), output=output)
    return [json.loads(line) for line in output.getvalue().splitlines()]


def call(tool, input, **meta):
    return ask([tool], ("tools/call", {"name": tool.name, "arguments": input, "_meta": {f"toolfleet/{k}": v for k, v in meta.items()}}))[0]["result"]


class WorkerTest(unittest.TestCase):
    def test_the_schema_comes_from_the_annotations(self):
        def order(customer: Annotated[str, "Who pays."], items: list[Item], to: Address, size: Literal["s", "m"] = "s", note: str | None = None,
                  more: dict[str, float] | None = None, raw: Any = 1, *, call: worker.Call):
            """Orders things."""

        self.assertEqual(made(order, kind="write", risk="high").listed(), {
            "name": "order", "description": "Orders things.", "_meta": {"toolfleet/kind": "write", "toolfleet/risk": "high"},
            "inputSchema": {"type": "object", "additionalProperties": False, "required": ["customer", "items", "to"], "properties": {
                "customer": {"type": "string", "description": "Who pays."},
                "items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}},
                "to": {"type": "object", "properties": {"street": {"type": "string"}, "number": {"type": "integer"}}, "required": ["street"], "additionalProperties": False},
                "size": {"enum": ["s", "m"], "default": "s"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "more": {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]},
                "raw": {"default": 1},
            }}})

    def test_a_parameter_without_an_annotation_is_an_error(self):
        with self.assertRaisesRegex(TypeError, "n has no annotation"):
            worker.tool(lambda n: n)

    def test_what_a_run_returns(self):
        image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
        for output, content in [("text", [{"type": "text", "text": "text"}]), (None, []), ({"é": 1}, [{"type": "text", "text": '{"é": 1}'}]),
                                ({"content": [image]}, [image]), (Address("a"), [{"type": "text", "text": '{"street": "a", "number": 1}'}])]:
            self.assertEqual(call(made(lambda: output, name="a"), {}), {"content": content})

    def test_a_dataclass_and_a_default_reach_the_function(self):
        def send(to: Address, times: int = 2) -> str:
            return f"{to.street} {to.number} {times}"

        self.assertEqual(call(made(send), {"to": {"street": "a"}})["content"][0]["text"], "a 1 2")

    @unittest.skipUnless(pydantic, "no pydantic: its models as annotations are not tried")
    def test_a_model_of_pydantic_is_an_annotation(self):
        class Line(pydantic.BaseModel):
            item: str
            count: int = 1

        class Order(pydantic.BaseModel):
            customer: str
            lines: list[Line]

        def order(orders, note=None):
            """Orders things."""
            return orders[0] if isinstance(orders[0].lines[0], Line) and isinstance(note, Line) else None

        order.__annotations__ = {"orders": list[Order], "note": Line | None}
        one = made(order)
        schema = one.listed()["inputSchema"]
        self.assertEqual(schema["required"], ["orders"])
        self.assertEqual(schema["properties"]["orders"]["items"]["required"], ["customer", "lines"])
        place, name = schema["properties"]["orders"]["items"]["properties"]["lines"]["items"]["$ref"].removeprefix("#/").split("/")
        self.assertEqual(schema[place][name]["properties"]["count"]["type"], "integer")
        answer = call(one, {"orders": [{"customer": "ann", "lines": [{"item": "pen"}]}], "note": {"item": "ink"}})
        self.assertEqual(json.loads(answer["content"][0]["text"]), {"customer": "ann", "lines": [{"item": "pen", "count": 1}]})
        self.assertIn("customer", call(one, {"orders": [{"lines": []}]})["content"][0]["text"])

    def test_a_coroutine_is_a_tool_too(self):
        async def look() -> str:
            return "seen"

        self.assertEqual(call(made(look), {})["content"][0]["text"], "seen")

    def test_errors_have_codes(self):
        def fails():
            raise worker.ToolError("closed", code="shop_closed", retryable=True)

        self.assertEqual(call(made(fails), {}), {"content": [{"type": "text", "text": "closed"}], "isError": True,
                                                 "_meta": {"toolfleet/retryable": True, "toolfleet/code": "shop_closed"}})

    def test_a_probe_may_know_what_the_run_returned(self):
        def pay() -> str:
            return "paid"

        paid = made(pay)
        paid.check(lambda: worker.Done({"paid": True}))
        self.assertEqual(paid.listed()["_meta"]["toolfleet/on_crash"], "checkable")
        self.assertEqual(call(paid, {}, probe=True)["content"][0]["text"], 'done\n{"paid": true}')

    def test_a_question_never_runs_the_tool(self):
        paid = []
        pay = made(lambda: paid.append(1), on_crash="checkable", name="pay")
        for question in ({"probe": True}, {"check": "semantic_check"}, {"check": "check_permissions"}):
            self.assertTrue(call(pay, {}, **question)["isError"], question)
        pay.permit(lambda: "allow")
        self.assertEqual(pay.listed()["_meta"]["toolfleet/checks"], "check_permissions")
        pay.validate(lambda: None)
        self.assertEqual(pay.listed()["_meta"]["toolfleet/checks"], "semantic_check check_permissions")
        self.assertEqual(call(pay, {}, check="semantic_check")["content"][0]["text"], "ok")
        self.assertEqual(paid, [])

    def test_calls_run_at_once_and_apart(self):
        seen, meeting = contextvars.ContextVar("seen", default=False), threading.Barrier(8)

        def meet() -> str:
            meeting.wait(60)
            known = seen.get()
            seen.set(True)
            return f"{known} {threading.current_thread() is threading.main_thread()}"

        one = made(meet)
        requests = [json.dumps({"id": i, "method": "tools/call", "params": {"name": "meet"}}) for i in range(8)]
        output = io.StringIO()

        def two_rounds():
            for answers in (8, 16):  # the threads of the second have run calls before
                yield from requests
                while output.getvalue().count("\n") < answers:
                    pass

        worker.serve([one], input=two_rounds(), output=output)
        texts = [json.loads(line)["result"]["content"][0]["text"] for line in output.getvalue().splitlines()]
        self.assertEqual(texts, ["False False"] * 16)

    def test_a_message_that_is_no_json_ends_the_program(self):
        with self.assertRaises(json.JSONDecodeError):
            worker.serve([], input=iter(["{"]), output=io.StringIO())

    def test_what_is_asked_and_is_not_there(self):
        answers = ask([], ("resources/list", {}), ("tools/call", {"name": "a"}))
        self.assertEqual([answer["error"]["code"] for answer in answers], [-32601, -32602])


if __name__ == "__main__":
    unittest.main()
