"""What the demo model reads out of a request: what was asked, and what was done about it since.

Everything a script knows comes from here, so that it goes on where it was after any crash.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeGuard

import msgspec
from msgspec import Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model import (
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptResult,
    PromptText,
    ToolSpec,
)

_WRAPPED: Final = re.compile(r"<(workspace-context|system-reminder)>.*?</\1>", re.DOTALL)
_GO_ON: Final = re.compile(
    r"(?:please\s+)?(?:continue|go on|carry on|resume)[\s.!]*", re.IGNORECASE
)

Object = Mapping[str, object]


class Used(Struct, frozen=True, kw_only=True):
    """A call of this turn and its result."""

    name: str
    args: Object
    text: str
    is_error: bool

    @property
    def result(self) -> Object:
        """The result's fields; plain text is its output."""
        found = _parsed(self.text)
        return found if _is_object(found) else {"output": self.text}

    @property
    def failed(self) -> bool:
        """Tools report errors in two ways: by a flag, and in words of their own."""
        return self.is_error or bool(self.result.get("error"))


class Turn(Struct, frozen=True, kw_only=True):
    prompt: str
    number: int
    files: tuple[str, ...]
    used: tuple[Used, ...]
    tools: Mapping[str, ToolSpec]
    key: str

    def has(self, *names: str) -> bool:
        return all(name in self.tools for name in names)

    def done(self, name: str, **args: object) -> list[Used]:
        """Calls of a tool with these arguments, oldest first."""
        return [
            used
            for used in self.used
            if used.name == name and all(used.args.get(key) == args[key] for key in args)
        ]


def read_turn(request: ModelRequest) -> Turn:
    starts = [at for at, message in enumerate(request.messages) if message.role == "user"]
    start = starts[-1] if starts else 0
    prompt = _text(request.messages[start]) if starts else ""
    # Whoever stops the model and lets it go on wants what was begun.
    if len(starts) > 1 and _GO_ON.fullmatch(prompt.strip()):
        start = starts[-2]
        prompt = _text(request.messages[start])
    since = request.messages[start:]
    return Turn(
        prompt=prompt.strip(),
        number=len(starts),
        files=tuple(_files(since)),
        used=tuple(_used(since)),
        tools={} if request.tool_choice == "none" else {tool.name: tool for tool in request.tools},
        key=fingerprint(request.messages),
    )


def prompts(request: ModelRequest) -> list[str]:
    """All that people have said, oldest first."""
    said = [_text(message).strip() for message in request.messages if message.role == "user"]
    return [text for text in said if text]


def fingerprint(messages: Iterable[PromptMessage]) -> str:
    """The same for the same conversation, another after every step of it."""
    digest = hashlib.blake2b(digest_size=9)
    for message in messages:
        digest.update(message.role.encode())
        for part in message.parts:
            match part:
                case PromptCall() | PromptResult():
                    digest.update(part.id.encode("utf-8", "replace"))
                case PromptFile():
                    digest.update(part.data)
                case _:
                    digest.update(part.text.encode("utf-8", "replace"))
            digest.update(b"\0")
    return digest.hexdigest()


def _text(message: PromptMessage) -> str:
    texts = (part.text for part in message.parts if isinstance(part, PromptText))
    return _WRAPPED.sub("", "\n".join(texts))


def _files(messages: Sequence[PromptMessage]) -> Iterable[str]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, PromptFile):
                yield part.name or part.media_type


def _used(messages: Sequence[PromptMessage]) -> Iterable[Used]:
    calls: dict[ToolCallId, PromptCall] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, PromptCall):
                calls[part.id] = part
            elif isinstance(part, PromptResult) and (call := calls.get(part.id)) is not None:
                yield Used(
                    name=call.name,
                    args=_args(call.input),
                    text=part.text,
                    is_error=part.is_error,
                )


def _args(raw: Raw) -> Object:
    found = _parsed(bytes(raw))
    return found if _is_object(found) else {}


def _parsed(text: str | bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)
