"""Making moves: load, decide, write; again if someone else was faster.

Owns the retry on conflict, idempotency keys, and telling everyone afterwards.
Decides nothing: `decide` is a pure function of what was loaded.

One operation keeps one change id through all its tries. If the connection
dies after the statement was sent, nobody knows whether it was applied; the
caller simply tries again with the same id, and the row remembers the last few.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.errors import (
    Conflict,
    InvariantBroken,
    NotFound,
    RequestError,
    RequestReused,
    StaleFence,
    Unavailable,
)
from chatd.domain.ids import ChangeId, ChatId, MessageId
from chatd.store.chat import chats, idempotency
from chatd.store.chat.chats import LoadedChat
from chatd.store.chat.params import bind_change
from chatd.store.conn import Conn
from chatd.store.errors import DuplicateRow
from chatd.store.pool import Pool
from chatd.store.rows import chat_after_write, messages_written

_HURRIED_TRIES = 2
_UNBOUNDED = 2**62


class AppliedChange(Struct, frozen=True, kw_only=True):
    """What was written. `replayed`: by an earlier try or an earlier request of the same key; the
    chat is then as it is now, perhaps some versions after that write."""

    chat: Chat
    messages: tuple[Message, ...] = ()
    deleted_ids: tuple[MessageId, ...] = ()
    request: idempotency.RecordedRequest | None = None
    replayed: bool = False


class NoChange(Struct, frozen=True, kw_only=True):
    """The move is legal and there was nothing to do."""

    chat: Chat


OperationOutcome = AppliedChange | NoChange
Decide = Callable[[LoadedChat], Change | None]


class OnApplied(Protocol):
    """Hands a written row to whoever is interested. Must not raise or wait. Told once for each
    write that the caller learns of; one that nobody learns of is found by the next look."""

    def __call__(self, applied: AppliedChange) -> None: ...


class Operation(Struct, frozen=True, kw_only=True):
    """One move on one chat. `known` saves the read if the caller has the row already."""

    chat_id: ChatId
    change_id: ChangeId
    decide: Decide
    known: Chat | None = None
    with_queue: bool = False
    message_id: MessageId | None = None
    request: IdempotencyKey | None = None


async def apply(conn: Conn, change: Change, change_id: ChangeId) -> AppliedChange | None:
    """One statement. None if the row has another version (or, new, already exists)."""
    sent = bind_change(change, change_id)
    row = await conn.fetchrow(sent.text, *sent.args)
    if row is None:
        return None
    return AppliedChange(
        chat=chat_after_write(sent.change, change_id, row),
        messages=messages_written(sent.change, row),
        deleted_ids=tuple(row["forgotten"] or ()),
    )


class Transactor:
    def __init__(self, pool: Pool, tell: OnApplied) -> None:
        self._pool = pool
        self._tell = tell

    async def run(self, operation: Operation) -> OperationOutcome:
        """Raises what `decide` raises; Unavailable if the database cannot be reached."""
        try:
            outcome = await self._hurried(operation) or await self._locked(operation)
        except DuplicateRow as duplicate:
            return await self._replayed(operation.request, duplicate)
        except RequestError:
            # The first try of this very request may be why the chat refuses it now.
            recorded = await self._recorded(operation.request)
            if recorded is None:
                raise
            return recorded
        if isinstance(outcome, AppliedChange):
            # Also if an earlier try landed: with its reply the chance to tell was lost.
            self._tell(outcome)
        return outcome

    async def create(
        self, change: Change, change_id: ChangeId, request: IdempotencyKey | None = None
    ) -> AppliedChange:
        """A new chat. Created twice under one id or one key, it is there once."""
        try:
            applied = await apply(self._pool, change.requested(request), change_id)
        except DuplicateRow as duplicate:
            return await self._replayed(request, duplicate)
        if applied is None:
            return await self._existing(change, change_id, request)
        self._tell(applied)
        return applied

    async def run_tree(
        self, root: ChatId, decide: Callable[[list[Chat]], tuple[Change, ...]], id_: ChangeId
    ) -> list[AppliedChange]:
        """Several chats of one family, all or none, locked in one order."""
        written: list[AppliedChange] = []
        async with self._pool.transaction() as session:
            members = await chats.lock_tree(session, root)
            written = [
                await _landed(session, member, id_)
                for member in members
                if id_ in member.recent_changes
            ]
            for change in () if written else decide(members):
                applied = await apply(session, change, id_)
                if applied is None:
                    raise InvariantBroken(f"Chat {change.after.id} changed under its lock.")
                written.append(applied)
        for applied in written:
            self._tell(applied)
        return written

    async def _hurried(self, operation: Operation) -> OperationOutcome | None:
        """Without a lock: almost always the only try."""
        alone = not operation.with_queue and operation.message_id is None
        known = operation.known if alone else None
        for _ in range(_HURRIED_TRIES):
            if known is not None:
                outcome = await self._unread(operation, known)
                known = None
            else:
                loaded = await _load(self._pool, operation)
                outcome = await self._attempt(self._pool, operation, loaded)
            if outcome is not None:
                return outcome
        return None

    async def _unread(self, operation: Operation, known: Chat) -> AppliedChange | None:
        """The row that the caller has may be an old one. Writing finds that out by itself; but
        neither a refusal nor that there is nothing to do may rest on it."""
        try:
            outcome = await self._attempt(self._pool, operation, LoadedChat(chat=known))
        except (RequestError, StaleFence):
            return None
        return outcome if isinstance(outcome, AppliedChange) else None

    async def _locked(self, operation: Operation) -> OperationOutcome:
        """Twice too late: queue up for the row like everyone else."""
        async with self._pool.transaction() as session:
            await chats.lock(session, operation.chat_id)
            loaded = await _load(session, operation)
            outcome = await self._attempt(session, operation, loaded)
        if outcome is None:
            raise InvariantBroken(f"Chat {operation.chat_id} changed under its lock.")
        return outcome

    async def _attempt(
        self, conn: Conn, operation: Operation, loaded: LoadedChat
    ) -> OperationOutcome | None:
        if operation.change_id in loaded.chat.recent_changes:
            return await _landed(conn, loaded.chat, operation.change_id)
        change = operation.decide(loaded)
        if change is None:
            return NoChange(chat=loaded.chat)
        return await apply(conn, change.requested(operation.request), operation.change_id)

    async def _replayed(
        self, request: IdempotencyKey | None, duplicate: DuplicateRow
    ) -> AppliedChange:
        if request is None or duplicate.constraint != "chat_requests_pkey":
            raise InvariantBroken(f"A change collided with another: {duplicate.constraint}.")
        recorded = await self._recorded(request)
        if recorded is None:
            raise Unavailable("The first request of this key was undone meanwhile; try again.")
        return recorded

    async def _recorded(self, request: IdempotencyKey | None) -> AppliedChange | None:
        if request is None:
            return None
        recorded = await idempotency.get(self._pool, request)
        if recorded is None:
            return None
        if (recorded.op, recorded.fingerprint) != (request.op, request.fingerprint):
            raise RequestReused("This idempotency key was used for another request.")
        chat = await chats.get(self._pool, recorded.chat_id)
        if chat is None:
            return None
        return AppliedChange(chat=chat, request=recorded, replayed=True)

    async def _existing(
        self, change: Change, change_id: ChangeId, request: IdempotencyKey | None
    ) -> AppliedChange:
        """Why a new chat was not written: it is there, or its family is not."""
        chat = await chats.get(self._pool, change.after.id)
        if chat is not None and change_id in chat.recent_changes:
            landed = await _landed(self._pool, chat, change_id)
            self._tell(landed)
            return landed
        if (recorded := await self._recorded(request)) is not None:
            return recorded
        if chat is None:
            raise Conflict("The parent chat is archived or gone.", code="parent_archived")
        if chat.owner_id != change.after.owner_id:
            raise Conflict("There is another chat with this id.", code="chat_exists")
        return AppliedChange(chat=chat, replayed=True)


async def _load(conn: Conn, operation: Operation) -> LoadedChat:
    loaded = await chats.load_for_transition(
        conn,
        operation.chat_id,
        with_queue=operation.with_queue,
        message_id=operation.message_id,
    )
    if loaded is None:
        raise NotFound("There is no such chat.")
    return loaded


async def _landed(conn: Conn, chat: Chat, change_id: ChangeId) -> AppliedChange:
    """An earlier try was applied and only its reply was lost."""
    version = chat.snapshot_version - chat.recent_changes.index(change_id)
    # All of it: it was in memory when it was written.
    seen = await chats.load_changes_since(conn, chat.id, version - 1, most_bytes=_UNBOUNDED)
    messages = [m for m in seen.messages if m.revision == version] if seen else []
    return AppliedChange(
        chat=seen.chat if seen else chat,
        messages=tuple(m for m in messages if not m.deleted),
        deleted_ids=tuple(m.id for m in messages if m.deleted),
        replayed=True,
    )
