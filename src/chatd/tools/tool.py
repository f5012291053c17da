"""What all tools are made of: a description for the model and something to do.

Owns that a failure is an answer: what a workspace refuses, what cannot be reached and what was
asked wrongly all become results that say what to do next.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.hands import AgentLost, AgentRefused, NoHands
from chatd.domain.model import ToolSpec
from chatd.domain.ports import Effect, ToolContext
from chatd.domain.tool_output import ToolOutput, failed
from chatd.tools.arguments import Arguments

Act = Callable[[ToolContext, Arguments], Awaitable[ToolOutput]]

TRY_AGAIN: Final = (
    "Try again in a moment; if it goes on, call stop_workspace, then start_workspace."
)
UNKNOWN: Final = (
    "chatd's own database did not answer, so it is not known how this stands. Try again in a"
    " moment."
)


class WorkspaceTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`. Whatever it changes is named by the call, so that running it again
    after a crash changes nothing more."""

    spec: ToolSpec
    act: Act
    effect: Effect = "idempotent"
    serial: bool = False
    exclusive: bool = False
    stops_turn: bool = False
    timeout_s: float = 60.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        try:
            return await self.act(context, Arguments.of(args))
        except (ToolError, NoHands, AgentRefused) as error:
            return failed(error.message)
        except AgentLost as error:
            return failed(f"{error.message} {TRY_AGAIN}")
        except Unavailable:
            # Its words are for operators: they may name hosts that are nobody's business here.
            return failed(UNKNOWN)

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


def spec(name: str, description: str, /, **properties: Mapping[str, object]) -> ToolSpec:
    """A property marked `needed` must be given."""
    plain = {
        key: {word: value for word, value in about.items() if word != "needed"}
        for key, about in properties.items()
    }
    schema = {
        "type": "object",
        "properties": plain,
        "required": [key for key, about in properties.items() if about.get("needed")],
    }
    return ToolSpec(
        name=name, description=description, input_schema=Raw(msgspec.json.encode(schema))
    )


def answer(value: object) -> ToolOutput:
    return ToolOutput(text=msgspec.json.encode(value).decode())
