"""Public links: what may be asked of one, and what of a chat leaves the server by it.

A reader of a link has no account. The types here are the whole of what such a reader is sent: a
field that they do not have stays inside. Nothing of a message is copied into them by default.
"""

from datetime import datetime
from typing import Annotated, Final, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    SUMMARY_TOOL_NAME,
    FilePart,
    FileReferencePart,
    Part,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.description import CREATED_AT, describe
from chatd.domain.errors import Conflict, Forbidden, InvalidInput
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.domain.text import Json, clip

PUBLIC_LINK_PATH: Final = "/p"
"""The page of a link. The secret follows as the fragment, which browsers do not send."""
MAX_LINKS_PER_CHAT: Final = 20
MAX_LINK_DAYS: Final = 365
"""The longest life that an administrator can allow."""
MAX_SHARED_TOOL_CHARS: Final = 20_000
"""Of the arguments of one call, and of its output."""
MAX_SHARED_MESSAGES: Final = 100
"""In one reply."""
_PURPOSE: Final = "public link"


class LinkChoices(Struct, frozen=True, kw_only=True):
    """What the owner lets readers of the link see beside texts."""

    with_tools: bool = False
    with_files: bool = False


class PublicLink(LinkChoices, frozen=True, kw_only=True):
    """The secret is not part of it: the database has only its digest. `has_newer`: the chat has
    messages that came after the link was made or updated."""

    id: UUID
    chat_id: ChatId
    chat_title: str
    owner_id: UserId
    owner_username: str
    has_newer: bool
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    last_read_at: datetime | None


def link_digest_text(secret: str) -> str:
    """What is hashed. Not the secret alone: it must be no credential for anything else."""
    return f"{_PURPOSE}:{secret}"


def require_link_rules(*, enabled: bool, max_days: int, days: int, is_root: bool) -> None:
    """For a link to be made. Raises Forbidden, Conflict, InvalidInput."""
    if not enabled:
        raise Forbidden(
            "Public links are disabled on this server. An administrator can enable them in the"
            " settings.",
            code="public_links_off",
        )
    if not is_root:
        raise Conflict(
            "A subagent has no link of its own. Make one of its root chat.", code="not_a_root_chat"
        )
    if days > max_days:
        raise InvalidInput("days", f"this server allows at most {max_days} days")


class _Shared(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class SharedText(_Shared, frozen=True, kw_only=True, tag="text"):
    """Text."""

    text: Annotated[str, describe("The text, in Markdown.", "The sum starts at 1.")]


class SharedSource(_Shared, frozen=True, kw_only=True, tag="source"):
    """A source that the answer cites."""

    url: Annotated[str, describe("Its address.", "https://docs.python.org/3/")]
    title: Annotated[str, describe("Its title, or its address.", "Python")]


class SharedCall(_Shared, frozen=True, kw_only=True, tag="call"):
    """A call of a tool. Only if the owner chose it."""

    name: Annotated[str, describe("The name of the tool.", "execute")]
    input: Annotated[str, describe("The arguments, cut.", '{"command": "pytest -q"}')] = ""


class SharedOutput(_Shared, frozen=True, kw_only=True, tag="output"):
    """The output of a tool. Only if the owner chose it."""

    name: Annotated[str, describe("The name of the tool.", "execute")]
    text: Annotated[str, describe("The output, cut.", "4 passed")] = ""
    failed: Annotated[bool, describe("Whether the call failed.")] = False


class SharedFile(_Shared, frozen=True, kw_only=True, tag="file"):
    """A file. Only if the owner chose it; `POST /public/file` loads it."""

    part: Annotated[int, describe("Its place in the message, to load it by.", 1)]
    name: Annotated[str, describe("Its name; may be empty.", "chart.png")] = ""
    media_type: Annotated[str, describe("The type of its content.", "image/png")]


class SharedQuote(_Shared, frozen=True, kw_only=True, tag="quote"):
    """Quoted lines of a file. Only if the owner chose files."""

    file_name: Annotated[str, describe("The path of the file.", "src/app.py")]
    start_line: Annotated[int, describe("The first quoted line.", 3)]
    content: Annotated[str, describe("The quoted text.", "return sum(xs, 1)")]


class HiddenFile(_Shared, frozen=True, kw_only=True, tag="hidden_file"):
    """A file or a quotation of one that the link does not show."""


SharedPart = (
    SharedText | SharedSource | SharedCall | SharedOutput | SharedFile | SharedQuote | HiddenFile
)


class SharedMessage(Struct, frozen=True, kw_only=True):
    """A message as readers of a link see it."""

    id: Annotated[MessageId, describe("Increases within the chat.", 7)]
    is_answer: Annotated[bool, describe("Whether the model wrote it, or a tool.")]
    created_at: Annotated[datetime, describe("When it was stored.", CREATED_AT)]
    parts: Annotated[tuple[SharedPart, ...], describe("Its parts, in order.")]


def shared_message(row: Message, choices: LinkChoices) -> SharedMessage | None:
    """None if nothing of the message is for readers of the link. Reasoning, prompts, notices,
    summaries, context of the workspace, names and ids of users and models never are."""
    if row.visibility == "model" or row.role == "system" or row.compressed or row.deleted:
        return None
    shared = (shared_part(part, at, choices) for at, part in enumerate(row.content))
    parts = tuple(part for part in shared if part is not None)
    if not parts:
        return None
    return SharedMessage(
        id=row.id, is_answer=row.role != "user", created_at=row.created_at, parts=parts
    )


def shared_part(part: Part, at: int, choices: LinkChoices) -> SharedPart | None:
    match part:
        case TextPart():
            return SharedText(text=part.text) if part.text.strip() else None
        case SourcePart():
            return SharedSource(url=part.url, title=part.title or part.url)
        case FilePart():
            if not choices.with_files or part.file_id is None:
                return HiddenFile()
            return SharedFile(part=at, name=part.name or "", media_type=part.media_type)
        case FileReferencePart():
            if not choices.with_files:
                return HiddenFile()
            return SharedQuote(
                file_name=part.file_name, start_line=part.start_line, content=part.content
            )
        case ToolCallPart() if choices.with_tools and part.tool_name != SUMMARY_TOOL_NAME:
            given = part.args_text or ("" if part.args is UNSET else bytes(part.args).decode())
            return SharedCall(name=part.tool_name, input=clip(given, MAX_SHARED_TOOL_CHARS))
        case ToolResultPart() if choices.with_tools and part.tool_name != SUMMARY_TOOL_NAME:
            text = "" if part.is_media else _output_text(part.result)
            return SharedOutput(
                name=part.tool_name,
                text=clip(text, MAX_SHARED_TOOL_CHARS),
                failed=part.is_error,
            )
        case _:
            return None


def shared_file_part(row: Message, at: int) -> FilePart | None:
    """The file in this place of a message that readers of the link see."""
    if row.visibility == "model" or row.role == "system" or row.compressed or row.deleted:
        return None
    part = row.content[at] if 0 <= at < len(row.content) else None
    return part if isinstance(part, FilePart) else None


def _output_text(result: Json) -> str:
    """The text of an output that is one, else its JSON."""
    if not isinstance(result, Raw):
        return ""
    value: object = msgspec.json.decode(result)
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("output")
    return value if isinstance(value, str) else bytes(result).decode()
