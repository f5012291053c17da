"""Random invalid histories: results without calls, calls without results, parts in messages of the
wrong role, parts of other providers and older versions.

Tests check that the server can work with any of them. A failure names its seed, and `smallest`
reduces it.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.chat.messages import Message, Role
from chatd.domain.chat.parts import (
    ContextFilePart,
    FilePart,
    FileReferencePart,
    Part,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    UnknownPart,
)
from chatd.domain.ids import ModelConfigId
from chatd.domain.prompt.prompt_files import ResolvedFile
from chatd.domain.text import Json
from tests.support.factories import call, message, result

OURS: Final = ModelConfigId(UUID(int=1))
THEIRS: Final = ModelConfigId(UUID(int=2))
ORIGINS: Final = {OURS: "here", THEIRS: "there"}
FILES: Final = {
    "full": ResolvedFile(media_type="image/png", data=b"png"),
    "empty": ResolvedFile(media_type="image/png", data=b""),
}

_WORDS: Final = ("hello", "", "  \n", "nul \0", "half \ud800", "a\u200bb")
_IDS: Final = ("a", "b", "c", "a.b", "a_b", "", "x" * 80)
_NAMES: Final = ("execute", "web_search", "", "odd name!")
_ARGUMENTS: Final = (None, "{}", '{"a":"\\u0000"}', "[1]", "null", '"text"')
_OUTPUTS: Final = (
    '{"output":"done"}',
    '{"output":" "}',
    '{"error":"no"}',
    '{"data":"aGk=","mime_type":"image/png","text":""}',
    '{"data":"!","mime_type":"image/png"}',
    '[{"url":"https://x.example","title":"X"}]',
    "{}",
    "null",
    '"text"',
    '"\\u0000"',
)
_METADATA: Final[Sequence[Json]] = (
    UNSET,
    UNSET,
    Raw(b"{}"),
    Raw(b'{"anthropic":{"signature":"s"}}'),
)
_OTHERS: Final[Sequence[Part]] = (
    SourcePart(url="https://x.example"),
    FilePart(media_type="image/png", file_id="full"),
    FilePart(media_type="image/png", file_id="empty"),
    FilePart(media_type="image/png", file_id="gone"),
    FilePart(media_type="text/plain", data="aGk="),
    FileReferencePart(file_name="a.py", start_line=1, end_line=2, content="```\n"),
    ContextFilePart(context_file_path="A", context_file_content="rules"),
    ContextFilePart(context_file_path=""),
    SkillPart(skill_name="s"),
    UnknownPart(raw=Raw(b'{"type":"hologram"}')),
)
_ROLES: Final[Sequence[Role]] = ("user", "assistant", "tool", "assistant", "tool", "system")
_COLUMNS: Final[Sequence[dict[str, object]]] = (
    {},
    {},
    {},
    {"deleted": True},
    {"visibility": "user"},
    {"role": "user", "compressed": True, "visibility": "model"},
)


def any_part(draw: Random) -> Part:
    one, name, yes = draw.choice(_IDS), draw.choice(_NAMES), lambda: draw.random() < 0.5
    match draw.randrange(6):
        case 0:
            return TextPart(text=draw.choice(_WORDS))
        case 1:
            return ReasoningPart(text=draw.choice(_WORDS), provider_metadata=draw.choice(_METADATA))
        case 2 | 3:
            return call(one, name, draw.choice(_ARGUMENTS), provider_executed=yes())
        case 4:
            return result(
                one,
                name,
                draw.choice(_OUTPUTS),
                is_error=yes(),
                is_media=yes(),
                provider_executed=yes(),
            )
        case _:
            return draw.choice(_OTHERS)


def any_history(seed: int, max_rows: int = 12) -> list[Message]:
    draw = Random(seed)
    return [
        msgspec.structs.replace(
            message(
                index + 1,
                draw.choice(_ROLES),
                *(any_part(draw) for _ in range(draw.randrange(6))),
            ),
            model_config_id=draw.choice((OURS, OURS, THEIRS, None)),
            **draw.choice(_COLUMNS),
        )
        for index in range(draw.randrange(max_rows + 1))
    ]


def smallest(history: list[Message], fails: Callable[[list[Message]], bool]) -> list[Message]:
    """The same failure with as few rows and parts as possible."""
    for index, row in enumerate(history):
        without = history[:index] + history[index + 1 :]
        if fails(without):
            return smallest(without, fails)
        for place in range(len(row.content)):
            content = row.content[:place] + row.content[place + 1 :]
            fewer = history.copy()
            fewer[index] = msgspec.structs.replace(row, content=content)
            if fails(fewer):
                return smallest(fewer, fails)
    return history
