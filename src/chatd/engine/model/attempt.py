"""One attempt to run a chat, and the committer that writes its steps.

An `Attempt` holds the row, its history, the tool policies of its calls, the partial answer, what
earlier attempts at the step said, the usage that no commit has recorded, and the right to write.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.access.permissions import WORKER, SystemActor
from chatd.domain.answer.partial import LivePart, kept_messages
from chatd.domain.chat.call_waits import CallWait
from chatd.domain.chat.commands import ArchiveIdleTree, FailTurn, Step, WorkerCommand
from chatd.domain.chat.messages import Draft, Message, UsageEntry
from chatd.domain.chat.row import Chat, ChatError, Episode, Fence
from chatd.domain.decisions import TaskView
from chatd.domain.errors import InvariantBroken, StaleFence, Unavailable
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.model.protocol import ModelRequest
from chatd.domain.ports import Clock, Env
from chatd.domain.prompt.builder import KeptPrompt
from chatd.domain.tool_policy.rules import PolicyLayer
from chatd.engine.kept_histories import KeptHistories, KeptHistory
from chatd.store.chat import messages
from chatd.store.chat.operation import AppliedChange, Operation, OperationOutcome
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import Conn
from chatd.store.deployment import tool_policies

S = TypeVar("S", bound=Step)

PartialMessages = Callable[[str], tuple[Draft, ...]]
UsageEntries = Callable[[], tuple[UsageEntry, ...]]


POLICY_MAX_AGE_S: Final = 1.0
"""Calls that have waited longer than this since their commit read the tool policies again."""


class _Policy(Struct, frozen=True, kw_only=True):
    layers: tuple[PolicyLayer, ...]
    snapshot_version: int
    asked_at: float


class _Partial(Struct, frozen=True, kw_only=True):
    history_version: int
    messages: PartialMessages
    usage: UsageEntries


class _Previous(Struct, frozen=True, kw_only=True):
    """The live parts of earlier attempts, by their episodes; the newest first."""

    history_version: int
    parts: Mapping[Episode, tuple[LivePart, ...]]


class Attempt:
    """One asyncio task of a chat task. A cancelled task may ignore its cancellation; `end` takes
    its right to write, so that it changes neither the row nor the attempt that follows.

    `is_first`: the chat task had no attempt before, so any live parts are another worker's.
    `sent` is the request of the previous step, to compare the next one with.
    `offer_policy` are the newest tool policies that were read, for the tools of the next request.
    `row_changed` is set after each write, for the chat task to judge rows that arrived meanwhile.
    """

    def __init__(
        self,
        chat: Chat,
        worker_id: WorkerId,
        clock: Clock,
        row_changed: asyncio.Event,
        *,
        created: AppliedChange | None = None,
    ) -> None:
        self.chat = chat
        self.worker_id = worker_id
        self.view = TaskView.of(chat)
        self.is_first = True
        self.is_draining = False
        self._clock = clock
        self._row_changed = row_changed
        self._partial: _Partial | None = None
        self._previous: _Previous | None = None
        self._kept = KeptHistory(chat, [])
        self._history_version: int | None = None
        self.offer_policy: tuple[PolicyLayer, ...] = ()
        if created is not None and created.layers is not None:  # written now, not a repeat
            self._kept = KeptHistory(chat, list(created.messages))
            self._history_version = chat.history_version
            self.offer_policy = created.layers
        self.sent: ModelRequest | None = None
        self._policy: _Policy | None = None
        self._write_began_at = 0.0
        self._is_ended = False
        self._told: dict[str, str] = {}

    def next(self) -> "Attempt":
        """The attempt after this one, for the row as it is now. It keeps the partial answer if
        the history is still the same."""
        successor = Attempt(self.chat, self.worker_id, self._clock, self._row_changed)
        successor.is_first = False
        successor.is_draining = self.is_draining
        successor._kept = self._kept
        successor._history_version = self._history_version
        successor.offer_policy = self.offer_policy
        if self._partial and self._partial.history_version == self.chat.history_version:
            successor._partial = self._partial
        successor._previous = self._previous
        successor.sent = self.sent
        successor._told = self._told
        return successor

    # History

    @property
    def history(self) -> Sequence[Message]:
        return self._kept.messages

    @property
    def kept_prompt(self) -> KeptPrompt:
        """Of the last request for an answer."""
        return self._kept.prompt

    def take_kept_prompt(self) -> KeptPrompt:
        """Until `set_kept_prompt` the attempt has an empty one."""
        taken, self._kept.prompt = self._kept.prompt, KeptPrompt()
        return taken

    def set_kept_prompt(self, prompt: KeptPrompt) -> None:
        if not self._is_ended:
            self._kept.prompt = prompt

    async def load_history(self, conn: Conn, kept: KeptHistories) -> None:
        """Read it once; each commit then adds its own messages. Only a row with another history
        version is read for again. Of a history that is kept here only what has changed since is
        read. Raises StaleFence if the database has lost the chat."""
        if self._history_version == self.chat.history_version:
            return
        chat, found = self.chat, kept.find(self.chat)
        if found is None or not await self._load_changes(conn, found):
            history, self.offer_policy = await messages.load_history_and_policy(
                conn, WORKER, chat.id
            )
            if not history:
                raise StaleFence(f"Chat {chat.id} has no message any more.")
            self._kept = KeptHistory(chat, history)
        kept.forget(chat.id)
        self._history_version = chat.history_version

    async def _load_changes(self, conn: Conn, found: KeptHistory) -> bool:
        loaded = await messages.load_changes_and_policy(
            conn, WORKER, self.chat.id, found.chat.snapshot_version
        )
        if loaded is None or not found.add(loaded[0]):
            return False
        self._kept, self.offer_policy = found, loaded[1]
        return True

    def leave_history(self, kept: KeptHistories) -> None:
        """The attempt has finished by itself: keep its history for the chat's next turn."""
        if self._is_ended or not self._kept.messages:
            return
        if self._history_version == self.chat.history_version:
            self._kept.chat = self.chat
            kept.keep(self._kept)

    # Tool policies

    async def load_policy(self, conn: Conn) -> tuple[PolicyLayer, ...]:
        """The policies that count for calls that run now. The commit that made them due has read
        them; calls that waited since then, for a person or for their tools, read them again."""
        if not self.chat.pending_calls:
            return ()
        known = self._policy
        if (
            known is not None
            and known.snapshot_version == self.chat.snapshot_version
            and self._clock.monotonic() - known.asked_at <= POLICY_MAX_AGE_S
        ):
            return known.layers
        self.offer_policy = await tool_policies.load_layers(conn, self.chat)
        return self.offer_policy

    # Hooks

    def has_told(self, told: tuple[str, str]) -> bool:
        """Whether the hooks of this event were asked the same already."""
        return self._told.get(told[0]) == told[1]

    def set_told(self, told: tuple[str, str]) -> None:
        self._told[told[0]] = told[1]

    # Partial answer and usage

    @property
    def has_partial(self) -> bool:
        return self._partial is not None

    def set_partial(self, messages: PartialMessages, usage: UsageEntries) -> None:
        """From now on an interrupt commits these messages and records this usage."""
        self._partial = _Partial(
            history_version=self.chat.history_version, messages=messages, usage=usage
        )

    def set_unrecorded_usage(self, usage: tuple[UsageEntry, ...]) -> None:
        """Discard the partial answer but keep its usage, so that the next commit, or the
        interrupt that comes before it, records it."""
        self.set_partial(lambda _: (), lambda: usage)

    def partial_messages(self, at: str) -> tuple[Draft, ...]:
        """Nothing of an earlier attempt is dropped before this one has said as much."""
        own = () if self._partial is None else self._partial.messages(at)
        return kept_messages(self.chat, own, self.previous, at)

    @property
    def has_previous(self) -> bool:
        """Whether the live parts of earlier attempts at this step have been set."""
        known = self._previous
        return known is not None and known.history_version == self.chat.history_version

    @property
    def previous(self) -> tuple[tuple[LivePart, ...], ...]:
        """What earlier attempts at this step said; the newest first. An answer that was discarded
        is left out."""
        if self._previous is None:
            return ()
        known = self._previous.parts.items()
        return tuple(parts for episode, parts in known if parts and episode.is_kept(self.chat))

    def set_previous(self, parts: Mapping[Episode, tuple[LivePart, ...]]) -> None:
        """The live parts of other workers' attempts at this step, the newest first."""
        self._previous = _Previous(history_version=self.chat.history_version, parts=parts)

    def unrecorded_usage(self) -> tuple[UsageEntry, ...]:
        """Usage that no commit has recorded."""
        return () if self._partial is None else self._partial.usage()

    # Flow

    @property
    def should_continue(self) -> bool:
        return self.chat.worker_id == self.worker_id and self.chat.status == "running"

    def drain(self) -> None:
        """Finish the step in progress, then release the chat."""
        self.is_draining = True

    def step(
        self,
        kind: type[S],
        messages: tuple[Draft, ...] = (),
        usage: tuple[UsageEntry, ...] = (),
        *,
        client_tools: frozenset[str] = frozenset(),
        waits: tuple[CallWait, ...] = (),
        compacted: bool = False,
    ) -> S:
        """The command of a kind for this attempt's row."""
        return kind(
            fence=Fence.of(self.chat),
            messages=messages,
            usage=usage,
            client_tools=client_tools,
            waits=waits,
            compacted=compacted,
            keep_owner=not self.is_draining,
        )

    # Right to write

    def end(self) -> None:
        self._is_ended = True

    def check_active(self) -> None:
        if self._is_ended:
            raise StaleFence(f"Chat {self.chat.id}: this task has been replaced.")

    def begin_write(self) -> None:
        self.check_active()
        self._write_began_at = self._clock.monotonic()
        self.view = self.view.committing()

    def end_write(self, applied: AppliedChange | None) -> None:
        """`applied` is None if the write was refused or its result is unknown."""
        if applied is None:
            self.view = self.view.not_committed()
        else:
            self._add_history(applied)
            self.chat = applied.chat
            self.view = self.view.committed(applied.chat)
            self._set_policy(applied)
        self._row_changed.set()

    def clear_partial(self) -> None:
        """The messages and the usage are stored, or recorded elsewhere."""
        self._partial = None

    def _set_policy(self, applied: AppliedChange) -> None:
        self._policy = None
        if applied.layers is not None:
            self.offer_policy = applied.layers
            self._policy = _Policy(
                layers=applied.layers,
                snapshot_version=applied.chat.snapshot_version,
                asked_at=self._write_began_at,
            )

    def _add_history(self, applied: AppliedChange) -> None:
        if self._history_version == self.chat.history_version and not applied.deleted_ids:
            self._kept.messages.extend(applied.messages)
            self._history_version = applied.chat.history_version


