"""The turn of an agent as a sequence of steps, which the clients for threads and for asyncio share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator
from typing import Any, NotRequired, TypedDict

from .errors import Refused, Stopped


class Conversation(TypedDict):
    """The state of a loop. A program stores it to go on after a crash."""

    session: str
    provider: str
    history: list[Any]
    """Valid for the provider at any time: each call in it is answered. Append the user's message before a turn."""
    message: NotRequired[Any]
    """The model's newest message while its calls are not answered. It is not part of history."""
    catalogue: NotRequired[str]
    """Digest of the definitions that the model is given."""
    rounds: NotRequired[int]
    """How many messages with calls of the turn are answered."""


Model = Callable[[list[Any]], Any]


def rounds(conversation: Conversation, max_rounds: int) -> Generator[tuple[str, Any], Any, None]:
    """Yields each step, and is sent its result: ask (the history), run (a batch), save (the conversation)."""
    history = conversation["history"]
    while True:
        if "message" not in conversation:
            conversation["message"] = yield "ask", history
            yield "save", conversation
        message = conversation["message"]
        batch = {"session": conversation["session"], "id": round_id(history), "provider": conversation["provider"], "message": message,
                 "catalogue": conversation.get("catalogue"), "round": conversation.get("rounds", 0) + 1}
        try:
            reply = yield "run", batch
        except Refused:
            del conversation["message"]
            yield "save", conversation
            raise
        history += message if isinstance(message, list) else [message]
        history += reply["append"]
        del conversation["message"]
        conversation["rounds"] = conversation.get("rounds", 0) + 1
        done = not reply["append"]  # no calls, and no steering message
        stopped = None if done else "aborted" if reply["status"] == "aborted" else "max_rounds" if conversation["rounds"] >= max_rounds else None
        if done or stopped:
            del conversation["rounds"]
        yield "save", conversation
        if stopped:
            raise Stopped(stopped)
        if done:
            return


def round_id(history: list[Any]) -> str:
    """The id of the batch that follows a history. It stays the same when the history is stored and read again."""
    text = "".join(json.dumps(message, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n" for message in history)
    return f"round-{len(history)}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
