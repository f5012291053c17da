"""One chat under one epoch on this worker.

Owns the task that works on the chat, and its cancellation. Rows arrive from writes of this
replica, from reads after hints, and from heartbeats; `decide_reaction` says what each means. A
cancelled task writes nothing: the row says what is next.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from chatd.aio import TaskReaper
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.decisions import (
    DeferRow,
    IgnoreRow,
    Reaction,
    RestartTask,
    StopRunner,
    Task,
    UpdateView,
    decide_reaction,
)
from chatd.domain.errors import ChatdError, NotFound, StaleFence
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.engine.attempt import Attempt
from chatd.engine.turn_loop import TurnLoop

RUNNER_CRASHED_ERROR: Final = ChatError(
    kind="internal", message="The server failed while working on this chat."
)


class Runner:
    """To stop it at once, cancel the task that runs it. `history` is known for a new chat."""

    def __init__(
        self,
        chat: Chat,
        worker_id: WorkerId,
        turn_loop: TurnLoop,
        env: Env,
        task_reaper: TaskReaper,
        *,
        history: Sequence[Message] | None = None,
    ) -> None:
        self.epoch = chat.epoch
        self._worker_id = worker_id
        self._turn_loop = turn_loop
        self._env = env
        self._task_reaper = task_reaper
        self._newest: Chat | None = None
        self._row_changed = asyncio.Event()
        self._attempt = Attempt(chat, worker_id, env.clock, self._row_changed, history=history)

    @property
    def chat(self) -> Chat:
        return self._attempt.chat

    def on_row(self, row: Chat) -> None:
        """A row that was read or written. It may be late or repeated."""
        newest = self._newest
        if newest is None or row.snapshot_version > newest.snapshot_version:
            self._newest = row
            self._row_changed.set()

    def drain(self) -> None:
        self._attempt.drain()

    async def run(self) -> None:
        """Return when the chat waits or another worker owns it."""
        try:
            reaction = decide_reaction(None, self.chat, self._worker_id)
            while isinstance(reaction, RestartTask):
                reaction = await self._run_task(reaction.task)
                if isinstance(reaction, RestartTask):
                    self._attempt = self._attempt.next()
            # The next owner does not know the usage of a step that it replaced.
            await self._turn_loop.record_usage(self.chat, self._attempt.unrecorded_usage())
        finally:
            self._env.emit("runner_left", chat_id=self.chat.id, epoch=self.epoch)

    async def _run_task(self, task: Task) -> Reaction:
        attempt = self._attempt
        self._env.emit("task_started", chat_id=attempt.chat.id, task=task, epoch=self.epoch)
        run = self._turn_loop.generate if task == "generate" else self._turn_loop.interrupt
        running = asyncio.get_running_loop().create_task(
            run(attempt), name=f"{task} {attempt.chat.id}"
        )
        try:
            return await self._watch(attempt, running)
        finally:
            attempt.end()
            await self._task_reaper.stop(running)

    async def _watch(self, attempt: Attempt, running: asyncio.Task[None]) -> Reaction:
        while True:
            changed = asyncio.get_running_loop().create_task(self._row_changed.wait())
            try:
                await asyncio.wait({running, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if running.done():
                return await self._after_task(attempt, running)
            reaction = self._judge(attempt)
            if isinstance(reaction, StopRunner | RestartTask):
                return reaction

    def _judge(self, attempt: Attempt) -> Reaction:
        self._row_changed.clear()
        row = self._newest
        if row is None:
            return IgnoreRow()
        reaction = decide_reaction(attempt.view, row, self._worker_id)
        match reaction:
            case UpdateView():
                attempt.view = reaction.view
                attempt.chat = row
            case RestartTask():
                attempt.chat = row
            case IgnoreRow():
                self._newest = None
            case DeferRow() | StopRunner():
                pass
        return reaction

    async def _after_task(self, attempt: Attempt, running: asyncio.Task[None]) -> Reaction:
        """The task ended by itself: finished, fenced off, or with a bug. A cancellation that the
        runner did not send is a bug of the code that the task called."""
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if error is None:
            return StopRunner()
        if isinstance(error, StaleFence | NotFound):
            return await self._read_row(attempt)
        code = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("runner_failed", chat_id=attempt.chat.id, error_kind=code, error=error)
        try:
            # After any failure the row must not stay in status running.
            await self._turn_loop.fail(attempt, RUNNER_CRASHED_ERROR)
        except (StaleFence, NotFound):
            return await self._read_row(attempt)
        return StopRunner()

    async def _read_row(self, attempt: Attempt) -> Reaction:
        """Another writer changed the row, which has not arrived here yet."""
        attempt.end_write(None)
        row = await self._turn_loop.read_row(attempt.chat)
        if row is None:
            return StopRunner()
        self.on_row(row)
        reaction = self._judge(attempt)
        return reaction if isinstance(reaction, RestartTask) else StopRunner()
