"""Blocks: text, reasoning and calls of an answer while they are still coming."""

from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.heal import heal_bytes, heal_json, heal_text, is_empty
from chatd.domain.ids import ToolCallId
from chatd.domain.model import CallStart
from chatd.domain.parts import Json, Part, Reasoning, Text, ToolCall, checked_json

EMPTY_OBJECT: Final = Raw(b"{}")


class Block:
    """Text, reasoning or the input of a call while it is still coming."""

    __slots__ = ("began_at", "metadata", "pieces")

    def __init__(self, began_at: str | None) -> None:
        self.pieces: list[str] = []
        self.metadata: Json = UNSET
        self.began_at = began_at

    def note(self, metadata: Json) -> None:
        """A later event without metadata must not erase a signature."""
        if not is_empty(metadata):
            self.metadata = storable(metadata)

    @property
    def text(self) -> str:
        return heal_text("".join(self.pieces))


class TextBlock(Block):
    def part(self, _ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return Text(text=self.text, provider_metadata=self.metadata)


class ReasoningBlock(Block):
    def part(self, ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return Reasoning(
            text=self.text,
            created_at=self.began_at,
            completed_at=ended_at,
            provider_metadata=self.metadata,
        )


class CallBlock(Block):
    __slots__ = ("call_id", "name", "provider_executed")

    def __init__(self, call_id: ToolCallId, start: CallStart, began_at: str | None) -> None:
        super().__init__(began_at)
        self.call_id = call_id
        self.name = start.name
        self.provider_executed = start.provider_executed

    def part(self, ended_at: str | None) -> Part | None:
        """Nobody has said that the call is whole: without a word of its input it is not one
        with empty input."""
        return ToolCall(
            tool_call_id=self.call_id,
            tool_name=self.name,
            args=json_args(self.text),
            provider_executed=self.provider_executed,
            created_at=ended_at,
        )


def json_args(text: str) -> Json:
    """Arguments as sent, if they are JSON that can be stored and read again."""
    try:
        return checked_json(heal_json(text))
    except ValueError:
        return UNSET


def storable(raw: Json) -> Json:
    """A vendor's own JSON, if it can be stored and read again."""
    return UNSET if raw is UNSET else json_args(heal_bytes(bytes(raw)))
