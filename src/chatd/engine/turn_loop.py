"""What a runner does with its chat: one action, one commit, and again.

Owns the loop, tools and stops. What to do is `decide`'s to say; steps that call a model have a
module of their own.
"""

import asyncio
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain import worker_moves
from chatd.domain.chat import Chat, ChatError, Episode, Fence
from chatd.domain.classify import classify
from chatd.domain.commands import Step
from chatd.domain.decide import (
    Action,
    Compact,
    Fail,
    Finish,
    Generate,
    RequireAction,
    RunTools,
    next_action,
)
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.failures import ModelFailed
from chatd.domain.messages import Draft, UsageEntry
from chatd.domain.model import ProviderFailed
from chatd.domain.partial import LivePart, last_words
from chatd.domain.ports import Env, Models, ToolSource
from chatd.engine.attempt import Job
from chatd.engine.commit import Committer
from chatd.engine.model_step import ModelStep
from chatd.engine.title_generator import TitleGenerator
from chatd.engine.tool_runner import ToolBatchRun, ToolDeps
from chatd.engine.turn_context import Setting, setting_for
from chatd.parts.episodes import Episodes
from chatd.parts.replay import live_parts, read_episode
from chatd.store import chats, usage
from chatd.store.transact import Applied

READ_RETRY_S: Final = 0.5
PREPARE_S: Final = 60.0

NOT_PREPARED: Final = ChatError(
    kind="timeout", message="The chat's model and tools could not be looked up in time."
)


class TurnLoopDeps(Struct, frozen=True, kw_only=True):
    """What the actions are done with."""

    committer: Committer
    episodes: Episodes
    models: Models
    tools: ToolSource
    asking: ModelStep
    shop: ToolDeps
    naming: TitleGenerator | None = None
    env: Env


