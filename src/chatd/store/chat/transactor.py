"""Run operations: load the row, decide, apply; on a conflict read again and decide again.

`domain.chat.transitions` decides, as a pure function of the loaded row and the command. All
attempts of an operation use one change id. The row stores the last few change ids, so an attempt
after a lost reply finds out whether the earlier one was applied.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from chatd.domain.access.permissions import Permission, SystemActor, is_allowed, require_allowed
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import (
    ArchiveIdleTree,
    ChatCommand,
    ChooseVersion,
    CreateChat,
    DeleteTree,
    EditMessage,
    EditQueued,
    InterruptTree,
    MessageCommand,
    QueueCommand,
    SendMessage,
    TreeCommand,
    UpdateChat,
    command_permission,
)
from chatd.domain.chat.parts import FilePart
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import LoadedChat, ReservedSlots, decide, decide_tree
from chatd.domain.chat.user_transitions import create
from chatd.domain.errors import (
    Conflict,
    InvariantBroken,
    NotFound,
    RequestError,
    StaleFence,
    Unavailable,
)
from chatd.store.chat import chats, updates, versions
from chatd.store.chat.change_writer import apply
from chatd.store.chat.operation import (
    AppliedChange,
    NoChange,
    OnApplied,
    Operation,
    OperationOutcome,
    applied_version,
    find_replay,
    load_applied,
)
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow
from chatd.store.database.pool import Pool

_ATTEMPTS_WITHOUT_LOCK: Final = 2
_EXISTING: Final = SystemActor(reason="compare a new chat with one that has its id")

Decide = Callable[[LoadedChat, ChatCommand, ReservedSlots], Change | None]


class Transactor:
    def __init__(self, pool: Pool, on_applied: OnApplied, decide: Decide = decide) -> None:
        self._pool = pool
        self._on_applied = on_applied
        self._decide = decide

    def start(self, operation: Operation) -> "OperationRun":
        return OperationRun(operation, self._pool, self._on_applied, self._decide)

    def run(self, operation: Operation) -> Coroutine[Any, Any, OperationOutcome]:
        return self.start(operation).attempt()


class OperationRun:
    """The attempts of one operation. Call `attempt` until it returns or the command is refused.
    The run stores each change that it sent, by version, so that the outcome contains the change
    also when its reply was lost."""

    def __init__(
        self, operation: Operation, pool: Pool, on_applied: OnApplied, decide: Decide
    ) -> None:
        self._operation = operation
        self._pool = pool
        self._on_applied = on_applied
        self._decide = decide
        self._permission: Permission = command_permission(operation.command)
        self._sent: dict[int, tuple[Change, LoadedChat]] = {}

    async def attempt(self) -> OperationOutcome:
        """Raises what the transition raises; NotFound; Unavailable if the database is unreachable
        or its reply was lost: then attempt again."""
        try:
            match self._operation.command:
                case CreateChat() as command:
                    return await self._create(command)
                case UpdateChat() | ArchiveIdleTree() | InterruptTree() | DeleteTree() as command:
                    return await self._run_tree(command)
                case command if _needs_lock(command):
                    outcome = await self._run_locked(command)
                case command:
                    known = self._usable_known_row(command)
                    # The first attempt almost always succeeds.
                    outcome = await self._run_known(command, known) if known else None
                    if outcome is None:
                        attempts = _ATTEMPTS_WITHOUT_LOCK - (known is not None)
                        outcome = await self._run_until_applied(command, attempts)
        except DuplicateRow as duplicate:
            return await self._replay_duplicate(duplicate)
        except RequestError:
            # An earlier attempt of this request may be the reason for the refusal.
            replay = await self._find_replay()
            if replay is None:
                raise
            return replay
        if isinstance(outcome, AppliedChange):
            # Also if an earlier attempt was applied: it lost its reply and did not call back.
            self._on_applied(outcome)
        return outcome

    # One chat

    def _usable_known_row(self, command: ChatCommand) -> Chat | None:
        """The caller's row, if the transition reads nothing else, the actor may change it, and it
        does not contain this operation's change."""
        operation = self._operation
        known = operation.known
        if (
            known is None
            or not is_allowed(operation.actor, self._permission, known.owner_id)
            or isinstance(command, QueueCommand | MessageCommand)
            or operation.change_id in known.recent_changes
        ):
            return None
        return known

    async def _run_known(self, command: ChatCommand, known: Chat) -> AppliedChange | None:
        """Decide from the caller's row, which may be outdated. The write detects that. A refusal
        or «no change» would not, so both return None and the row is loaded."""
        loaded = LoadedChat(chat=known)
        try:
            change = self._decide_change(command, loaded)
        except (RequestError, StaleFence):
            return None
        if change is None:
            return None
        return await apply(self._pool, change, self._operation.change_id, loaded)

    async def _run_until_applied(self, command: ChatCommand, attempts: int) -> OperationOutcome:
        """Try without a lock at first, because conflicts are rare."""
        for _ in range(attempts):
            outcome = await self._run_loaded(self._pool, command)
            if outcome is not None:
                return outcome
        return await self._run_locked(command)

    async def _run_locked(self, command: ChatCommand) -> OperationOutcome:
        """Wait for the row's lock, so that an operation on a busy chat cannot conflict for ever."""
        async with self._pool.transaction() as session:
            await chats.lock(session, self._operation.chat_id)
            if _names_files(command):
                await chats.lock_files(session, self._operation.chat_id)
            if isinstance(command, SendMessage) and command.mcp_server_ids is not None:
                await updates.set_mcp_servers(
                    session,
                    self._operation.actor,
                    self._operation.chat_id,
                    command.mcp_server_ids,
                )
            outcome = await self._run_loaded(session, command)
        if outcome is None:
            raise InvariantBroken(f"Chat {self._operation.chat_id} changed under its lock.")
        return outcome

    async def _run_loaded(self, conn: Conn, command: ChatCommand) -> OperationOutcome | None:
        loaded = await chats.load_for_transition(
            conn,
            self._operation.actor,
            self._operation.chat_id,
            self._permission,
            with_queue=isinstance(command, QueueCommand),
            message_id=command.message_id if isinstance(command, MessageCommand) else None,
            with_files=_names_files(command),
        )
        if loaded is None:
            raise NotFound("There is no such chat.")
        if isinstance(command, ChooseVersion):
            found = await versions.lock_version(conn, loaded.chat.id, command.message_id)
            loaded = replace(loaded, version=found)
        return await self._decide_and_apply(conn, command, loaded)

    async def _decide_and_apply(
        self, conn: Conn, command: ChatCommand, loaded: LoadedChat
    ) -> OperationOutcome | None:
        change_id = self._operation.change_id
        if change_id in loaded.chat.recent_changes:
            return await self._load_applied(conn, loaded.chat)
        change = self._decide_change(command, loaded)
        if change is None:
            return NoChange(chat=loaded.chat)
        return await apply(conn, change, change_id, loaded)

    def _decide_change(self, command: ChatCommand, loaded: LoadedChat) -> Change | None:
        change = self._decide(loaded, command, self._operation.slots)
        if change is not None:
            change = change.with_idempotency_key(self._operation.request)
            self._sent[change.after.snapshot_version] = (change, loaded)
        return change

    # A new chat

    async def _create(self, command: CreateChat) -> AppliedChange:
        """Creating twice under one id or one key creates one chat."""
        operation = self._operation
        require_allowed(operation.actor, self._permission, command.owner_id)
        worker = operation.slots.root if command.parent_chat_id is None else operation.slots.child
        change = create(command, worker).with_idempotency_key(operation.request)
        applied = await apply(self._pool, change, operation.change_id)
        if applied is None:
            return await self._resolve_existing(change)
        self._on_applied(applied)
        return applied

    async def _resolve_existing(self, change: Change) -> AppliedChange:
        """The new chat was not written: it exists already, or its parent is archived or deleted."""
        # Its id is chosen by the caller: also a chat that the actor may not read.
        chat = await chats.get(self._pool, _EXISTING, change.after.id)
        if chat is not None and self._operation.change_id in chat.recent_changes:
            applied = await self._load_applied(self._pool, chat)
            self._on_applied(applied)
            return applied
        if (replay := await self._find_replay()) is not None:
            return replay
        if chat is None:
            await self._check_parent(change)
            if change.after.parent_chat_id is None and change.after.project_id is not None:
                raise NotFound("There is no such project.")
            raise Conflict("The parent chat is archived or deleted.", code="parent_archived")
        if chat.owner_id != change.after.owner_id:
            raise Conflict("There is another chat with this id.", code="chat_exists")
        return AppliedChange(chat=chat, replayed=True)

    async def _check_parent(self, change: Change) -> None:
        """Raises StaleFence if another worker runs the parent now, or the parent has moved on."""
        above = change.after.parent_chat_id
        if change.parent_fence is None or above is None:
            return
        parent = await chats.get(self._pool, _EXISTING, above)
        if parent is not None:
            change.parent_fence.check(parent)

    # Chats of one tree

    async def _run_tree(self, command: TreeCommand) -> OperationOutcome:
        """Apply all changes or none. Every operation locks chats in the same order: no deadlock."""
        operation = self._operation
        async with self._pool.transaction() as session:
            members = await self._lock(session, command)
            applied = [
                await load_applied(session, operation.actor, member, operation.change_id)
                for member in members
                if operation.change_id in member.recent_changes
            ]
            if not applied:
                applied = await self._apply_tree(session, members, command)
            rows = {row.id: row for row in (*members, *(one.chat for one in applied))}
            repinned: tuple[Chat, ...] = ()
            if isinstance(command, UpdateChat):
                row = rows[operation.chat_id]
                rows[row.id], repinned = await updates.update_chat(
                    session, operation.actor, row, command
                )
            elif isinstance(command, DeleteTree):
                marked = await updates.mark_deleted(session, operation.actor, operation.chat_id)
                rows.update((row.id, row) for row in marked)
                applied = [replace(one, chat=rows[one.chat.id]) for one in applied]
            chat = rows[operation.chat_id]
        if not applied:
            return NoChange(chat=chat, repinned=repinned)
        for written in applied:
            self._on_applied(written)
        return replace(applied[0], chat=chat, others=tuple(applied[1:]), repinned=repinned)

    async def _lock(self, session: DatabaseSession, command: TreeCommand) -> list[Chat]:
        """Lock the chats that the command may change, among them the addressed one."""
        operation = self._operation
        is_single = (
            isinstance(command, UpdateChat)
            and command.archived is None
            and command.project_id is UNSET
        )
        if isinstance(command, UpdateChat) and command.pin_order is not None:
            await updates.lock_pins(session, operation.chat_id)
        if is_single:
            await chats.lock(session, operation.chat_id)
        deletes = isinstance(command, DeleteTree)
        actor, permission = operation.actor, self._permission
        found = await chats.get_for_command(
            session, actor, operation.chat_id, permission, with_deleted=deletes
        )
        if found is None:
            raise NotFound("There is no such chat.")
        root = found.root_chat_id
        members = [found] if is_single else await chats.lock_tree(session, actor, root, permission)
        if not deletes:
            # Another operation may have deleted the tree while this one waited for its locks.
            members = [member for member in members if member.deleted_at is None]
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

    # Results of earlier attempts

    async def _load_applied(self, conn: Conn, chat: Chat) -> AppliedChange:
        operation = self._operation
        applied = await load_applied(conn, operation.actor, chat, operation.change_id)
        version = applied_version(chat, self._operation.change_id)
        change, loaded = self._sent.get(version, (None, None))
        return replace(applied, change=change, loaded=loaded)

    async def _replay_duplicate(self, duplicate: DuplicateRow) -> AppliedChange:
        if self._operation.request is None or duplicate.constraint != "chat_requests_pkey":
            raise InvariantBroken(f"A change violates {duplicate.constraint}.")
        replay = await self._find_replay()
        if replay is None:
            raise Unavailable("The first request with this key was rolled back; try again.")
        return replay

    async def _find_replay(self) -> AppliedChange | None:
        return await find_replay(self._pool, self._operation.actor, self._operation.request)


def _needs_lock(command: ChatCommand) -> bool:
    """Whether it writes or counts something without a version: the chat's MCP servers, its files,
    which tools add too, and deleted messages, whose content retention removes."""
    if isinstance(command, ChooseVersion):
        return True
    if isinstance(command, SendMessage) and command.mcp_server_ids is not None:
        return True
    return _names_files(command)


def _names_files(command: ChatCommand) -> bool:
    is_prompt = isinstance(command, SendMessage | EditMessage | EditQueued)
    return is_prompt and any(isinstance(part, FilePart) for part in command.prompt.content)
