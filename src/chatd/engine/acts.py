"""What a runner does with its chat: one action, one commit, and again.

Owns the loop and the commits. What to do is `decide`'s to say; how a model is
called, tools are run and a summary is made have modules of their own.
"""

import asyncio
from collections.abc import Callable
from typing import Final, assert_never

from msgspec import Struct

from chatd.domain import worker_moves
from chatd.domain.change import Change
from chatd.domain.chat import Chat, ChatError, Episode, Fence
from chatd.domain.commands import Failure, Retry, Step
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
from chatd.domain.errors import StaleFence, Unavailable
from chatd.domain.failures import Classified, ModelFailed
from chatd.domain.messages import Draft, local_calls
from chatd.domain.partial import partial
from chatd.domain.ports import Env, Models, ToolSource
from chatd.domain.retry import CompactFirst, GiveUp, RetryAfter, decide_retry, retry_state
from chatd.domain.step_rows import result_messages
from chatd.engine.answering import Answered, Answering
from chatd.engine.commit import Committer
from chatd.engine.run_tools import ToolRun
from chatd.engine.runner import Runner
from chatd.engine.setting import Setting, setting_for
from chatd.engine.summarizing import Summarizing
from chatd.parts.episodes import Episodes
from chatd.parts.replay import read_episode
from chatd.store import chats
from chatd.store.conn import Conn
from chatd.store.transact import Applied

STEP_S: Final = 900.0
READ_RETRY_S: Final = 0.5
"""A step that takes longer is given up; silence and slow tools have shorter limits."""

TOO_LONG: Final = ChatError(
    kind="timeout", message="The step took longer than a step may take.", retryable=True
)


class Means(Struct, frozen=True, kw_only=True):
    """What the actions are done with."""

    conn: Conn
    committer: Committer
    episodes: Episodes
    models: Models
    tools: ToolSource
    env: Env
    answering: Answering
    summarizing: Summarizing


