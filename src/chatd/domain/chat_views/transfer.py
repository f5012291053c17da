"""Chats as lines of JSON, for export and import; as Markdown, for reading; and what a fork copies.

The first line is a header; then each chat is followed by its messages, the root first; the last
line ends the file, so that a file that was cut off is recognized. Chats and messages are numbered
from 1 within the file. An export has a message's content byte for byte; of a file, an import stores
what `imported_content` allows, so that the export of an imported chat equals the file if nothing
had to change. The messages that another version replaced stand among the others by their ids;
`copied_versions` says what may be said of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT, error_result
from chatd.domain.chat.messages import (
    Draft,
    Message,
    PendingCall,
    Role,
    TokenUsage,
    Visibility,
    decode_parts,
    encode_parts,
    local_calls,
    local_results,
    pending_calls,
    public_parts,
)
from chatd.domain.chat.parts import (
    CONTENT_VERSION,
    CommandPart,
    FilePart,
    FileReferencePart,
    NoticePart,
    Part,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    validate_json,
)
from chatd.domain.chat_views.copied_versions import LineReader
from chatd.domain.chat_views.imported_content import (
    MAX_SYSTEM_PROMPT_BYTES,
    Change,
    ImportedMessage,
    boundary_summary,
    imported_message,
    shown_summary,
)
from chatd.domain.chat_views.ratings import GivenRating
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import McpServerId, ModelConfigId, ToolCallId
from chatd.domain.text import Json, clip
from chatd.domain.tool_policy.rules import ToolPolicy, ToolRule, check_policy

FORMAT_VERSION: Final = 1
MAX_TRANSFER_CHATS: Final = 10_000
MAX_TRANSFER_MESSAGES: Final = 100_000
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_LINE_VALUES: Final = 100_000
"""JSON values in one line. A decoder builds an object of each, and all other threads wait: 16 MiB
of empty lists took half a minute."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')

Number = Annotated[int, Meta(ge=1, le=MAX_TRANSFER_MESSAGES)]
Time = Annotated[datetime, Meta(tz=True)]
ShortText = Annotated[str, Meta(max_length=200, pattern="^[^\\x00]*$")]


class _Line(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="type",
    forbid_unknown_fields=True,
):
    pass


class HeaderLine(_Line, frozen=True, kw_only=True, tag="chatd"):
    version: int


class ChatLine(_Line, frozen=True, kw_only=True, tag="chat"):
    number: Number
    parent: Number | None = None
    title: Annotated[ShortText, Meta(min_length=1)]
    labels: Mapping[str, str]
    created_at: Time
    model_config_id: ModelConfigId | None = None
    reasoning_effort: ShortText | None = None
    client_tools: Json = UNSET
    mcp_server_ids: Annotated[tuple[McpServerId, ...], Meta(max_length=100)] | None = None
    mode: ShortText | None = None
    tool_rules: tuple[ToolRule, ...] = ()
    """Of the root chat and its subagents."""


class MessageLine(_Line, frozen=True, kw_only=True, tag="message"):
    """`content_text` is the content as text, if it has line breaks outside of its strings. A
    `finish_reason` of null is an answer that was stopped; without one nothing is known of it."""

    chat: Number
    id: Number
    role: Role
    visibility: Visibility = "both"
    content: Json = UNSET
    content_text: str | UnsetType = UNSET
    content_version: int = CONTENT_VERSION
    compressed: bool = False
    model_config_id: ModelConfigId | None = None
    reasoning_effort: ShortText | None = None
    usage: Json = UNSET
    provider_response_id: ShortText | None = None
    finish_reason: ShortText | UnsetType | None = UNSET
    created_at: Time
    rating: GivenRating | None = None
    """Of an answer, by the owner of the chat."""
    version_of: Number | None = None
    """The first version of this message, which has several; its own id if it is the first."""
    line: Number | None = None
    """Of a hidden message: the version with which its line begins. None: it is in history."""

    @property
    def stored_finish_reason(self) -> str | None:
        if self.finish_reason is not UNSET:
            return self.finish_reason
        return "unknown" if self.role == "assistant" else None

    @property
    def stored_content(self) -> str:
        if isinstance(self.content_text, str):
            return self.content_text
        return "" if self.content is UNSET else bytes(self.content).decode()


class EndLine(_Line, frozen=True, kw_only=True, tag="end"):
    chats: int
    messages: int


Line = HeaderLine | ChatLine | MessageLine | EndLine
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Line)
_USAGE: Final = msgspec.json.Decoder(TokenUsage)


