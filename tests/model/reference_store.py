"""The effect of a change in plain Python: a reference for the store.

Compare and set on the version, append, soft-delete, queue, promote, record usage and request keys.
It keeps no time: columns that the database's clock sets are only set or not.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from chatd.domain.chat.change import (
    AppendedMessage,
    Change,
    EditedQueuedMessage,
    EnqueuedMessage,
    IdempotencyKey,
    MovedQueuedMessage,
)
from chatd.domain.chat.messages import Draft, Message, QueuedMessage, UsageEntry
from chatd.domain.chat.row import Chat, LineEnd, StoredVersion
from chatd.domain.chat.user_transitions import sort_queue
from chatd.domain.ids import ChatId, MessageId, QueueId, RequestId
from chatd.domain.tool_modes import chosen_mode
from tests.support.factories import AT


class VersionConflict(Exception):
    """The row has another version than the change expects: nothing was written."""


class RepeatedRequest(Exception):
    """The request key is already recorded: nothing was written."""


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    group_id: MessageId
    hidden: tuple[MessageId, ...] | None = None
    end: LineEnd = LineEnd()


class ChatRows:
    """One chat: its row, its messages (deleted ones too), its queue, versions of messages."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.messages: list[Message] = []
        self.queue: list[QueuedMessage] = []
        self.versions: dict[MessageId, VersionRow] = {}

    @property
    def live(self) -> list[Message]:
        return [message for message in self.messages if not message.deleted]

    def version(self, message_id: MessageId | None) -> StoredVersion | None:
        if message_id is None or not 0 < message_id <= len(self.messages):
            return None
        message, row = self.messages[message_id - 1], self.versions.get(message_id)
        if message.role != "user" or (message.deleted and row is None):
            return None
        if row is None or not message.deleted:
            return StoredVersion(message_id=message_id, shown_id=message_id)
        shown = [
            other
            for other, found in self.versions.items()
            if found.group_id == row.group_id
            and found.hidden is None
            and not self.messages[other - 1].deleted
        ]
        assert len(shown) <= 1, "two versions of one message are shown"
        return StoredVersion(
            message_id=message_id,
            shown_id=shown[0] if shown else None,
            hidden=row.hidden,
            end=row.end,
        )


class ReferenceStore:
    def __init__(self) -> None:
        self.chats: dict[ChatId, ChatRows] = {}
        self.usage: list[UsageEntry] = []
        self.requests: dict[tuple[UUID, RequestId], IdempotencyKey] = {}

    def tree(self, root: ChatId) -> list[Chat]:
        return [rows.chat for rows in self.chats.values() if rows.chat.root_chat_id == root]


def apply_change(world: ReferenceStore, change: Change) -> ChatRows:
    """Apply the whole change, or raise and apply nothing."""
    before, after = change.before, change.after
    request = change.request
    if request is not None and (request.scope, request.id) in world.requests:
        raise RepeatedRequest
    rows = world.chats.get(after.id)
    if before is None:
        if rows is not None:
            raise VersionConflict
        rows = world.chats[after.id] = ChatRows(after)
    elif rows is None or rows.chat.snapshot_version != before.snapshot_version:
        raise VersionConflict
    joining = _joining(rows.queue, change)
    _write_messages(rows, change, joining)
    _write_queue(rows, change, joining)
    rows.chat = _written(rows.chat, change, joining)
    world.usage.extend(change.usage)
    if request is not None:
        world.requests[request.scope, request.id] = request
    return rows


def apply_changes(world: ReferenceStore, changes: Iterable[Change]) -> None:
    """Several chats in one transaction: if one has another version, none is written."""
    changes = list(changes)
    for change in changes:
        expected = change.before.snapshot_version if change.before else 0
        if world.chats[change.after.id].chat.snapshot_version != expected:
            raise VersionConflict
    for change in changes:
        apply_change(world, change)


def _joining(queue: Sequence[QueuedMessage], change: Change) -> list[QueuedMessage]:
    if change.promote_ids:
        by_id = {item.id: item for item in queue}
        joining = [by_id[item_id] for item_id in change.promote_ids]
    else:
        joining = sort_queue(queue)[: change.promote] if change.promote else []
    assert len(joining) == change.promote, "the change promotes more than the queue holds"
    return joining


