"""Run operations: load the row, decide, apply; on a conflict read again and decide again.

Owns the retry on conflict, idempotency keys, and the callback after each applied change. It
decides nothing: `domain.transitions` does, as a pure function of the loaded row and the command.

An operation keeps one change id through all its attempts. If the connection breaks after the
statement was sent, only the database knows whether it was applied. The caller tries again under
the same change id, and the row keeps the last few of them.
"""

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.commands import (
    ArchiveIdleTree,
    ChatCommand,
    Command,
    CreateChat,
    EditMessage,
    QueueCommand,
    TreeCommand,
    UpdateChat,
)
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import NO_SLOTS, LoadedChat, ReservedSlots, decide, decide_tree
from chatd.domain.chat.user_transitions import create
from chatd.domain.errors import (
    Conflict,
    InvariantBroken,
    NotFound,
    RequestError,
    RequestReused,
    StaleFence,
    Unavailable,
)
from chatd.domain.ids import ChangeId, ChatId, MessageId, UserId
from chatd.store.chat import chats, idempotency, updates
from chatd.store.chat.params import bind_change
from chatd.store.conn import Conn, DatabaseSession
from chatd.store.errors import DuplicateRow
from chatd.store.pool import Pool
from chatd.store.rows import chat_after_write, messages_written

_ATTEMPTS_WITHOUT_LOCK: Final = 2
_UNBOUNDED: Final = 2**62


class Operation(Struct, frozen=True, kw_only=True):
    """One command on one chat. `actor` is the user who asks, for whom chats of other owners do not
    exist, or None for a worker, which may write to any chat. `known` is a row that the caller has
    already; it saves the read."""

    chat_id: ChatId
    command: Command
    actor: UserId | None
    change_id: ChangeId
    slots: ReservedSlots = NO_SLOTS
    request: IdempotencyKey | None = None
    known: Chat | None = None


class AppliedChange(Struct, frozen=True, kw_only=True):
    """What was written. `replayed`: by an earlier attempt, or by an earlier request of the same
    key; `chat` is then the row as it is now, perhaps some versions after that write.

    `change` was applied and was decided from `loaded`. Both are None if the attempt that wrote
    them was not one of this run. `others` are the other chats of the tree that changed with it.
    """

    chat: Chat
    messages: tuple[Message, ...] = ()
    deleted_ids: tuple[MessageId, ...] = ()
    request: idempotency.RecordedRequest | None = None
    replayed: bool = False
    change: Change | None = None
    loaded: LoadedChat | None = None
    others: tuple["AppliedChange", ...] = ()


class NoChange(Struct, frozen=True, kw_only=True):
    """The command is allowed and no transition was needed."""

    chat: Chat


OperationOutcome = AppliedChange | NoChange
Decide = Callable[[LoadedChat, ChatCommand, ReservedSlots], Change | None]


class OnApplied(Protocol):
    """Callback after each applied change, in this replica. Must not raise or block. Not called
    when the commit's reply was lost for good; the next poll finds that row."""

    def __call__(self, applied: AppliedChange) -> None: ...


async def apply(
    conn: Conn, change: Change, change_id: ChangeId, loaded: LoadedChat | None = None
) -> AppliedChange | None:
    """One statement. None if the row has another version (or, new, already exists)."""
    sent = bind_change(change, change_id)
    row = await conn.fetchrow(sent.text, *sent.args)
    if row is None:
        return None
    return AppliedChange(
        chat=chat_after_write(sent.change, change_id, row),
        messages=messages_written(sent.change, row),
        deleted_ids=tuple(row["forgotten"] or ()),
        change=change,
        loaded=loaded,
    )


async def find_replay(
    conn: Conn, request: IdempotencyKey | None, reader: UserId | None
) -> AppliedChange | None:
    """What an earlier request of the same key did; None also if its chat is not the reader's.
    Raises RequestReused if that was another request."""
    if request is None:
        return None
    recorded = await idempotency.get(conn, request)
    if recorded is None:
        return None
    if (recorded.op, recorded.fingerprint) != (request.op, request.fingerprint):
        raise RequestReused("This idempotency key was used for another request.")
    chat = await chats.get_readable(conn, recorded.chat_id, reader)
    if chat is None:
        return None
    return AppliedChange(chat=chat, request=recorded, replayed=True)


