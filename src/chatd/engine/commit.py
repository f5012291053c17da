"""A job's door to the database: fenced writes that survive a database that does not answer.

Owns trying again; every try carries the same change id, so a write whose reply was lost is
found rather than repeated. Only the row can end the trying: once the chat has moved on, the
fence refuses.
"""

from collections.abc import Callable
from typing import Final

from chatd.domain import worker_moves
from chatd.domain.change import Change
from chatd.domain.chat import Chat, ChatError, Fence
from chatd.domain.commands import Failure, Step
from chatd.domain.errors import InvariantBroken, StaleFence, Unavailable
from chatd.domain.messages import Draft, UsageEntry
from chatd.domain.ports import Env
from chatd.engine.attempt import Job
from chatd.store.transact import Applied, Operation, Transactor

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0


class Committer:
    def __init__(self, transactor: Transactor, env: Env) -> None:
        self._transactor = transactor
        self._env = env

    async def commit(self, job: Job, decide: Callable[[Chat], Change]) -> Applied:
        """Raises StaleFence if somebody else has moved the chat. Also if an earlier try of this
        very write has landed: what has happened since, the row will tell."""
        job.writing()
        try:
            applied = await self._until_answered(job.chat, decide)
            job.check()
        except BaseException:
            job.wrote(None)
            raise
        job.forget()
        if applied.replayed:
            job.wrote(None)
            raise StaleFence(f"Chat {job.chat.id} was written by an earlier try.")
        job.work.committed(applied)
        job.wrote(applied.chat)
        return applied

    async def fail(
        self,
        job: Job,
        error: ChatError,
        *,
        messages: tuple[Draft, ...] = (),
        usage: tuple[UsageEntry, ...] = (),
        client_tools: frozenset[str] = frozenset(),
    ) -> Applied:
        step = Step(
            fence=Fence.of(job.chat), messages=messages, usage=usage, client_tools=client_tools
        )
        failure = Failure(step=step, error=error)
        self._env.emit("turn_failed", chat_id=job.chat.id, error_kind=error.kind)
        return await self.commit(job, lambda row: worker_moves.fail_turn(row, failure))

    async def _until_answered(self, chat: Chat, decide: Callable[[Chat], Change]) -> Applied:
        operation = Operation(
            chat_id=chat.id,
            change_id=self._env.new_change_id(),
            decide=lambda loaded: decide(loaded.chat),
            known=chat,
        )
        wait_s = FIRST_WAIT_S
        failures = 0
        while True:
            try:
                outcome = await self._transactor.run(operation)
            except Unavailable as error:
                failures += 1
                self._env.emit(
                    "commit_delayed", chat_id=chat.id, error_kind=error.code, failures=failures
                )
                await self._env.clock.sleep(wait_s, "commit_retry")
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            else:
                if not isinstance(outcome, Applied):
                    raise InvariantBroken("A worker's move always changes something.")
                return outcome