def _write_messages(rows: ChatRows, change: Change, joining: Sequence[QueuedMessage]) -> None:
    version = change.after.snapshot_version
    if change.delete_from is not None:
        hidden = tuple(row.id for row in rows.live if row.id >= change.delete_from)
        _set_deleted(rows, hidden, version, deleted=True)
        _write_versions(rows, change, change.delete_from, hidden)
    if change.restore is not None:
        _set_deleted(rows, change.restore.hidden or (), version, deleted=False)
    rows.messages.extend(_appended(added, version) for added in change.messages)
    first = change.after.next_message_id - len(joining)
    rows.messages.extend(
        _appended(AppendedMessage(id=MessageId(first + index), draft=item.draft()), version)
        for index, item in enumerate(joining)
    )


def _set_deleted(rows: ChatRows, ids: Iterable[MessageId], version: int, *, deleted: bool) -> None:
    for one in ids:
        rows.messages[one - 1] = msgspec.structs.replace(
            rows.messages[one - 1], deleted=deleted, revision=version
        )


def _write_versions(
    rows: ChatRows, change: Change, first: MessageId, hidden: tuple[MessageId, ...]
) -> None:
    assert change.before is not None
    known = rows.versions.get(first)
    group = first if known is None else known.group_id
    rows.versions[first] = VersionRow(group_id=group, hidden=hidden, end=LineEnd.of(change.before))
    new = change.after.turn_message_id if change.restore is None else change.restore.message_id
    assert new is not None
    rows.versions[new] = VersionRow(group_id=group)


def _appended(added: AppendedMessage, version: int) -> Message:
    draft = added.draft
    fields = {name: getattr(draft, name) for name in Draft.__struct_fields__}
    return Message(**fields, id=added.id, revision=version, created_at=AT)


def _write_queue(rows: ChatRows, change: Change, joining: Sequence[QueuedMessage]) -> None:
    if not (change.enqueue or change.rewrite or change.place or change.dequeue):
        if change.clear_queue:
            rows.queue = []
        elif joining:
            rows.queue = [item for item in rows.queue if item not in joining]
        return
    gone = {item.id for item in joining} | set(change.dequeue)
    left = [] if change.clear_queue else [item for item in rows.queue if item.id not in gone]
    rewritten = {item.id: item for item in change.rewrite}
    placed = {item.id: item for item in change.place}
    rows.queue = [
        _placed(_rewritten(item, rewritten.get(item.id)), placed.get(item.id)) for item in left
    ]
    rows.queue.extend(_enqueued(item) for item in change.enqueue)


def _rewritten(item: QueuedMessage, to: EditedQueuedMessage | None) -> QueuedMessage:
    if to is None:
        return item
    return msgspec.structs.replace(
        item,
        content=to.prompt.content,
        model_config_id=to.prompt.model_config_id or item.model_config_id,
        reasoning_effort=to.prompt.reasoning_effort or item.reasoning_effort,
        mode=to.prompt.mode or item.mode,
    )


def _placed(item: QueuedMessage, to: MovedQueuedMessage | None) -> QueuedMessage:
    if to is None:
        return item
    return msgspec.structs.replace(item, position=to.position, steer=to.steer)


def _enqueued(added: EnqueuedMessage) -> QueuedMessage:
    prompt = added.prompt
    return QueuedMessage(
        id=QueueId(added.id),
        position=added.id,
        steer=added.steer,
        created_at=AT,
        content=prompt.content,
        created_by=prompt.created_by,
        model_config_id=prompt.model_config_id,
        reasoning_effort=prompt.reasoning_effort,
        mode=prompt.mode,
    )


def _written(was: Chat, change: Change, joining: Sequence[QueuedMessage]) -> Chat:
    """The row with the columns that the store sets: the promoted model, and the times."""
    row = change.after
    model, effort, mode = row.model_config_id, row.reasoning_effort, row.mode
    for item in joining:
        model = item.model_config_id or model
        effort = item.reasoning_effort or effort
        mode = chosen_mode(item.mode, mode)
    wants_worker = row.status in ("running", "interrupting") and row.worker_id is None
    return msgspec.structs.replace(
        row,
        model_config_id=model,
        reasoning_effort=effort,
        mode=mode,
        updated_at=AT if change.touch else was.updated_at,
        runnable_at=_flag(was.runnable_at, on=wants_worker),
        action_deadline=_flag(was.action_deadline, on=row.status == "requires_action"),
        interrupt_deadline=_flag(was.interrupt_deadline, on=row.status == "interrupting"),
        # The reference knows no change ids; a row decided from a stored one has them.
        recent_changes=(),
    )


def _flag(was: datetime | None, *, on: bool) -> datetime | None:
    return (was or AT) if on else None
