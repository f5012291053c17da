"""What an imported file may make a model or a reader believe.

A file may come from a stranger. So the model gets nothing of it that the people of the chat cannot
read, and nothing in it looks like a statement of chatd. Instructions and context are left out: the
chat gets those of this deployment and of its own workspace with the next model call. A system
prompt stays, and a notice beside it shows it in full. Characters that nobody sees are removed where
they could hide text. What is left passes these rules unchanged.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import NOTICE_CODES, Role, Visibility
from chatd.domain.chat.parts import (
    SUMMARY_PREFIX,
    SUMMARY_TOOL_NAME,
    BoundaryPart,
    CommandPart,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    InstructionPart,
    NoticePart,
    Part,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
)
from chatd.domain.text import Json, clip, decode_lenient

MAX_NOTICE_CHARS: Final = 2000
MAX_SYSTEM_PROMPT_BYTES: Final = 131_072
"""As long as one that a client sends with a new chat."""
MAX_NOTICE_FACTS: Final = 20
MAX_FACT_CHARS: Final = 200
NOTICE_ORIGIN: Final = "From the imported file: "
PROMPT_ORIGIN: Final = "This chat was imported with a system prompt: "
_UNKNOWN_NOTICE: Final = "imported"
_PROMPT_NOTICE: Final = "imported_prompt"

Change = Literal[
    "instructions_left_out",
    "client_tools_left_out",
    "provider_data_left_out",
    "duplicate_keys_left_out",
    "unknown_parts_left_out",
    "misplaced_parts_left_out",
    "notices_marked",
    "system_prompts_shown",
    "messages_made_visible",
    "invisible_characters_removed",
]
Record = Callable[[Change], None]

_PLACES: Final[Mapping[Role, tuple[type, ...]]] = {
    "system": (TextPart, NoticePart),
    "user": (TextPart, FilePart, FileReferencePart, CommandPart),
    "assistant": (TextPart, ReasoningPart, ToolCallPart, ToolResultPart, SourcePart, FilePart),
    "tool": (ToolResultPart, FilePart),
}

_RUN: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # zero width, bidi
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
"""The characters of which nothing is seen: those that Unicode calls default-ignorable."""
_SELECTED: Final = re.compile(
    "[0-9#*][\ufe0e\ufe0f]|[^\\x00-\\x7f\\s][\ufe00-\ufe0f]|[\u1820-\u18aa][\u180b-\u180f]"
    "|[\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff][\U000e0100-\U000e01ef]"
)
"""A visible character with the selector of its form: emoji, symbols, Mongolian, Han."""
_EMOJI: Final = re.compile("[\u00a9\u00ae\u203c-\u303d\u3297\u3299\U0001f000-\U0001faff]")
_RIGHT_TO_LEFT: Final = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001eeff]"
)
_JOINING_SCRIPT: Final = re.compile(
    "[\u0590-\u1c7f\ua800-\uabff\ud7b0-\ud7ff\ufb1d-\ufdff\ufe70-\ufefc"
    "\U00010800-\U00011fff\U0001e800-\U0001eeff]"
)
_JOINERS: Final = frozenset("\u034f\u115f\u1160\u200b\u200c\u200d")
_DIRECTION_MARKS: Final = frozenset("\u061c\u200e\u200f")
_BLACK_FLAG: Final = "\U0001f3f4"
_FLAGS: Final = tuple(
    "".join(chr(0xE0000 + ord(char)) for char in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
"""What follows a black flag to make it that of England, Scotland or Wales. Other regions have no
flag that is seen."""
_MAX_RUN: Final = 16
"""What stays of a run is among its first characters."""
_BINARY_TYPES: Final = ("image/", "audio/", "video/", "application/pdf")
"""Of files. Models get any other file as text."""
_JSON_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')


def without_hidden_text(text: str) -> str:
    """The text without characters that could hide other text: tags, runs of variation selectors,
    bidi controls, zero-width characters. At each place only those stay that writing needs: one
    selector of a character's form, one joiner in emoji or in a script that joins, one direction
    mark in a text with a script from right to left. Idempotent: what is visible decides."""
    if text.isascii() or _RUN.search(text) is None:
        return text
    has_rtl = _RIGHT_TO_LEFT.search(text) is not None

    def needed(found: re.Match[str]) -> str:
        start, end = found.span()
        run = text[start : min(end, start + _MAX_RUN)]
        return _needed(text[start - 1 : start], run, text[end : end + 1], has_rtl)

    kept = _RUN.sub(needed, text)
    return text if kept == text else kept


@lru_cache(maxsize=4096)
def _needed(before: str, run: str, after: str, has_rtl: bool) -> str:  # noqa: FBT001
    """What stays of a run between two visible characters."""
    if before == _BLACK_FLAG and run.startswith(_FLAGS):
        return next(flag for flag in _FLAGS if run.startswith(flag))
    selector = run[0] if _SELECTED.fullmatch(before + run[0]) else ""
    allowed = _DIRECTION_MARKS if has_rtl else frozenset[str]()
    if _JOINING_SCRIPT.match(before) or _JOINING_SCRIPT.match(after):
        allowed |= _JOINERS
    elif _EMOJI.match(before) and _EMOJI.match(after):
        allowed |= {"\u200d"}
    return selector + next((char for char in run[len(selector) :] if char in allowed), "")


def _json_without_hidden_text(raw: Raw) -> Raw:
    """Only the strings that change are written anew: numbers stay as they are."""
    text = bytes(raw).decode()
    if text.isascii() and "\\u" not in text:
        return raw

    def cleaned(found: re.Match[str]) -> str:
        if found[0].isascii() and "\\u" not in found[0]:
            return found[0]
        given = msgspec.json.decode(found[0], type=str)
        kept = without_hidden_text(given)
        return found[0] if kept == given else msgspec.json.encode(kept).decode()

    kept = _JSON_STRING.sub(cleaned, text)
    return raw if kept == text else Raw(kept.encode())


class ImportedMessage(Struct, frozen=True, kw_only=True):
    """What is stored of a message of a file."""

    role: Role
    visibility: Visibility
    compressed: bool
    parts: tuple[Part, ...]


def imported_message(given: ImportedMessage, record: Record) -> ImportedMessage:
    """The message as it may be stored; `record` counts what had to change. The message stays even
    if no part is left: summaries count messages."""
    if given.role == "system":
        return _system_message(given, record)
    is_summary = boundary_summary(given) is not None
    parts = [
        one
        for part in given.parts
        if (one := _imported_part(given.role, part, record, is_summary=is_summary)) is not None
    ]
    if is_summary:
        return replace(given, parts=tuple(parts))
    shows_summary = given.visibility != "model" and all(_is_of_summary(part) for part in parts)
    if shows_summary or not parts:
        return replace(given, parts=tuple(parts))
    if given.visibility == "model":
        record("messages_made_visible")
    return replace(given, parts=tuple(parts), visibility="both", compressed=False)


def _imported_part(role: Role, part: Part, record: Record, *, is_summary: bool) -> Part | None:
    allowed = _allowed_part(role, part, record, is_summary=is_summary)
    kept = None if allowed is None else _visible_part(allowed)
    if kept is not allowed:
        record("invisible_characters_removed")
    return kept


def _data_without_hidden_text(data: str) -> str:
    """Of a file's text in base64, as a model reads it. Bytes that are no text are replaced: what
    is removed between two of them could make them a character."""
    try:
        text = decode_lenient(b64decode(data, validate=True))
    except ValueError:
        return data
    kept = without_hidden_text(text)
    return data if kept is text else b64encode(kept.encode()).decode()


def _visible_part(part: Part) -> Part:
    """The same object if it has no hidden text."""
    names: tuple[str, ...] = ()
    match part:
        case TextPart() | ReasoningPart() | NoticePart():
            names = ("text",)
        case ToolCallPart():
            names = ("tool_name", "args", "args_text")
        case ToolResultPart():
            names = ("tool_name", "result")
        case SourcePart():
            names = ("url", "title")
        case FilePart():
            names = ("media_type", "name")
        case FileReferencePart():
            names = ("file_name", "content")
        case CommandPart():
            names = ("command",)
        case _:
            pass
    changed: dict[str, object] = {}
    for name in names:
        value: object = getattr(part, name)
        kept = without_hidden_text(value) if isinstance(value, str) else value
        kept = _json_without_hidden_text(kept) if isinstance(kept, Raw) else kept
        if kept is not value:
            changed[name] = kept
    if isinstance(part, FilePart) and part.data is not None:
        is_binary = part.media_type.strip().lower().startswith(_BINARY_TYPES)
        data = part.data if is_binary else _data_without_hidden_text(part.data)
        if data is not part.data:
            changed["data"] = data
    return replace(part, **changed) if changed else part


def _allowed_part(role: Role, part: Part, record: Record, *, is_summary: bool) -> Part | None:
    match part:
        case UnknownPart():
            record("unknown_parts_left_out")
            return None
        case InstructionPart() | ContextFilePart() | SkillPart():
            record("instructions_left_out")
            return None
        case BoundaryPart() if is_summary:
            return part
        case _ if not isinstance(part, TextPart if is_summary else _PLACES[role]):
            record("misplaced_parts_left_out")
            return None
        case NoticePart():
            return _imported_notice(part, record)
        case TextPart() | ReasoningPart() | ToolCallPart() | ToolResultPart():
            return _readable(part, record)
        case FilePart(file_id=str(), data=str()):
            return replace(part, data=None)
        case _:
            return part


def _readable(
    part: TextPart | ReasoningPart | ToolCallPart | ToolResultPart, record: Record
) -> Part:
    """Without what providers are sent and people do not see: a provider takes whole messages out of
    its metadata. Only live parts have deltas."""
    if part.provider_metadata is not UNSET:
        record("provider_data_left_out")
        part = replace(part, provider_metadata=UNSET)
    if isinstance(part, ToolCallPart) and part.args_delta is not None:
        part = replace(part, args_delta=None)
    if isinstance(part, ToolCallPart) and part.args is not UNSET and part.args_text is not None:
        part = replace(part, args_text=None)
    if isinstance(part, ToolResultPart) and part.result_delta is not None:
        part = replace(part, result_delta=None)
    if isinstance(part, ToolCallPart) and (args := _with_unique_keys(part.args)) is not part.args:
        record("duplicate_keys_left_out")
        part = replace(part, args=args)
    if isinstance(part, ToolResultPart):
        result = _with_unique_keys(part.result)
        if result is not part.result:
            record("duplicate_keys_left_out")
            part = replace(part, result=result)
    return part


def _with_unique_keys(raw: Json) -> Json:
    """Of two equal keys readers show one and a model may read the other: the last one stays."""
    if raw is UNSET:
        return raw
    repeated = False

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeated
        found = dict(pairs)
        repeated = repeated or len(found) < len(pairs)
        return found

    read = json.JSONDecoder(object_pairs_hook=collect, parse_int=str, parse_float=str)
    read.decode(bytes(raw).decode())
    return Raw(msgspec.json.encode(msgspec.json.decode(raw))) if repeated else raw


def _imported_notice(part: NoticePart, record: Record) -> NoticePart:
    """It says where it comes from. A code that chatd does not know could mean anything later."""
    text = part.text if part.text.startswith(NOTICE_ORIGIN) else NOTICE_ORIGIN + part.text
    detail = {
        clip(name, MAX_FACT_CHARS): clip(value, MAX_FACT_CHARS)
        for name, value in list(part.detail.items())[:MAX_NOTICE_FACTS]
    }
    is_known = part.code in NOTICE_CODES and part.code != _PROMPT_NOTICE
    marked = NoticePart(
        code=part.code if is_known else _UNKNOWN_NOTICE,
        text=clip(text, MAX_NOTICE_CHARS),
        detail=part.detail if detail == part.detail else detail,
    )
    if marked == part:
        return part
    record("notices_marked")
    return marked


def _system_message(given: ImportedMessage, record: Record) -> ImportedMessage:
    """Either a system prompt with its notice, or notices for people only."""
    has_prompt = given.visibility != "user" and any(isinstance(p, TextPart) for p in given.parts)
    kind = TextPart if has_prompt else NoticePart
    parts: list[Part] = []
    for part in given.parts:
        if isinstance(part, kind | InstructionPart | ContextFilePart | SkillPart | UnknownPart):
            found = _imported_part("system", part, record, is_summary=False)
            parts += [] if found is None else [found]
        elif not has_prompt:
            record("misplaced_parts_left_out")
    if not has_prompt:
        visibility: Visibility = "user" if parts else "model"
        return replace(given, parts=tuple(parts), visibility=visibility, compressed=False)
    text = "\n\n".join(part.text for part in parts if isinstance(part, TextPart))
    notice = NoticePart(code=_PROMPT_NOTICE, text=PROMPT_ORIGIN + text)
    shown = replace(given, parts=(notice, *parts), visibility="both", compressed=False)
    if shown != given:
        record("system_prompts_shown")
    return shown


def boundary_summary(message: ImportedMessage) -> str | None:
    """The text of the summary with which a model goes on; None if the message is none."""
    is_boundary = message.compressed and message.visibility == "model" and message.role == "user"
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if not is_boundary or len(texts) != 1 or not texts[0].startswith(SUMMARY_PREFIX):
        return None
    return texts[0].removeprefix(SUMMARY_PREFIX)


def shown_summary(message: ImportedMessage) -> str | None:
    """The text of the summary that people see; None if the message shows none."""
    if message.role != "tool" or message.visibility == "model":
        return None
    for part in message.parts:
        if isinstance(part, ToolResultPart) and _is_of_summary(part) and part.result is not UNSET:
            try:
                return msgspec.json.decode(part.result, type=_ShownSummary).summary
            except msgspec.MsgspecError:
                return None
    return None


class _ShownSummary(Struct, frozen=True):
    summary: str


def _is_of_summary(part: Part) -> bool:
    return isinstance(part, ToolCallPart | ToolResultPart) and part.tool_name == SUMMARY_TOOL_NAME