# The committer writes the steps of attempts. In the engine only it uses the transactor.

COMMIT_BACKOFF: Final = Backoff(first_delay_s=0.1, max_delay_s=5.0)


def emit_usage(env: Env, entries: Iterable[UsageEntry]) -> None:
    for entry in entries:
        tokens = entry.usage
        env.emit(
            "usage_recorded",
            provider=entry.provider,
            model=entry.model,
            input_tokens=tokens.input_tokens,
            output_tokens=tokens.output_tokens,
            cache_read_tokens=tokens.cache_read_tokens,
            cache_creation_tokens=tokens.cache_creation_tokens,
            cost_micros=entry.cost_micros or 0,
        )


RETENTION: Final = SystemActor(reason="archive idle chats")


class Committer:
    """Fenced writes. A commit is retried until the database answers: every try has the same
    change id, so a write with a lost reply is found and not repeated. A row that has changed
    ends the retries, because the fence then refuses the write."""

    def __init__(self, transactor: Transactor, env: Env) -> None:
        self._transactor = transactor
        self._env = env

    async def commit(self, attempt: Attempt, command: WorkerCommand) -> AppliedChange:
        """Raises StaleFence if another writer changed the chat, and also if an earlier try of
        this write was applied: later changes are then known only from the row."""
        attempt.begin_write()
        try:
            applied = await self._retry(self._operation(attempt.chat.id, command, attempt.chat))
            attempt.check_active()
        except BaseException:
            attempt.end_write(None)
            raise
        attempt.clear_partial()
        if isinstance(command, Step) and command.usage:
            emit_usage(self._env, command.usage)
        if applied.replayed:
            attempt.end_write(None)
            raise StaleFence(f"Chat {attempt.chat.id} was written by an earlier try.")
        attempt.end_write(applied)
        return applied

    async def fail_turn(
        self,
        attempt: Attempt,
        error: ChatError,
        *,
        messages: tuple[Draft, ...] = (),
        usage: tuple[UsageEntry, ...] = (),
        client_tools: frozenset[str] = frozenset(),
    ) -> AppliedChange:
        command = FailTurn(
            fence=Fence.of(attempt.chat),
            messages=messages,
            usage=usage,
            client_tools=client_tools,
            error=error,
        )
        self._env.emit("turn_failed", chat_id=attempt.chat.id, error_kind=error.kind)
        return await self.commit(attempt, command)

    async def run(self, chat_id: ChatId, command: WorkerCommand) -> OperationOutcome:
        """One write outside any attempt, tried once."""
        return await self._transactor.run(self._operation(chat_id, command))

    async def archive_idle(self, chat_id: ChatId, command: ArchiveIdleTree) -> OperationOutcome:
        """Tried once."""
        operation = Operation(
            chat_id=chat_id,
            command=command,
            actor=RETENTION,
            change_id=self._env.new_change_id(),
        )
        return await self._transactor.run(operation)

    def _operation(
        self, chat_id: ChatId, command: WorkerCommand, known: Chat | None = None
    ) -> Operation:
        return Operation(
            chat_id=chat_id,
            command=command,
            actor=WORKER,
            change_id=self._env.new_change_id(),
            known=known,
        )

    async def _retry(self, operation: Operation) -> AppliedChange:
        def on_failure(error: Unavailable, failures: int) -> None:
            chat_id, kind = operation.chat_id, error.code
            self._env.emit("commit_delayed", chat_id=chat_id, error_kind=kind, failures=failures)

        outcome = await retry_unavailable(
            self._env.clock,
            lambda: self._transactor.run(operation),
            tag="commit_retry",
            delay=COMMIT_BACKOFF.delay,
            budget_s=None,
            on_failure=on_failure,
        )
        if not isinstance(outcome, AppliedChange):
            raise InvariantBroken("A worker's transition always changes the row.")
        return outcome