class TurnLoop:
    """Satisfies `runner.Actions`."""

    def __init__(self, means: TurnLoopDeps) -> None:
        self._means = means
        self._env = means.env
        self._conn = means.shop.conn
        self._commit = means.committer.commit

    async def generate(self, job: Job) -> None:
        """Until the chat is at rest, waits for somebody, or is let go."""
        while job.goes_on():
            if job.stopping:
                await self._let_go(job)
                return
            await self._step(job)
            await job.rest()

    async def interrupt(self, job: Job) -> None:
        """Save what was said and done so far; then the next message, or rest."""
        fence, at = Fence.of(job.chat), self._env.clock.now().isoformat()
        step = Step(fence=fence, keep_owner=not job.stopping)
        heard = job.heard_of(job.chat.history_version)
        if heard is not None:
            step = replace(step, messages=heard.so_far(at), usage=heard.paid())
        elif job.first:
            step = replace(step, messages=await self._overheard(job, at))
        await self._commit(job, lambda row: worker_moves.finish_interrupt(row, step))
        await self.generate(job)

    async def fail(self, job: Job, error: ChatError) -> None:
        """A turn that was being stopped anyway has no use for an error. What was said may be
        the cause, and so may what it cost: it ends without."""
        owed = job.owed()
        if job.chat.status == "running":
            await self._means.committer.fail(job, error)
        else:
            step = Step(fence=Fence.of(job.chat), keep_owner=False)
            await self._commit(job, lambda row: worker_moves.finish_interrupt(row, step))
        await self._book(job.chat, owed)

    async def read(self, job: Job) -> Chat | None:
        while True:
            try:
                return await chats.get(self._conn, job.chat.id)
            except Unavailable:
                await self._env.clock.sleep(READ_RETRY_S, "read_retry")

    async def book(self, job: Job) -> None:
        await self._book(job.chat, job.owed())

    async def _book(self, chat: Chat, owed: tuple[UsageEntry, ...]) -> None:
        """Beside the row, which is not ours any more. Nobody waits for books that do not open."""
        for entry in owed:
            try:
                await usage.book(self._conn, chat, entry)
            except ChatdError as error:
                self._env.emit("not_booked", chat_id=chat.id, error_kind=error.code)

    async def _let_go(self, job: Job) -> None:
        me, epoch = job.me, job.chat.epoch
        await self._commit(job, lambda row: worker_moves.release(row, me, epoch))

    # One step

    async def _step(self, job: Job) -> Applied:
        await self._means.shop.lease.wait_healthy()
        try:
            setting = await self._prepare(job)
        except ModelFailed as failed:
            return await self._means.committer.fail(job, failed.classified.error)
        except ProviderFailed as failed:
            return await self._means.committer.fail(job, classify(failed.fault).error)
        except TimeoutError:
            return await self._means.committer.fail(job, NOT_PREPARED)
        action = next_action(job.work.history, job.chat, setting.rules)
        self._env.emit(
            "action", chat_id=job.chat.id, task=type(action).__name__, attempt=job.chat.attempt
        )
        return await self._act(job, setting, action)

    async def _prepare(self, job: Job) -> Setting:
        """History, and what the step is done with. A database that is away is waited for;
        whoever else does not answer is not."""
        while True:
            try:
                await job.work.load(self._conn)
                async with asyncio.timeout(PREPARE_S):
                    return await setting_for(job.chat, self._means.models, self._means.tools)
            except Unavailable:
                await self._env.clock.sleep(READ_RETRY_S, "read_retry")

    async def _act(self, job: Job, setting: Setting, action: Action) -> Applied:
        match action:
            case Generate():
                if self._means.naming is not None:
                    self._means.naming.consider(job.chat, job.work.history, setting.choice)
                return await self._means.asking.ask(job, setting)
            case RunTools():
                return await self._run_tools(job, setting, action)
            case Compact():
                return await self._means.asking.compact(job, setting, action)
            case RequireAction():
                step = _empty(job, setting)
                return await self._commit(job, lambda row: worker_moves.require_action(row, step))
            case Finish():
                step = _empty(job, setting)
                return await self._commit(job, lambda row: worker_moves.finish_turn(row, step))
            case Fail():
                return await self._means.committer.fail(job, action.error)
            case _:
                assert_never(action)

    async def _run_tools(self, job: Job, setting: Setting, action: RunTools) -> Applied:
        chat = job.chat
        recorder = self._means.episodes.open(Episode.of(chat))
        run = ToolBatchRun(chat, setting, action.calls, shop=self._means.shop, recorder=recorder)
        job.hears(run)
        try:
            await run.run()
            drafts = run.so_far(self._env.clock.now().isoformat())
            for draft in drafts:
                recorder.add("tool", draft.content)
        finally:
            recorder.close()
        step = Step(
            fence=Fence.of(chat),
            messages=drafts,
            client_tools=setting.client_names,
            keep_owner=not job.stopping,
        )
        return await self._commit(job, lambda row: worker_moves.commit_step(row, step))

    # What another worker had heard

    async def _overheard(self, job: Job, at: str) -> tuple[Draft, ...]:
        """From what viewers were shown, before the chat was taken from whoever heard it. However
        often it was taken over since: whoever takes a stop over begins no episode."""
        chat = job.chat
        return last_words(chat, await self._shown(Episode.of(chat)), at)

    async def _shown(self, episode: Episode) -> tuple[LivePart, ...]:
        """It may have been this very replica, and what it showed not be written down yet."""
        tape = self._means.episodes.find(episode.chat_id)
        if tape is not None and tape.episode == episode:
            return live_parts(tape.events)
        while True:
            try:
                return await read_episode(self._conn, episode)
            except Unavailable:
                await self._env.clock.sleep(READ_RETRY_S, "read_retry")


def _empty(job: Job, setting: Setting) -> Step:
    return Step(
        fence=Fence.of(job.chat),
        client_tools=setting.client_names,
        keep_owner=not job.stopping,
    )
