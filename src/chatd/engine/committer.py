"""The committer writes the steps of attempts. In the engine only it uses the transactor."""

from collections.abc import Iterable
from typing import Final

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.access.permissions import WORKER, SystemActor
from chatd.domain.chat.commands import ArchiveIdleTree, FailTurn, Step, WorkerCommand
from chatd.domain.chat.messages import Draft, UsageEntry
from chatd.domain.chat.row import Chat, ChatError, Fence
from chatd.domain.errors import InvariantBroken, StaleFence, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.engine.attempt import Attempt
from chatd.store.chat.operation import AppliedChange, Operation, OperationOutcome
from chatd.store.chat.transactor import Transactor

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
