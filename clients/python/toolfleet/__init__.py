"""Run the tool calls of LLM agents on a toolfleet.

    from toolfleet import Fleet
    fleet = Fleet()
    reply = fleet.run(session=chat, id=message["id"], provider="anthropic", message=message)
    history += [message, *reply["append"]]

toolfleet.worker has what tools are written with, and toolfleet.testing a fleet for tests. Nothing but the standard library is needed.
"""

from .aio import AsyncFleet
from .client import Fleet, Provider
from .errors import CallFailed, FleetError, Refused, Stopped, Unavailable, output_of, text_of
from .looping import Conversation

__all__ = ["AsyncFleet", "CallFailed", "Conversation", "Fleet", "FleetError", "Provider", "Refused", "Stopped", "Unavailable", "output_of", "text_of"]
