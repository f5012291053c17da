"""Operations as values: what is asked and what was written.

Owns the lookup of earlier results: by idempotency key, and by change id after a lost reply.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.commands import Command
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import NO_SLOTS, LoadedChat, ReservedSlots
from chatd.domain.errors import NotFound, RequestReused
from chatd.domain.ids import ChangeId, ChatId, MessageId
from chatd.domain.tool_policy.rules import PolicyLayer
from chatd.store import idempotency
from chatd.store.chat import chats
from chatd.store.database.conn import Conn

_UNLIMITED_BYTES: Final = 2**62


class Operation(Struct, frozen=True, kw_only=True):
    """One command on one chat. `known` is a row that the caller has already; it saves the read."""

    chat_id: ChatId
    command: Command
    actor: Actor
    change_id: ChangeId
    slots: ReservedSlots = NO_SLOTS
    request: IdempotencyKey | None = None
    known: Chat | None = None


class AppliedChange(Struct, frozen=True, kw_only=True):
    """What was written. `replayed`: an earlier attempt, or an earlier request with the same key,
    wrote it; `chat` is then the current row, which may be some versions newer than that write.

    `change` was applied and was decided from `loaded`. Both are None if the attempt that wrote
    them was not one of this run. `others` are the other chats of the tree that changed with it.
    `layers` are the tool policies that counted when calls became due or the chat was created, if
    the statement read them.
    """

    chat: Chat
    messages: tuple[Message, ...] = ()
    deleted_ids: tuple[MessageId, ...] = ()
    request: idempotency.RecordedRequest | None = None
    replayed: bool = False
    change: Change | None = None
    loaded: LoadedChat | None = None
    others: tuple["AppliedChange", ...] = ()
    repinned: tuple[Chat, ...] = ()
    layers: tuple[PolicyLayer, ...] | None = None


class NoChange(Struct, frozen=True, kw_only=True):
    """The command is allowed and no transition was needed. `repinned` are other chats that got
    another pin order."""

    chat: Chat
    repinned: tuple[Chat, ...] = ()


OperationOutcome = AppliedChange | NoChange


OnApplied: TypeAlias = Callable[[AppliedChange], None]
"""Called after each applied change, in this replica. Must not raise or block. Not called when the
commit's reply was lost for good; the next poll finds that row."""


def applied_version(chat: Chat, change_id: ChangeId) -> int:
    """The version that this change wrote. Later operations may have written newer ones."""
    return chat.snapshot_version - chat.recent_changes.index(change_id)


async def load_applied(conn: Conn, actor: Actor, chat: Chat, change_id: ChangeId) -> AppliedChange:
    """Read what an earlier attempt wrote when only its reply was lost."""
    version = applied_version(chat, change_id)
    # No byte limit: all of it was in memory when it was written.
    since = await chats.load_changes_since(
        conn, actor, chat.id, version - 1, max_bytes=_UNLIMITED_BYTES
    )
    messages = [m for m in since.messages if m.revision == version] if since else []
    return AppliedChange(
        chat=since.chat if since else chat,
        messages=tuple(m for m in messages if not m.deleted),
        deleted_ids=tuple(m.id for m in messages if m.deleted),
        replayed=True,
    )


async def find_replay(
    conn: Conn, actor: Actor, request: IdempotencyKey | None
) -> AppliedChange | None:
    """The result of an earlier request with the same key. Raises RequestReused if that request was
    a different one, and NotFound if its chat was deleted."""
    if request is None:
        return None
    recorded = await idempotency.get(conn, actor, request)
    if recorded is None:
        return None
    if (recorded.op, recorded.fingerprint) != (request.op, request.fingerprint):
        raise RequestReused("This idempotency key was used for another request.")
    chat = await chats.get_for_command(conn, actor, recorded.chat_id, "chats.write")
    if chat is None:
        raise NotFound("The chat of the first request with this key was deleted.")
    return AppliedChange(chat=chat, request=recorded, replayed=True)