def encode_line(line: Line) -> bytes:
    return _ENCODER.encode(line) + b"\n"


def count_values(text: bytes) -> int:
    """About how many values a JSON text has: a comma stands between two of them."""
    return _STRING.sub(b"", text).count(b",") + 1


def one_line(raw: Json) -> Json:
    """JSON without line breaks between its values."""
    if raw is UNSET or (b"\n" not in bytes(raw) and b"\r" not in bytes(raw)):
        return raw
    return Raw(msgspec.json.format(bytes(raw), indent=-1))


def content_fields(content: Raw) -> dict[str, object]:
    """The fields of a message line for stored content."""
    data = bytes(content)
    if b"\n" in data or b"\r" in data:
        return {"content_text": data.decode()}
    return {"content": content}


class TransferReader:
    """Checks a file line by line. `chats` and `messages` are those so far, as they may be stored;
    `changes` counts what had to change. `finish` checks the end. Every method raises InvalidInput,
    which names the line."""

    def __init__(self) -> None:
        self.changes: Counter[Change] = Counter()
        self._summaries: dict[int, str] = {}
        self._shown_summaries: dict[int, str] = {}
        self.chats: list[ChatLine] = []
        self.messages: list[MessageLine] = []
        self.file_ids: set[str] = set()
        self._number = 0
        self._next_id = 1
        self._lines = LineReader()
        self._pending: dict[int, set[ToolCallId]] = {}
        self._is_ended = False

    def read(self, text: bytes) -> None:
        self._number += 1
        line = self._decode(text)
        if self._is_ended:
            raise self._wrong("the file goes on after its end")
        if self._number == 1:
            self._check_header(line)
            return
        match line:
            case HeaderLine():
                raise self._wrong("only the first line is a header")
            case ChatLine():
                self._add_chat(line)
            case MessageLine():
                self._add_message(line)
            case EndLine():
                self._end(line)

    def finish(self) -> None:
        if not self._is_ended:
            self._number += 1
            raise self._wrong("the file was cut off: it has no line of the type end")

    def leave_out_client_tools(self) -> None:
        """The model reads the descriptions of these tools, and people do not."""
        with_tools = [chat for chat in self.chats if chat.client_tools is not UNSET]
        self.changes["client_tools_left_out"] += len(with_tools)
        self.chats = [msgspec.structs.replace(chat, client_tools=UNSET) for chat in self.chats]

    def _decode(self, text: bytes) -> Line:
        if len(text) > MAX_LINE_BYTES:
            raise self._wrong(f"is longer than {MAX_LINE_BYTES // 1024 // 1024} MiB")
        if text.count(b",") >= MAX_LINE_VALUES and count_values(text) > MAX_LINE_VALUES:
            raise self._wrong(f"has more than {MAX_LINE_VALUES:,} values")
        try:
            return _DECODER.decode(text)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._wrong("is not a JSON object") from None

    def _check_header(self, line: Line) -> None:
        if not isinstance(line, HeaderLine):
            raise self._wrong("the first line must be the header of an exported chat")
        if line.version != FORMAT_VERSION:
            raise self._wrong(f"the version must be {FORMAT_VERSION}")

    def _add_chat(self, line: ChatLine) -> None:
        self._end_chat()
        if line.number != len(self.chats) + 1:
            raise self._wrong(f"the number of the chat must be {len(self.chats) + 1}")
        if line.number > MAX_TRANSFER_CHATS:
            raise self._wrong(f"at most {MAX_TRANSFER_CHATS} chats")
        if (line.parent is None) != (line.number == 1) or (line.parent or 0) >= line.number:
            raise self._wrong("parent must be an earlier chat; only the first chat has none")
        if line.client_tools is not UNSET:
            self._check_json(bytes(line.client_tools).decode(), "client_tools")
        self._check_rules(line)
        self.chats.append(line)
        self._next_id = 1

    def _add_message(self, line: MessageLine) -> None:
        if line.chat != len(self.chats) or not self.chats:
            raise self._wrong("a message must follow its chat")
        if line.id != self._next_id:
            raise self._wrong(f"the id of the message must be {self._next_id}")
        if len(self.messages) >= MAX_TRANSFER_MESSAGES:
            raise self._wrong(f"at most {MAX_TRANSFER_MESSAGES} messages")
        if line.content_version != CONTENT_VERSION:
            raise self._wrong(f"content_version must be {CONTENT_VERSION}")
        if line.usage is not UNSET:
            self._check_usage(line.usage)
        if line.rating is not None and line.role != "assistant":
            raise self._wrong("only an answer has a rating")
        place = self._place(line)
        parts = self._parts(line)
        self._check_content(line, parts, place)
        self._store(line, parts)
        self._next_id += 1

    def _place(self, line: MessageLine) -> int:
        is_prompt = line.role == "user" and line.visibility == "both" and not line.compressed
        try:
            return self._lines.add(
                line.id, line=line.line, version_of=line.version_of, is_prompt=is_prompt
            )
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _store(self, line: MessageLine, parts: tuple[Part, ...]) -> None:
        given = ImportedMessage(
            role=line.role, visibility=line.visibility, compressed=line.compressed, parts=parts
        )
        kept = imported_message(given, self._count)
        place = len(self.messages)
        if (summary := boundary_summary(kept)) is not None:
            self._summaries[place] = summary
        if (summary := shown_summary(kept)) is not None:
            self._shown_summaries[place] = summary
        self.messages.append(line if kept == given else _stored_line(line, kept))

    def _count(self, change: Change) -> None:
        self.changes[change] += 1

    def _show_hidden_summaries(self) -> None:
        """A summary is followed by the call that shows it to people, and the result with its text.
        One that people would not see becomes an ordinary message."""
        for place, summary in self._summaries.items():
            if self._shown_summaries.get(place + 2) != summary or not self._is_one_line(place):
                self._count("messages_made_visible")
                line = self.messages[place]
                hidden = ImportedMessage(
                    role=line.role,
                    visibility="both",
                    compressed=False,
                    parts=decode_parts(line.stored_content),
                )
                self.messages[place] = _stored_line(line, imported_message(hidden, self._count))

    def _is_one_line(self, place: int) -> bool:
        """Who sees one of these three messages sees all of them."""
        of_model, call, result = self.messages[place : place + 3]
        return of_model.line == call.line == result.line and call.version_of is None

    def _parts(self, line: MessageLine) -> tuple[Part, ...]:
        if (line.content is UNSET) == (line.content_text is UNSET):
            raise self._wrong("a message has either content or content_text")
        text = line.stored_content
        self._check_json(text, "content")
        try:
            return decode_parts(text)
        except msgspec.DecodeError:
            raise self._wrong("content must be a list of parts") from None

    def _check_json(self, text: str, field: str) -> None:
        try:
            validate_json(text)
        except ValueError as error:
            raise self._wrong(f"{field} is {error}") from None

    def _check_rules(self, line: ChatLine) -> None:
        if line.tool_rules and line.number > 1:
            raise self._wrong("only the first chat has tool_rules")
        try:
            check_policy(ToolPolicy(rules=line.tool_rules))
        except InvalidInput as error:
            raise self._wrong(f"tool_{error.message}") from None

    def _check_usage(self, usage: Raw) -> None:
        try:
            _USAGE.decode(usage)
        except msgspec.MsgspecError:
            raise self._wrong("usage is not that of a message") from None

    def _check_content(self, line: MessageLine, parts: tuple[Part, ...], place: int) -> None:
        """No provider accepts a history in which a call has no result, or a result no call."""
        if line.role == "system":
            texts = (part.text for part in parts if isinstance(part, TextPart))
            if sum(len(text.encode(errors="replace")) for text in texts) > MAX_SYSTEM_PROMPT_BYTES:
                raise self._wrong(f"a system prompt has at most {MAX_SYSTEM_PROMPT_BYTES} bytes")
        pending = self._pending.setdefault(place, set())
        if line.role in ("user", "assistant"):
            self._check_calls(pending)
        if line.role == "tool":
            for result in local_results(parts):
                if result.tool_call_id not in pending:
                    raise self._wrong(f"there is no open call {result.tool_call_id!r}")
                pending.discard(result.tool_call_id)
        if line.role == "assistant":
            pending.update(call.tool_call_id for call in local_calls(parts))
        self.file_ids.update(
            part.file_id for part in parts if isinstance(part, FilePart) and part.file_id
        )

    def _check_calls(self, pending: set[ToolCallId]) -> None:
        if pending:
            raise self._wrong(f"the call {min(pending)!r} has no result before this line")

    def _end_chat(self) -> None:
        for pending in self._pending.values():
            self._check_calls(pending)
        try:
            self._lines.finish()
        except ValueError as error:
            raise self._wrong(str(error)) from None
        self._lines, self._pending = LineReader(), {}

    def _end(self, line: EndLine) -> None:
        self._end_chat()
        if not self.messages or (line.chats, line.messages) != (
            len(self.chats),
            len(self.messages),
        ):
            raise self._wrong("the file has not all of its lines")
        self._show_hidden_summaries()
        self._is_ended = True

    def _wrong(self, reason: str) -> InvalidInput:
        return InvalidInput(f"line {self._number}", reason)