class Transactor:
    def __init__(self, pool: Pool, on_applied: OnApplied, decide: Decide = decide) -> None:
        self._pool = pool
        self._on_applied = on_applied
        self._decide = decide

    def start(self, operation: Operation) -> "OperationRun":
        return OperationRun(operation, self._pool, self._on_applied, self._decide)

    async def run(self, operation: Operation) -> OperationOutcome:
        """One attempt of the operation: see `OperationRun.attempt`."""
        return await self.start(operation).attempt()


class OperationRun:
    """One operation on its way. `attempt` may be called until it returns or the command is
    refused: it remembers each change that it sent, by version, so that the change comes back in
    the outcome although its reply was lost."""

    def __init__(
        self, operation: Operation, pool: Pool, on_applied: OnApplied, decide: Decide
    ) -> None:
        self._operation = operation
        self._pool = pool
        self._on_applied = on_applied
        self._decide = decide
        self._sent: dict[int, tuple[Change, LoadedChat]] = {}

    async def attempt(self) -> OperationOutcome:
        """Raises what the transition raises; NotFound; Unavailable if the database cannot be
        reached or its reply was lost: then attempt again."""
        try:
            match self._operation.command:
                case CreateChat() as command:
                    return await self._create(command)
                case UpdateChat() | ArchiveIdleTree() as command:
                    return await self._run_tree(command)
                case command:
                    outcome = await self._run_unlocked(command) or await self._run_locked(command)
        except DuplicateRow as duplicate:
            return await self._replay_duplicate(duplicate)
        except RequestError:
            # The first attempt of this very request may be why the chat refuses it now.
            replay = await self._find_replay()
            if replay is None:
                raise
            return replay
        if isinstance(outcome, AppliedChange):
            # Also if an earlier attempt was applied: its callback was lost with its reply.
            self._on_applied(outcome)
        return outcome

    # One chat

    async def _run_unlocked(self, command: ChatCommand) -> OperationOutcome | None:
        """Almost always the first attempt succeeds. None after too many conflicts."""
        known = self._usable_known_row(command)
        for _ in range(_ATTEMPTS_WITHOUT_LOCK):
            if known is not None:
                outcome = await self._run_known(command, known)
                known = None
            else:
                outcome = await self._run_loaded(self._pool, command)
            if outcome is not None:
                return outcome
        return None

    def _usable_known_row(self, command: ChatCommand) -> Chat | None:
        """The caller's row, if it is all that the command's transition reads and the actor may
        see it."""
        if isinstance(command, QueueCommand | EditMessage):
            return None
        known, actor = self._operation.known, self._operation.actor
        if known is None or actor not in (None, known.owner_id):
            return None
        return known

    async def _run_known(self, command: ChatCommand, known: Chat) -> AppliedChange | None:
        """The caller's row may be an old one. The write finds that out by itself; but neither a
        refusal nor the outcome that nothing has to be done may rest on it."""
        try:
            outcome = await self._decide_and_apply(self._pool, command, LoadedChat(chat=known))
        except (RequestError, StaleFence):
            return None
        return outcome if isinstance(outcome, AppliedChange) else None

    async def _run_locked(self, command: ChatCommand) -> OperationOutcome:
        """After two conflicts: wait for the row's lock, so that busy chats stay fair."""
        async with self._pool.transaction() as session:
            await chats.lock(session, self._operation.chat_id)
            outcome = await self._run_loaded(session, command)
        if outcome is None:
            raise InvariantBroken(f"Chat {self._operation.chat_id} changed under its lock.")
        return outcome

    async def _run_loaded(self, conn: Conn, command: ChatCommand) -> OperationOutcome | None:
        loaded = await chats.load_for_transition(
            conn,
            self._operation.chat_id,
            self._operation.actor,
            with_queue=isinstance(command, QueueCommand),
            message_id=command.message_id if isinstance(command, EditMessage) else None,
        )
        if loaded is None:
            raise NotFound("There is no such chat.")
        return await self._decide_and_apply(conn, command, loaded)

    async def _decide_and_apply(
        self, conn: Conn, command: ChatCommand, loaded: LoadedChat
    ) -> OperationOutcome | None:
        operation = self._operation
        if operation.change_id in loaded.chat.recent_changes:
            return await self._load_applied(conn, loaded.chat)
        change = self._decide(loaded, command, operation.slots)
        if change is None:
            return NoChange(chat=loaded.chat)
        change = change.with_idempotency_key(operation.request)
        self._sent[change.after.snapshot_version] = (change, loaded)
        return await apply(conn, change, operation.change_id, loaded)

    # A new chat

    async def _create(self, command: CreateChat) -> AppliedChange:
        """Created twice under one id or one key, the chat exists once."""
        operation = self._operation
        worker = operation.slots.root if command.parent_chat_id is None else operation.slots.child
        change = create(command, worker).with_idempotency_key(operation.request)
        applied = await apply(self._pool, change, operation.change_id)
        if applied is None:
            return await self._resolve_existing(change)
        self._on_applied(applied)
        return applied

    async def _resolve_existing(self, change: Change) -> AppliedChange:
        """Why a new chat was not written: it exists, or its parent does not."""
        chat = await chats.get(self._pool, change.after.id)
        if chat is not None and self._operation.change_id in chat.recent_changes:
            landed = await self._load_applied(self._pool, chat)
            self._on_applied(landed)
            return landed
        if (replay := await self._find_replay()) is not None:
            return replay
        if chat is None:
            raise Conflict("The parent chat is archived or gone.", code="parent_archived")
        if chat.owner_id != change.after.owner_id:
            raise Conflict("There is another chat with this id.", code="chat_exists")
        return AppliedChange(chat=chat, replayed=True)

    # Chats of one tree

    async def _run_tree(self, command: TreeCommand) -> OperationOutcome:
        """All changes or none, under locks that every operation takes in the same order."""
        operation = self._operation
        async with self._pool.transaction() as session:
            members = await self._lock(session, command)
            applied = [
                await self._load_applied(session, member)
                for member in members
                if operation.change_id in member.recent_changes
            ]
            if not applied:
                applied = await self._apply_tree(session, members, command)
            rows = (applied[0].chat,) if applied else members
            chat = next(row for row in rows if row.id == operation.chat_id)
            if isinstance(command, UpdateChat):
                chat = await updates.update_chat(session, chat, command)
        if not applied:
            return NoChange(chat=chat)
        for each in applied:
            self._on_applied(each)
        return replace(applied[0], chat=chat, others=tuple(applied[1:]))

    async def _lock(self, session: DatabaseSession, command: TreeCommand) -> list[Chat]:
        """The chats that the command may change, the addressed one among them."""
        operation = self._operation
        alone = isinstance(command, UpdateChat) and command.archived is None
        if alone:
            await chats.lock(session, operation.chat_id)
        found = await chats.get_readable(session, operation.chat_id, operation.actor)
        if found is None:
            raise NotFound("There is no such chat.")
        members = [found] if alone else await chats.lock_tree(session, found.root_chat_id)
        if all(member.id != found.id for member in members):
            raise NotFound("There is no such chat.")
        return members

    async def _apply_tree(
        self, session: DatabaseSession, members: list[Chat], command: TreeCommand
    ) -> list[AppliedChange]:
        operation = self._operation
        written: list[AppliedChange] = []
        for change in decide_tree(members, operation.chat_id, command):
            applied = await apply(session, change, operation.change_id)
            if applied is None:
                raise InvariantBroken(f"Chat {change.after.id} changed under its lock.")
            written.append(applied)
        return written

    # What was written already

    async def _load_applied(self, conn: Conn, chat: Chat) -> AppliedChange:
        """An earlier attempt was applied and only its reply was lost."""
        # Not the row's version: other operations may have written since.
        version = chat.snapshot_version - chat.recent_changes.index(self._operation.change_id)
        # All of it: it was in memory when it was written.
        seen = await chats.load_changes_since(conn, chat.id, version - 1, max_bytes=_UNBOUNDED)
        messages = [m for m in seen.messages if m.revision == version] if seen else []
        change, loaded = self._sent.get(version, (None, None))
        return AppliedChange(
            chat=seen.chat if seen else chat,
            messages=tuple(m for m in messages if not m.deleted),
            deleted_ids=tuple(m.id for m in messages if m.deleted),
            replayed=True,
            change=change,
            loaded=loaded,
        )

    async def _replay_duplicate(self, duplicate: DuplicateRow) -> AppliedChange:
        if self._operation.request is None or duplicate.constraint != "chat_requests_pkey":
            raise InvariantBroken(f"A change collided with another: {duplicate.constraint}.")
        replay = await self._find_replay()
        if replay is None:
            raise Unavailable("The first request of this key was undone meanwhile; try again.")
        return replay

    async def _find_replay(self) -> AppliedChange | None:
        return await find_replay(self._pool, self._operation.request, self._operation.actor)
