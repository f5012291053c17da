"""What the demo model reads from a request, and the items of which a scene consists.

A script has no state besides the request, so that it continues after a crash.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptResult,
    PromptText,
    ProviderFault,
    SourceFound,
    ToolSpec,
)
from chatd.providers.sse import DECODE_ERRORS
from chatd.providers.tool_schema import is_object

_INJECTED: Final = re.compile(r"<(workspace-context|system-reminder)>.*?</\1>", re.DOTALL)
_CONTINUE: Final = re.compile(
    r"(?:please\s+)?(?:continue|go on|carry on|resume)[\s.!]*", re.IGNORECASE
)

Object = Mapping[str, object]


class ThinkText(Struct, frozen=True):
    text: str


class CallTool(Struct, frozen=True):
    name: str
    args: Object = {}


class RefuseAnswer(Struct, frozen=True):
    """Ends the answer as filtered content."""

    explanation: str


class SetPace(Struct, frozen=True):
    """Scales the configured speed of the scene; 0 plays it without pauses."""

    factor: float


# A string is text of the answer. A fault fails the stream; as first item, the stream never opens.
ScriptItem = str | ThinkText | CallTool | SourceFound | RefuseAnswer | SetPace | ProviderFault
DemoScene = tuple[ScriptItem, ...]


class CompletedCall(Struct, frozen=True, kw_only=True):
    """A tool call of this turn with its result."""

    name: str
    args: Object
    text: str
    is_error: bool

    @property
    def result(self) -> Object:
        """The fields of the result; plain text becomes the field `output`."""
        return parse_object(self.text) or {"output": self.text}

    @property
    def failed(self) -> bool:
        """Tools report an error by the flag or by a field `error`."""
        return self.is_error or bool(self.result.get("error"))


class DemoTurn(Struct, frozen=True, kw_only=True):
    prompt: str
    number: int
    files: tuple[str, ...]
    calls: tuple[CompletedCall, ...]
    tools: Mapping[str, ToolSpec]

    def find_calls(self, name: str, **args: object) -> list[CompletedCall]:
        """Calls of a tool with at least these arguments, oldest first."""
        return [
            call
            for call in self.calls
            if call.name == name and all(call.args.get(key) == args[key] for key in args)
        ]

    def mentions(self, pattern: str) -> bool:
        """True if the pattern matches whole words of the prompt."""
        return re.search(rf"\b(?:{pattern})\b", self.prompt, re.IGNORECASE) is not None


def read_turn(request: ModelRequest) -> DemoTurn:
    starts = [at for at, message in enumerate(request.messages) if message.role == "user"]
    # After an interrupt, "continue" resumes the turn before it.
    if len(starts) > 1 and _CONTINUE.fullmatch(user_text(request.messages[starts[-1]])):
        start = starts[-2]
    else:
        start = starts[-1] if starts else 0
    turn = request.messages[start:]
    files = [part for message in turn for part in message.parts if isinstance(part, PromptFile)]
    return DemoTurn(
        prompt=user_text(turn[0]) if starts else "",
        number=len(starts),
        files=tuple(file.name or file.media_type for file in files),
        calls=tuple(_completed_calls(turn)),
        tools={} if request.tool_choice == "none" else {tool.name: tool for tool in request.tools},
    )


def user_text(message: PromptMessage) -> str:
    texts = (part.text for part in message.parts if isinstance(part, PromptText))
    return _INJECTED.sub("", "\n".join(texts)).strip()


def fingerprint(messages: Sequence[PromptMessage]) -> str:
    """Identifies a history: equal for equal messages, different after every step."""
    return hashlib.blake2b(msgspec.json.encode(messages), digest_size=9).hexdigest()


def parse_object(text: str | bytes) -> dict[str, object]:
    """The JSON object in `text`; empty if there is none."""
    try:
        value: object = msgspec.json.decode(text)
    except DECODE_ERRORS:
        return {}
    return value if is_object(value) else {}


def _completed_calls(messages: Sequence[PromptMessage]) -> Iterator[CompletedCall]:
    calls: dict[ToolCallId, PromptCall] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, PromptCall):
            calls[part.id] = part
        elif isinstance(part, PromptResult) and (call := calls.get(part.id)) is not None:
            args = parse_object(bytes(call.input))
            yield CompletedCall(name=call.name, args=args, text=part.text, is_error=part.is_error)