def _stored_line(line: MessageLine, kept: ImportedMessage) -> MessageLine:
    return msgspec.structs.replace(
        line,
        visibility=kept.visibility,
        compressed=kept.compressed,
        content=UNSET,
        content_text=encode_parts(kept.parts),
    )


ExportFormat = Literal["jsonl", "markdown"]


# What a fork of a chat is made of beside the copied messages.

MAX_TITLE_CHARS: Final = 200
FORK_SUFFIX: Final = " (fork)"


def fork_title(title: str) -> str:
    """A fork of a fork has the suffix once."""
    base = title.removesuffix(FORK_SUFFIX)
    room = MAX_TITLE_CHARS - len(FORK_SUFFIX)
    short = base if len(base) <= room else f"{base[: room - 1].rstrip()}…"
    return f"{short}{FORK_SUFFIX}"


def closing_results(tail: Sequence[Message]) -> tuple[Draft, ...]:
    """Error results for the calls that the copied messages do not answer: providers refuse a
    history in which a user message follows a pending call. `tail` begins with the last answer."""
    calls = pending_calls(tail)
    return close_calls(PendingCall(id=call.tool_call_id, name=call.tool_name) for call in calls)


def close_calls(calls: Iterable[PendingCall]) -> tuple[Draft, ...]:
    return tuple(error_result(call, INTERRUPTED_CALL_TEXT, interrupted=True) for call in calls)


