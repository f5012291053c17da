"""The rows of one message, without its tool results, which belong to the calls they answer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.state import LiveAnswer, ShownChat
from chatd.domain.chat.messages import CONTINUABLE_NOTICES, PublicMessage
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
from chatd.domain.chat.person_commands import command_of
from chatd.terminal.timeline.row import (
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
    ReadsRow,
    ReasoningRow,
    Row,
    SourcesRow,
    StoppedMark,
    ToolRow,
    UserRow,
)
from chatd.terminal.timeline.tool_call import (
    CallContext,
    CallRecord,
    ToolCall,
    call_id_of,
    moment,
    number_of,
    read_call,
    text_of,
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
    command = command_of(message)
    said = [part.text for part in parts if isinstance(part, TextPart)]
    text = "\n\n".join(said) if command is None else f"! {command}"
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


# Joins reads that follow each other, and sets lines of finished calls close together.

_READS: Final = frozenset({"read_file"})
_CARDS: Final = frozenset(
    {
        "write_file",
        "edit_files",
        "create_workspace",
        "start_workspace",
        "stop_workspace",
        "spawn_agent",
        "spawn_computer_use_agent",
        "propose_plan",
        "ask_user_question",
        "attach_file",
        "remember",
    }
)


def is_read(call: ToolCall) -> bool:
    return call.state == "done" and call.name in _READS and not call.is_media


def is_quiet(call: ToolCall) -> bool:
    """Whether it is one quiet line: a call that went well and only read. Everything else is a
    card."""
    return call.state == "done" and call.name not in _CARDS and not call.is_media


def _is_line(row: Row | None) -> bool:
    return isinstance(row, ReadsRow) or (isinstance(row, ToolRow) and is_quiet(row.call))


class RowList:
    """Rows that are added to settled ones. A read may be joined to the last of these."""

    def __init__(self, settled: tuple[Row, ...]) -> None:
        self._settled = settled
        self._rows: list[Row] = []
        self._replaces = False

    @property
    def last(self) -> Row | None:
        if self._rows:
            return self._rows[-1]
        return self._settled[-1] if self._settled else None

    def add_all(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        last = self.last
        if not isinstance(row, ToolRow) or not is_read(row.call):
            is_tight = _is_line(row) and _is_line(last)
            self._rows.append(replace(row, is_tight=True) if is_tight else row)
        elif isinstance(last, ReadsRow):
            self._replace_last(replace(last, calls=(*last.calls, row.call)))
        else:
            self._rows.append(
                ReadsRow(
                    key=row.key,
                    message_id=row.message_id,
                    is_tight=_is_line(last),
                    calls=(row.call,),
                )
            )

    def _replace_last(self, row: Row) -> None:
        if self._rows:
            self._rows[-1] = row
        else:
            self._rows.append(row)
            self._replaces = True

    def joined(self) -> tuple[Row, ...]:
        settled = self._settled[:-1] if self._replaces else self._settled
        return (*settled, *self._rows)


# Keys of messages. The message that an answer becomes when it is committed keeps the key that its
# live parts had, so that its rows stay where they are, unfolded as they were. So does the next
# attempt at the answer if it goes on with the same text.


class _Answer(Struct, frozen=True, kw_only=True):
    episode: str
    key: str
    after_id: int
    live: LiveAnswer


class LiveKeys:
    def __init__(self) -> None:
        self._aliases: dict[int, str] = {}
        self._used: set[str] = set()
        self._answer: _Answer | None = None

    def follow(self, chat: ShownChat) -> str | None:
        """The key of the live answer, if there is one."""
        self._adopt(chat)
        if chat.live is None:
            return None
        version, answer = chat.live.episode, self._answer
        episode = f"live-{version.history_version}-{version.attempt}"
        if answer is not None and (answer.episode == episode or _continues(chat.live, answer.live)):
            self._answer = replace(answer, episode=episode, live=chat.live)
        else:
            last_id = chat.messages[-1].id if chat.messages else 0
            key = f"{episode}-{last_id}" if episode in self._used else episode
            self._used.add(key)
            self._answer = _Answer(episode=episode, key=key, after_id=last_id, live=chat.live)
        return self._answer.key

    def of(self, message_id: int) -> str:
        return self._aliases.get(message_id, f"m{message_id}")

    def _adopt(self, chat: ShownChat) -> None:
        """The committed form of the live answer: the first answer after it began."""
        answer = self._answer
        if answer is None or not chat.messages or chat.messages[-1].id <= answer.after_id:
            return
        first = None
        for message in reversed(chat.messages):
            if message.id <= answer.after_id:
                break
            if message.role != "system":  # a notice may stand before the answer
                first = message
        if first is not None and first.role == "assistant":
            self._aliases[first.id] = answer.key
        self._answer = None


def _continues(live: LiveAnswer, before: LiveAnswer) -> bool:
    """Another worker leaves out white space at the end, until the model says it again."""
    if live.episode.history_version != before.episode.history_version or len(before.parts) != 1:
        return False
    first, now = before.parts[0], live.parts[0] if live.parts else None
    return (
        isinstance(first, TextPart)
        and isinstance(now, TextPart)
        and now.text.startswith(first.text.rstrip())
    )
