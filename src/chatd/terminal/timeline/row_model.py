"""`RowModel`: the rows of a chat's timeline, from its state."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage, is_stop
from chatd.domain.chat.parts import SUMMARY_TOOL_NAME, KnownPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.takeover import TakeoverPayload
from chatd.terminal.timeline.message_rows import (
    LiveKeys,
    PartsContext,
    RowList,
    end_rows,
    notice_rows,
    part_rows,
    user_row,
)
from chatd.terminal.timeline.row import (
    Activity,
    ActivityRow,
    CompactedMark,
    FailedRow,
    HeldRow,
    MarkRow,
    OlderRow,
    ProseRow,
    ReasoningRow,
    RetryRow,
    Row,
    TakeoverMark,
    ToolRow,
    UserRow,
    WaitsRow,
)
from chatd.terminal.timeline.tool_call import CallContext, CallRecord, call_id_of, view_call

END_KEY: Final = "end"
_HELD_KIND: Final = "queue_held"


def end_row(chat: ShownChat, last: Row | None) -> Iterator[Row]:
    if chat.status == "error":
        if chat.error is None:
            return
        if chat.error.kind == _HELD_KIND:
            yield HeldRow(key=END_KEY, queued=len(chat.queue))
        else:
            yield FailedRow(key=END_KEY, error=chat.error)
    elif chat.retry is not None and chat.status in ("running", "pending"):
        yield RetryRow(key=END_KEY, retry=chat.retry)
    elif chat.waits_for:
        yield WaitsRow(key=END_KEY, text=chat.waits_for)
    elif (activity := _activity(chat, last)) is not None:
        yield ActivityRow(key=END_KEY, activity=activity)


def _activity(chat: ShownChat, last: Row | None) -> Activity | None:
    if chat.status == "interrupting":
        return "interrupting"
    if chat.status == "pending":
        return "pending"
    return "working" if chat.status == "running" and not _is_moving(last) else None


def _is_moving(row: Row | None) -> bool:
    """Whether the row itself shows that something is in progress."""
    match row:
        case ProseRow(is_live=is_live) | ReasoningRow(is_live=is_live):
            return is_live
        case MarkRow(mark=CompactedMark(is_live=is_live)):
            return is_live
        case ToolRow(call=call):
            return call.state in ("streaming", "running", "waiting")
        case _:
            return False


# `RowModel`: the rows of a chat's timeline, from its state.
#
# A token makes the rows of the live answer only. A commit makes those of the messages since the
# last one of the user; all before are made once.

BUSY: Final = frozenset({"pending", "running", "interrupting", "requires_action"})
_ASKING_TOOLS: Final = frozenset({"propose_plan"})
OLDER_KEY: Final = "older"

Messages = tuple[PublicMessage, ...]


class _Settled(Struct, frozen=True, kw_only=True):
    """Rows and records of the first messages of a chat."""

    messages: Messages = ()
    rows: tuple[Row, ...] = ()
    records: Mapping[str, CallRecord] = {}


class RowModel:
    """Remembers keys of live answers, and the rows that are settled. For one chat."""

    def __init__(self) -> None:
        self._keys = LiveKeys()
        self._takeovers: tuple[TakeoverPayload, ...] = ()
        self._seen: tuple[Messages, tuple[TakeoverPayload, ...]] = ((), ())
        self._base = _Settled()
        self._settled = _Settled()
        self.made_messages = 0
        """Counts messages whose rows were made: the work that a token must not cause."""

    def rows(
        self, chat: ShownChat, pending: Sequence[UserRow] = (), problem: str = ""
    ) -> tuple[Row, ...]:
        """`problem`: why older messages could not be loaded."""
        live_key = self._keys.follow(chat)
        self._keep_takeover(chat.takeover)
        settled = self._settle(chat.messages)
        is_busy = chat.status in BUSY
        live = chat.live.parts if chat.live is not None and chat.retry is None else ()
        start = len(settled.messages)
        committed = _with_messages(settled.records, chat.messages[start:])
        records = _with_parts(committed, live)
        calls = CallContext(
            is_busy=is_busy, requested={call.tool_call_id: call for call in chat.requested_calls}
        )
        rows = RowList(settled.rows)
        self._add_messages(rows, chat.messages, range(start, len(chat.messages)), records, calls)
        fresh = [part for part in live if call_id_of(part) not in committed]
        context = PartsContext(
            key=live_key or "live", message_id=None, records=records, calls=calls, is_live=True
        )
        rows.add_all(part_rows(fresh, context))
        rows.add_all(pending)
        rows.add_all(end_row(chat, rows.last))
        shown = rows.joined() if is_busy else _with_last_ask(rows.joined())
        return (OlderRow(key=OLDER_KEY, problem=problem), *shown) if chat.has_older else shown

    def _keep_takeover(self, last: TakeoverPayload | None) -> None:
        if last is not None and all(one.version != last.version for one in self._takeovers):
            self._takeovers = (*self._takeovers, last)

    def _settle(self, messages: Messages) -> _Settled:
        """Everything but the last answer, if it has calls without a result."""
        if self._seen[0] is messages and self._seen[1] is self._takeovers:
            return self._settled
        base = self._base
        if self._seen[1] is not self._takeovers or not _begins_with(messages, base.messages):
            base = _Settled()
        self._base = self._extend(base, messages, _last_prompt(messages, len(base.messages)))
        self._settled = self._extend(self._base, messages, _first_open(messages, self._base))
        self._seen = (messages, self._takeovers)
        return self._settled

    def _extend(self, base: _Settled, messages: Messages, count: int) -> _Settled:
        start = len(base.messages)
        if count <= start:
            return base
        records = _with_messages(base.records, messages[start:count])
        rows = RowList(base.rows)
        self._add_messages(rows, messages, range(start, count), records, CallContext())
        return _Settled(messages=messages[:count], rows=rows.joined(), records=records)

    def _add_messages(
        self,
        rows: RowList,
        messages: Messages,
        indices: range,
        records: Mapping[str, CallRecord],
        calls: CallContext,
    ) -> None:
        self.made_messages += len(indices)
        backwards = range(len(messages) - 1, -1, -1)
        last_said = next((at for at in backwards if messages[at].role != "system"), None)
        for index in indices:
            message = messages[index]
            key = self._keys.of(message.id)
            if message.role == "user":
                is_steering = _joins_turn(messages, index, records)
                rows.add(user_row(message, key, is_steering=is_steering))
            elif message.role == "assistant":
                context = PartsContext(key=key, message_id=message.id, records=records, calls=calls)
                rows.add_all(part_rows(message.content, context))
                is_last = index == last_said
                rows.add_all(end_rows(message, key, records, is_last=is_last))
            elif message.role == "system":
                rows.add_all(notice_rows(message, key, is_last=index == len(messages) - 1))
            next_id = messages[index + 1].id if index + 1 < len(messages) else None
            rows.add_all(_takeover_rows(self._takeovers, message.id, next_id))


def _begins_with(messages: Messages, first: Messages) -> bool:
    return len(messages) >= len(first) and messages[: len(first)] == first


def _last_prompt(messages: Messages, known: int) -> int:
    """The last message of the user. What comes after it changes no row before it: such a message
    comes when no call is open."""
    for index in range(len(messages) - 1, known, -1):
        if messages[index].role == "user":
            return index
    return known


def _first_open(messages: Messages, base: _Settled) -> int:
    """The last answer, if it has calls without a result; else the number of messages."""
    start = len(base.messages)
    for index in range(len(messages) - 1, start - 1, -1):
        if messages[index].role == "assistant":
            records = _with_messages({}, messages[index:])
            return index if any(record.is_open for record in records.values()) else len(messages)
    return len(messages)


def _with_messages(
    records: Mapping[str, CallRecord], messages: Messages
) -> Mapping[str, CallRecord]:
    return _with_parts(records, (part for message in messages for part in message.content))


def _with_parts(
    records: Mapping[str, CallRecord], parts: Iterable[KnownPart]
) -> Mapping[str, CallRecord]:
    changed: dict[str, CallRecord] = {}
    for part in parts:
        if isinstance(part, ToolCallPart | ToolResultPart):
            known = changed.get(part.tool_call_id) or records.get(part.tool_call_id)
            changed[part.tool_call_id] = (known or CallRecord()).add(part)
    return {**records, **changed} if changed else records


def _joins_turn(messages: Messages, index: int, records: Mapping[str, CallRecord]) -> bool:
    """True if the message came while the turn was running, and the turn went on with it."""
    earlier = (messages[at] for at in range(index - 1, -1, -1))
    before = next((one for one in earlier if one.role != "system" or is_stop(one)), None)
    if before is None or before.role != "tool":
        return False
    for part in before.content:
        if not isinstance(part, ToolResultPart):
            continue
        if part.tool_name == SUMMARY_TOOL_NAME:
            return False
        record = records.get(part.tool_call_id, CallRecord(result=part))
        if view_call(part.tool_call_id, record, CallContext()).state == "interrupted":
            return False
    return True


def _takeover_rows(
    takeovers: Sequence[TakeoverPayload], message_id: int, next_id: int | None
) -> Iterable[Row]:
    for one in takeovers:
        if one.message_id >= message_id and (next_id is None or one.message_id < next_id):
            yield MarkRow(key=f"takeover-{one.version}", mark=TakeoverMark(takeover=one))


def _with_last_ask(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The last plan waits for the user, unless a message came after it."""
    for index in range(len(rows) - 1, -1, -1):
        row = rows[index]
        if isinstance(row, UserRow):
            break
        if isinstance(row, ToolRow) and row.call.name in _ASKING_TOOLS:
            if row.call.state == "done":
                return (*rows[:index], replace(row, is_last=True), *rows[index + 1 :])
            break
    return rows