# A chat as Markdown, for reading.

MAX_TOOL_CHARS: Final = 4000
_NAMES: Final = {"user": "User", "assistant": "Assistant", "tool": "Tool", "system": "System"}


_UNSAFE_IN_NAMES: Final = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*%\u202a-\u202e\u2066-\u2069]+')
_MAX_NAME_CHARS: Final = 80


def export_name(title: str, suffix: str) -> str:
    """A file name on every system: the title without the characters that one of them refuses."""
    name = clip(" ".join(_UNSAFE_IN_NAMES.sub(" ", title).split()), _MAX_NAME_CHARS)
    return f"{name.strip(' .') or 'chat'}.{suffix}"


def chat_heading(title: str, *, is_root: bool) -> str:
    line = " ".join(title.split())
    return f"# {line}\n\n" if is_root else f"# Subagent: {line}\n\n"


def message_markdown(message: Message) -> str:
    """Nothing of a message that only the model sees."""
    if message.visibility == "model":
        return ""
    shown = public_parts(message.content)
    if message.role == "system":
        shown = tuple(part for part in shown if isinstance(part, NoticePart))
    pieces = [piece for part in shown if (piece := _part(part))]
    if not pieces:
        return ""
    time = message.created_at.strftime("%Y-%m-%d %H:%M")
    if message.role == "system":
        return "".join(f"> {' '.join(piece.split())} ({time} UTC)\n\n" for piece in pieces)
    return f"## {_NAMES[message.role]} ({time} UTC)\n\n" + "\n\n".join(pieces) + "\n\n"


def _part(part: Part) -> str:
    match part:
        case TextPart():
            return part.text.strip()
        case ToolCallPart():
            word = "Call that was cut off, of" if part.cut else "Call of"
            args = part.args_text or _json(part.args)
            return f"{word} `{part.tool_name}`:\n\n{_fence(args, 'json')}"
        case ToolResultPart():
            kind = "Error of" if part.is_error else "Result of"
            return f"{kind} `{part.tool_name}`:\n\n{_fence(_json(part.result), 'json')}"
        case CommandPart():
            return f"Command of the user:\n\n{_fence(part.command, 'sh')}"
        case FileReferencePart():
            place = f"{part.file_name}, lines {part.start_line} to {part.end_line}"
            return f"{place}:\n\n{_fence(part.content, '')}"
        case FilePart():
            return f"File: {part.name or part.file_id or part.media_type}"
        case NoticePart():
            return part.text
        case SourcePart():
            return f"Source: <{part.url}>"
        case _:
            return ""


def _json(raw: Json) -> str:
    return "" if raw is UNSET else bytes(raw).decode(errors="replace")


def _fence(text: str, language: str) -> str:
    """Longer than every run of backticks in the text."""
    shown, marks = clip(text, MAX_TOOL_CHARS), "```"
    while marks in shown:
        marks += "`"
    return f"{marks}{language}\n{shown}\n{marks}"
