"""One chat under one epoch on this worker: decide, act, commit, decide again.

Owns the task that acts and what cancels it. Rows come in from outside (writes of this replica,
hints that led to a read, the tick); `react` judges them. A cancelled task writes nothing: what
is next, the row says.
"""

import asyncio
from typing import Protocol

from chatd.domain.chat import Chat, ChatError
from chatd.domain.errors import ChatdError, NotFound, StaleFence
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.domain.react import Ignore, Leave, Note, Reaction, Restart, Task, Wait, react
from chatd.engine.attempt import Job, Work
from chatd.engine.tasks import TaskReaper

BROKEN = ChatError(kind="internal", message="The server failed while working on this chat.")


class Actions(Protocol):
    """What can be done with a chat. Each returns when the chat is no longer to be run here, or
    raises; every commit in between goes through the job's right to write."""

    async def generate(self, job: Job) -> None: ...
    async def interrupt(self, job: Job) -> None: ...
    async def fail(self, job: Job, error: ChatError) -> None: ...
    async def read(self, job: Job) -> Chat | None: ...
    async def book(self, job: Job) -> None: ...


class Runner:
    """To stop it at once, cancel the task that runs it."""

    def __init__(
        self, work: Work, me: WorkerId, actions: Actions, env: Env, left: TaskReaper
    ) -> None:
        self.work = work
        self.epoch = work.chat.epoch
        self._me = me
        self._actions = actions
        self._env = env
        self._left = left
        self._job: Job | None = None
        self._newest: Chat | None = None
        self._news = asyncio.Event()
        self._stopping = False

    def hear(self, row: Chat) -> None:
        """The row as somebody has read or written it. Late and repeated ones do no harm."""
        newest = self._newest
        if newest is None or row.snapshot_version > newest.snapshot_version:
            self._newest = row
            self._news.set()

    def stop_after_step(self) -> None:
        self._stopping = True
        if self._job is not None:
            self._job.stop_after_step()

    async def run(self) -> None:
        """Until the chat is somebody else's, or at rest."""
        try:
            reaction = react(None, self.work.chat, self._me)
            while isinstance(reaction, Restart):
                reaction = await self._carry_out(self._next_job(reaction), reaction.task)
            if self._job is not None:
                # Whoever has taken the step's place does not know what it cost.
                await self._actions.book(self._job)
        finally:
            self._env.emit("runner_left", chat_id=self.work.chat.id, epoch=self.epoch)

    def _next_job(self, restart: Restart) -> Job:
        job = Job(self.work, self._me, restart.view, self._env.clock, self._news)
        if self._job is not None:
            job.before = self._job.heard_of(restart.view.history_version)
            job.first = False
        if self._stopping:
            job.stop_after_step()
        self._job = job
        return job

    async def _carry_out(self, job: Job, task: Task) -> Reaction:
        name = f"{task} {self.work.chat.id}"
        acting = asyncio.get_running_loop().create_task(self._act(job, task), name=name)
        try:
            return await self._watch(job, acting)
        finally:
            job.end()
            await self._left.stop(acting)

    async def _act(self, job: Job, task: Task) -> None:
        self._env.emit("task_started", chat_id=job.chat.id, task=task, epoch=self.epoch)
        if task == "generate":
            await self._actions.generate(job)
        else:
            await self._actions.interrupt(job)

    async def _watch(self, job: Job, acting: asyncio.Task[None]) -> Reaction:
        while True:
            news = asyncio.get_running_loop().create_task(self._news.wait())
            try:
                await asyncio.wait({acting, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if acting.done():
                return await self._after(job, acting)
            reaction = self._judge(job)
            if isinstance(reaction, Leave | Restart):
                return reaction

    def _judge(self, job: Job) -> Reaction:
        self._news.clear()
        row = self._newest
        if row is None:
            return Ignore()
        reaction = react(job.view, row, self._me)
        match reaction:
            case Note():
                job.view = reaction.view
                self.work.moved(row)
            case Restart():
                self.work.moved(row)
            case Ignore():
                self._newest = None
            case Wait() | Leave():
                pass
        return reaction

    async def _after(self, job: Job, acting: asyncio.Task[None]) -> Reaction:
        """The task has ended by itself: well, outrun by somebody else, or with a bug. One that
        says it was cancelled, and not by us, is a bug of somebody it called."""
        error = asyncio.CancelledError() if acting.cancelled() else acting.exception()
        if error is None:
            return Leave()
        if isinstance(error, StaleFence | NotFound):
            return await self._look(job)
        code = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("runner_failed", chat_id=job.chat.id, error_kind=code, error=error)
        try:
            # Whatever it was, it must not leave a chat that says it is running.
            await self._actions.fail(job, BROKEN)
        except (StaleFence, NotFound):
            return await self._look(job)
        return Leave()

    async def _look(self, job: Job) -> Reaction:
        """Somebody else has moved the chat and we have not heard yet."""
        job.wrote(None)
        row = await self._actions.read(job)
        if row is None:
            return Leave()
        self.hear(row)
        reaction = self._judge(job)
        return reaction if isinstance(reaction, Restart) else Leave()
