"""Steps that call a model: an answer, or a summary. Each ends in one commit.

Owns what becomes of a call that fails: another try after a while, a summary because the chat
has grown too long, or the end of the turn with a reason. Every call is paid for in the commit
that follows it, failed ones too, and none is made past a spend limit.
"""

from typing import Final, assert_never

from msgspec import Struct

from chatd.domain import worker_moves
from chatd.domain.chat import ChatError, Fence
from chatd.domain.commands import Retry, Step
from chatd.domain.decide import Compact
from chatd.domain.messages import local_calls
from chatd.domain.ports import Env
from chatd.domain.retry import CompactFirst, GiveUp, RetryAfter, decide_retry, retry_state
from chatd.engine.attempt import Job
from chatd.engine.commit import Committer
from chatd.engine.model_call import Answered, CallFailed, ModelCall, TooLong
from chatd.engine.spend_guard import SpendGuard
from chatd.engine.summary_call import SummaryCall
from chatd.engine.turn_context import Setting
from chatd.store.transact import Applied

TOO_LONG: Final = ChatError(
    kind="timeout", message="The answer took longer than an answer may take.", retryable=True
)


class ModelStep(Struct, frozen=True, kw_only=True):
    answering: ModelCall
    summarizing: SummaryCall
    committer: Committer
    purse: SpendGuard
    env: Env

    async def ask(self, job: Job, setting: Setting) -> Applied:
        if (refusal := await self.purse.check(job.chat)) is not None:
            return await self.committer.fail(job, refusal)
        fence = Fence.of(job.chat)
        try:
            answered = await self.answering.answer(job, setting)
        except CallFailed as failed:
            return await self._failed(job, setting, failed)
        except TooLong:
            return await self._cut_short(job, setting)
        return await self._keep(job, setting, fence, answered)

    async def compact(self, job: Job, setting: Setting, action: Compact | None) -> Applied:
        """A summary that was asked for is all that was asked for; any other goes on."""
        if (refusal := await self.purse.check(job.chat)) is not None:
            return await self.committer.fail(job, refusal)
        fence = Fence.of(job.chat)
        try:
            summary = await self.summarizing.summarize(job, setting, action, self.purse)
        except CallFailed as failed:
            return await self._no_summary(job, failed)
        step = Step(
            fence=fence,
            messages=summary.messages,
            usage=summary.usage,
            compacted=True,
            keep_owner=not job.stopping,
        )
        manual = action is not None and action.source == "manual"
        move = worker_moves.finish_turn if manual else worker_moves.commit_step
        return await self.committer.commit(job, lambda row: move(row, step))

    async def _keep(self, job: Job, setting: Setting, fence: Fence, answered: Answered) -> Applied:
        step = Step(
            fence=fence,
            messages=answered.messages,
            usage=answered.usage,
            client_tools=setting.client_names,
            keep_owner=not job.stopping,
        )
        goes_on = any(local_calls(draft.content) for draft in answered.messages)
        move = worker_moves.commit_step if goes_on else worker_moves.finish_turn
        return await self.committer.commit(job, lambda row: move(row, step))

    async def _cut_short(self, job: Job, setting: Setting) -> Applied:
        """What was said is kept, as if somebody had stopped it."""
        heard = job.heard_of(job.chat.history_version)
        at = self.env.clock.now().isoformat()
        return await self.committer.fail(
            job,
            TOO_LONG,
            messages=() if heard is None else heard.so_far(at),
            usage=() if heard is None else heard.paid(),
            client_tools=setting.client_names,
        )

    async def _failed(self, job: Job, setting: Setting, failed: CallFailed) -> Applied:
        self._tell(job, setting, failed)
        compactable = self.summarizing.possible(job.work.history)
        decision = decide_retry(failed.classified, job.chat.attempt, compactable=compactable)
        match decision:
            case RetryAfter():
                return await self._retry(job, failed, decision.delay_s)
            case CompactFirst():
                # An attempt of its own, so that viewers see the summary instead of what failed.
                await self._retry(job, failed, 0.0)
                return await self.compact(job, setting, None)
            case GiveUp():
                return await self.committer.fail(job, failed.classified.error, usage=failed.paid)
            case _:
                assert_never(decision)

    async def _no_summary(self, job: Job, failed: CallFailed) -> Applied:
        decision = decide_retry(failed.classified, job.chat.attempt)
        if isinstance(decision, RetryAfter):
            return await self._retry(job, failed, decision.delay_s)
        return await self.committer.fail(job, failed.classified.error, usage=failed.paid)

    async def _retry(self, job: Job, failed: CallFailed, delay_s: float) -> Applied:
        """The wait is in the row first: who comes now sees it, and who takes over goes on."""
        now = self.env.clock.now()
        state = retry_state(failed.classified, job.chat.attempt, delay_s, now)
        retry = Retry(fence=Fence.of(job.chat), state=state, usage=failed.paid)
        applied = await self.committer.commit(
            job, lambda row: worker_moves.record_retry(row, retry)
        )
        job.pause_s = delay_s
        return applied

    def _tell(self, job: Job, setting: Setting, failed: CallFailed) -> None:
        self.env.emit(
            "model_failed",
            chat_id=job.chat.id,
            error_kind=failed.classified.kind,
            attempt=job.chat.attempt,
            provider=setting.config.provider,
        )
