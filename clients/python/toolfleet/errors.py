"""The errors of the client."""

from __future__ import annotations

import json
from typing import Any


class FleetError(Exception):
    """A request to the fleet failed. A failed tool call is not such an error: its result says that it failed.

    code is a word to branch on: the class of a refusal, or a code of docs/http.md.
    """

    def __init__(self, code: str, message: str, *, status: int = 0, retry_after: float | None = None,
                 reply: dict[str, Any] | None = None):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status  # of the HTTP answer; 0 when there was none
        self.retry_after = retry_after  # how long to wait before the next try, in seconds, if a next try may help
        self.reply = reply  # the stored reply of a batch that was refused


class Refused(FleetError):
    """The fleet refused the request, and nothing ran. The same request again is refused again."""


class Unavailable(FleetError):
    """The fleet cannot be reached, or does not answer. A batch may run nevertheless: run it again, with the same id."""


class CallFailed(Exception):
    """A call has failed. Its text is for the model."""

    def __init__(self, result: dict[str, Any]):
        super().__init__(text_of(result))
        self.result = result


class Stopped(Exception):
    """A turn ended early: code is max_rounds or aborted. The history is valid, and another loop may go on with it."""

    def __init__(self, code: str):
        super().__init__("the calls of the model were aborted" if code == "aborted"
                         else "the model still makes calls after the last round that it has")
        self.code = code


def text_of(result: dict[str, Any]) -> str:
    """What the model reads of a result: the output as text, or the sentence of an error."""
    if "error" in result:
        return result["error"]["message"]
    if "content" in result:
        return "\n".join(block.get("text", f"[{block['type']}]") for block in result["content"])
    output = result.get("output")
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def output_of(result: dict[str, Any]) -> Any:
    """The output of a call that has succeeded, or its content blocks. Raises CallFailed if the call has not succeeded."""
    if result["status"] != "ok":
        raise CallFailed(result)
    return result.get("content", result.get("output"))
