"""The rows of one message, without its tool results, which belong to the calls they answer."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast, get_args

from msgspec import Struct

from chatd.domain.chat.notices import CONTINUABLE_NOTICES
from chatd.domain.chat.parts import (
    SUMMARY_TOOL_NAME,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    KnownPart,
    NoticePart,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.public_messages import PublicMessage
from chatd.terminal.timeline.rows.json_values import number_of, text_of
from chatd.terminal.timeline.rows.row import (
    CompactedMark,
    CompactionFailedMark,
    ContextMark,
    FilesRow,
    Mark,
    MarkRow,
    Note,
    NoteRow,
    NoticeMark,
    ProseRow,
    ReasoningRow,
    Row,
    SourcesRow,
    StoppedMark,
    ToolRow,
    UserRow,
)
from chatd.terminal.timeline.rows.tool_call import (
    CallContext,
    CallRecord,
    ToolCall,
    call_id_of,
    moment,
    read_call,
    view_call,
)

Records = Mapping[str, CallRecord]

_NOTES: Final = frozenset(get_args(Note))
_TITLE: Final = re.compile(
    r"\s*(?:#{1,6}[ \t]+([^\n]{1,120}?)[ \t]*#*|\*\*([^*\n]{1,120})\*\*)[ \t]*(?:\n|$)"
)


class PartsContext(Struct, frozen=True, kw_only=True):
    """`is_live`: the parts are still being written, at the last one."""

    key: str
    message_id: int | None
    records: Records
    calls: CallContext
    is_live: bool = False


def part_rows(parts: Sequence[KnownPart], context: PartsContext) -> Iterator[Row]:
    """Rows of what an assistant wrote. Keys count the parts of each kind, so that those of live
    and durable parts agree."""
    seen: set[str] = set()
    texts = thoughts = 0
    for index, part in enumerate(parts):
        is_live = context.is_live and index == len(parts) - 1
        match part:
            case TextPart(text=text) if text and not text.isspace():
                key = f"{context.key}-t{texts}"
                texts += 1
                yield ProseRow(key=key, message_id=context.message_id, text=text, is_live=is_live)
            case ReasoningPart(text=text) if text and not text.isspace():
                yield _reasoning_row(part, context, thoughts, is_live=is_live)
                thoughts += 1
            case ToolCallPart(tool_call_id=call_id) | ToolResultPart(tool_call_id=call_id):
                if call_id in context.records and call_id not in seen:
                    seen.add(call_id)
                    yield _call_row(call_id, context)
            case _:
                pass
    yield from _appendix_rows(parts, context)


def _appendix_rows(parts: Sequence[KnownPart], context: PartsContext) -> Iterator[Row]:
    files = tuple(part for part in parts if isinstance(part, FilePart))
    if files:
        yield FilesRow(key=f"{context.key}-f", message_id=context.message_id, files=files)
    sources = tuple(part for part in parts if isinstance(part, SourcePart))
    if sources:
        yield SourcesRow(key=f"{context.key}-s", message_id=context.message_id, sources=sources)


def _reasoning_row(
    part: ReasoningPart, context: PartsContext, number: int, *, is_live: bool
) -> ReasoningRow:
    title, body = split_title(part.text)
    started_at, ended_at = moment(part.created_at), moment(part.completed_at)
    has_ended = started_at is not None and ended_at is not None and not is_live
    return ReasoningRow(
        key=f"{context.key}-r{number}",
        message_id=context.message_id,
        text=body,
        title=title,
        started_at=started_at,
        duration_s=(ended_at or 0) - (started_at or 0) if has_ended else None,
        is_live=is_live,
    )


def split_title(text: str) -> tuple[str, str]:
    """Models begin a thought with its title, as a heading or as a bold line."""
    found = _TITLE.match(text)
    title = "" if found is None else (found[1] or found[2] or "").strip()
    if found is None or not title:
        return "", text.strip()
    return title, text[found.end() :].strip()


def _call_row(call_id: str, context: PartsContext) -> Row:
    call = view_call(call_id, context.records[call_id], context.calls)
    key = f"call-{call_id}"
    if call.name == SUMMARY_TOOL_NAME:
        return MarkRow(key=key, message_id=context.message_id, mark=_summary_mark(call))
    return ToolRow(key=key, message_id=context.message_id, call=call)


def _summary_mark(call: ToolCall) -> Mark:
    facts = read_call(call)
    if call.state == "failed":
        return CompactionFailedMark(reason=facts.error)
    tokens = number_of(facts.result, "context_tokens")
    return CompactedMark(
        summary=text_of(facts.result, "summary"),
        tokens=None if tokens is None else int(tokens),
        kept=int(number_of(facts.result, "kept_messages") or 0),
        is_live=call.is_going,
    )


def user_row(message: PublicMessage, key: str, *, is_steering: bool) -> UserRow | MarkRow:
    """A user's message; a mark if it only names files of the workspace that the model got."""
    parts = message.content
    text = "\n\n".join(part.text for part in parts if isinstance(part, TextPart))
    files = tuple(part for part in parts if isinstance(part, FilePart))
    references = tuple(part for part in parts if isinstance(part, FileReferencePart))
    if text or files or references:
        return UserRow(
            key=key,
            message_id=message.id,
            text=text,
            files=files,
            references=references,
            is_steering=is_steering,
        )
    paths = (part.context_file_path for part in parts if isinstance(part, ContextFilePart))
    mark = ContextMark(
        files=tuple(path for path in paths if path),
        skills=tuple(part.skill_name for part in parts if isinstance(part, SkillPart)),
    )
    return MarkRow(key=key, message_id=message.id, mark=mark)


def notice_rows(message: PublicMessage, key: str, *, is_last: bool) -> Iterator[Row]:
    for number, part in enumerate(message.content):
        if isinstance(part, NoticePart):
            can_continue = is_last and part.code in CONTINUABLE_NOTICES
            mark = NoticeMark(text=part.text, can_continue=can_continue)
            yield MarkRow(key=f"{key}-n{number}", message_id=message.id, mark=mark)


def end_rows(message: PublicMessage, key: str, records: Records, *, is_last: bool) -> Iterator[Row]:
    """What to say about how an answer ended."""
    reason = message.finish_reason
    if reason in _NOTES:
        note = cast("Note", reason)
        yield NoteRow(key=f"{key}-end", message_id=message.id, note=note, can_continue=is_last)
        return
    has_calls = any(call_id_of(part) in records for part in message.content)
    if reason is None and message.content and not has_calls:
        yield MarkRow(key=f"{key}-end", message_id=message.id, mark=StoppedMark())