class Acts:
    """Satisfies `runner.Actions`."""

    def __init__(self, means: Means) -> None:
        self._means = means

    async def generate(self, runner: Runner) -> None:
        """Until the chat is at rest, waits for somebody, or is let go."""
        while True:
            try:
                async with asyncio.timeout(STEP_S):
                    applied = await self._step(runner)
            except TimeoutError:
                await self.fail(runner, TOO_LONG)
                return
            if applied.chat.worker_id != runner.me or applied.chat.status != "running":
                return
            if runner.pause_s:
                await self._means.env.clock.sleep(runner.pause_s, "retry_backoff")
                runner.pause_s = 0.0

    async def interrupt(self, runner: Runner) -> None:
        """Save what was said and done so far; then the next message, or rest."""
        chat = runner.work.chat
        at = self._means.env.clock.now().isoformat()
        messages = await self._said_so_far(runner, at)
        runner.heard = None
        step = Step(fence=Fence.of(chat), messages=messages, keep_owner=not runner.stopping)
        applied = await self._commit(runner, lambda row: worker_moves.finish_interrupt(row, step))
        if applied.chat.worker_id == runner.me and applied.chat.status == "running":
            await self.generate(runner)

    async def fail(self, runner: Runner, error: ChatError) -> None:
        step = Step(fence=Fence.of(runner.work.chat))
        failure = Failure(step=step, error=error)
        await self._commit(runner, lambda row: worker_moves.fail_turn(row, failure))

    async def read(self, runner: Runner) -> Chat | None:
        while True:
            try:
                return await chats.get(self._means.conn, runner.work.chat.id)
            except Unavailable:
                await self._means.env.clock.sleep(READ_RETRY_S, "read_retry")

    async def _step(self, runner: Runner) -> Applied:
        work = runner.work
        await self._load(runner)
        try:
            setting = await setting_for(work.chat, self._means.models, self._means.tools)
        except ModelFailed as failed:
            return await self._give_up(runner, failed.classified)
        action = next_action(work.history, work.chat, setting.rules)
        self._means.env.emit(
            "action", chat_id=work.chat.id, task=type(action).__name__, attempt=work.chat.attempt
        )
        return await self._act(runner, setting, action)

    async def _load(self, runner: Runner) -> None:
        while True:
            try:
                await runner.work.load(self._means.conn)
            except Unavailable:
                await self._means.env.clock.sleep(READ_RETRY_S, "read_retry")
            else:
                return

    async def _act(self, runner: Runner, setting: Setting, action: Action) -> Applied:
        match action:
            case Generate():
                return await self._call_model(runner, setting)
            case RunTools():
                return await self._run_tools(runner, setting, action)
            case Compact():
                return await self._compact(runner, setting, action)
            case RequireAction():
                step = self._empty(runner, setting)
                return await self._commit(
                    runner, lambda row: worker_moves.require_action(row, step)
                )
            case Finish():
                step = self._empty(runner, setting)
                return await self._commit(runner, lambda row: worker_moves.finish_turn(row, step))
            case Fail():
                failure = Failure(step=self._empty(runner, setting), error=action.error)
                return await self._commit(runner, lambda row: worker_moves.fail_turn(row, failure))
            case _:
                assert_never(action)

    def _empty(self, runner: Runner, setting: Setting) -> Step:
        return Step(
            fence=Fence.of(runner.work.chat),
            client_tools=setting.client_names,
            keep_owner=not runner.stopping,
        )

    # The model

    async def _call_model(self, runner: Runner, setting: Setting) -> Applied:
        fence = Fence.of(runner.work.chat)
        try:
            answered = await self._means.answering.answer(runner, setting)
        except ModelFailed as failed:
            return await self._failed(runner, setting, failed.classified)
        return await self._keep(runner, setting, fence, answered)

    async def _keep(
        self, runner: Runner, setting: Setting, fence: Fence, answered: Answered
    ) -> Applied:
        step = Step(
            fence=fence,
            messages=answered.messages,
            usage=answered.usage,
            client_tools=setting.client_names,
            keep_owner=not runner.stopping,
        )
        goes_on = any(local_calls(draft.content) for draft in answered.messages)
        move = worker_moves.commit_step if goes_on else worker_moves.finish_turn
        return await self._commit(runner, lambda row: move(row, step))

    async def _failed(self, runner: Runner, setting: Setting, failed: Classified) -> Applied:
        chat = runner.work.chat
        self._means.env.emit(
            "model_failed",
            chat_id=chat.id,
            error_kind=failed.kind,
            attempt=chat.attempt,
            provider=setting.config.provider,
        )
        compactable = self._means.summarizing.possible(runner.work.history)
        decision = decide_retry(failed, chat.attempt, compactable=compactable)
        match decision:
            case RetryAfter():
                return await self._wait_and_retry(runner, failed, decision)
            case CompactFirst():
                return await self._compact(runner, setting, None)
            case GiveUp():
                return await self._give_up(runner, failed)

    async def _wait_and_retry(
        self, runner: Runner, failed: Classified, decision: RetryAfter
    ) -> Applied:
        """The wait is in the row first: who comes now sees it, and who takes over goes on."""
        chat, clock = runner.work.chat, self._means.env.clock
        state = retry_state(failed, chat.attempt, decision.delay_s, clock.now())
        retry = Retry(fence=Fence.of(chat), state=state)
        applied = await self._commit(runner, lambda row: worker_moves.record_retry(row, retry))
        runner.pause_s = decision.delay_s
        return applied

    async def _give_up(self, runner: Runner, failed: Classified) -> Applied:
        failure = Failure(step=Step(fence=Fence.of(runner.work.chat)), error=failed.error)
        return await self._commit(runner, lambda row: worker_moves.fail_turn(row, failure))

    async def _compact(self, runner: Runner, setting: Setting, action: Compact | None) -> Applied:
        """A summary that was asked for is all that was asked for; any other goes on."""
        fence = Fence.of(runner.work.chat)
        try:
            rows, usage = await self._means.summarizing.summarize(runner, setting, action)
        except ModelFailed as failed:
            return await self._failed_summary(runner, failed.classified)
        step = Step(
            fence=fence,
            messages=rows,
            usage=usage,
            compacted=True,
            keep_owner=not runner.stopping,
        )
        manual = action is not None and action.source == "manual"
        move = worker_moves.finish_turn if manual else worker_moves.commit_step
        return await self._commit(runner, lambda row: move(row, step))

    async def _failed_summary(self, runner: Runner, failed: Classified) -> Applied:
        decision = decide_retry(failed, runner.work.chat.attempt)
        if isinstance(decision, RetryAfter):
            return await self._wait_and_retry(runner, failed, decision)
        return await self._give_up(runner, failed)

    # Tools

    async def _run_tools(self, runner: Runner, setting: Setting, action: RunTools) -> Applied:
        chat, env = runner.work.chat, self._means.env
        recorder = self._means.episodes.open(Episode.of(chat))
        run = ToolRun(chat, setting.tools, self._means.conn, env)
        runner.heard = run
        try:
            answers = run.refuse(action.calls) if action.refused else await run.run(action.calls)
            at = env.clock.now().isoformat()
            drafts = result_messages(answers, setting.config.context_limit, at)
            for draft in drafts:
                recorder.add("tool", draft.content)
        finally:
            recorder.close()
        step = Step(
            fence=Fence.of(chat),
            messages=drafts,
            client_tools=setting.client_names,
            keep_owner=not runner.stopping,
        )
        return await self._commit(runner, lambda row: worker_moves.commit_step(row, step))

    # Interrupt

    async def _said_so_far(self, runner: Runner, at: str) -> tuple[Draft, ...]:
        """From memory; or, if the worker that heard it is gone, from the journal."""
        if runner.heard is not None:
            return runner.heard.so_far(at)
        chat = runner.work.chat
        try:
            shown = await read_episode(self._means.conn, _interrupted(chat))
        except Unavailable:
            return ()
        found = partial(shown, chat.pending_calls, at)
        answer = Draft(
            role="assistant", content=found.content, model_config_id=chat.model_config_id
        )
        return (*((answer,) if found.content else ()), *found.results)

    async def _commit(self, runner: Runner, decide: Callable[[Chat], Change]) -> Applied:
        """Raises StaleFence also if an earlier try has landed: what has happened since, the
        row will tell."""
        work = runner.work
        runner.writing()
        try:
            applied = await self._means.committer.commit(work.chat, decide)
        except BaseException:
            runner.wrote(None)
            raise
        if applied.replayed:
            runner.wrote(None)
            raise StaleFence(f"Chat {work.chat.id} was written by an earlier try.")
        work.committed(applied)
        runner.wrote(applied.chat)
        runner.heard = None
        return applied


def _interrupted(chat: Chat) -> Episode:
    """The episode of the owner that is gone: taking the chat over has counted one attempt."""
    return Episode(chat.id, chat.history_version, chat.attempt - 1)
