"""One chat under one epoch on this worker: decide, act, commit, decide again.

Owns the task that acts and what cancels it. Rows come in from outside (own
commits of others, hints that led to a read, the tick); `react` judges them.
A cancelled action writes nothing: what is next, the row says.
"""

import asyncio
from typing import Final, Protocol

from chatd.domain.chat import Chat, ChatError
from chatd.domain.errors import ChatdError, StaleFence
from chatd.domain.ids import WorkerId
from chatd.domain.messages import Draft
from chatd.domain.ports import Env
from chatd.domain.react import Ignore, Leave, Note, Reaction, Restart, RunnerView, Task, Wait, react
from chatd.engine.work import Work

CANCEL_WITHIN_S: Final = 5.0


class Heard(Protocol):
    """What an action has so far: a stop keeps it."""

    def so_far(self, at: str) -> tuple[Draft, ...]: ...


class Actions(Protocol):
    """What a runner can do with a chat. Each returns when the chat is no longer to be run, or
    raises; in between it calls `step` around every commit."""

    async def generate(self, runner: "Runner") -> None: ...
    async def interrupt(self, runner: "Runner") -> None: ...
    async def fail(self, runner: "Runner", error: ChatError) -> None: ...
    async def read(self, runner: "Runner") -> Chat | None: ...


class Runner:
    def __init__(self, work: Work, me: WorkerId, actions: Actions, env: Env) -> None:
        self.work = work
        self.me = me
        self.epoch = work.chat.epoch
        self.heard: Heard | None = None
        self.pause_s = 0.0
        self._actions = actions
        self._env = env
        self._view: RunnerView | None = None
        self._newest: Chat | None = None
        self._news = asyncio.Event()
        self._stopping = False
        self._abandoned = False

    def hear(self, row: Chat) -> None:
        """The row as somebody has read or written it. Late and repeated ones do no harm."""
        newest = self._newest
        if newest is None or row.snapshot_version > newest.snapshot_version:
            self._newest = row
            self._news.set()

    @property
    def stopping(self) -> bool:
        """The worker is leaving: finish the step under way, then let go."""
        return self._stopping

    def stop_after_step(self) -> None:
        self._stopping = True

    def abandon(self) -> None:
        """The lease has run out: stop at once and write nothing."""
        self._abandoned = True
        self._news.set()

    def writing(self) -> None:
        if self._view is not None:
            self._view = self._view.committing()

    def wrote(self, chat: Chat | None) -> None:
        """Our write landed and made this row; None if it did not, or nobody can say."""
        if self._view is None:
            return
        self._view = self._view.refused() if chat is None else self._view.after(chat)
        if self._newest is not None:
            self._news.set()

    async def run(self) -> None:
        """Until the chat is somebody else's, or at rest."""
        reaction = react(None, self.work.chat, self.me)
        while isinstance(reaction, Restart):
            self._view = reaction.view
            reaction = await self._carry_out(reaction.task)
        self._env.emit("runner_left", chat_id=self.work.chat.id, epoch=self.epoch)

    async def _carry_out(self, task: Task) -> Reaction:
        job = asyncio.get_running_loop().create_task(
            self._job(task), name=f"{task} {self.work.chat.id}"
        )
        try:
            reaction = await self._watch(job)
        finally:
            await self._end(job)
        return reaction

    async def _job(self, task: Task) -> None:
        self._env.emit("task_started", chat_id=self.work.chat.id, task=task, epoch=self.epoch)
        if task == "generate":
            await self._actions.generate(self)
        else:
            await self._actions.interrupt(self)

    async def _watch(self, job: asyncio.Task[None]) -> Reaction:
        while True:
            news = asyncio.get_running_loop().create_task(self._news.wait())
            try:
                await asyncio.wait({job, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if job.done():
                return await self._after(job)
            reaction = self._judge()
            if isinstance(reaction, Leave | Restart):
                return reaction

    def _judge(self) -> Reaction:
        self._news.clear()
        if self._abandoned:
            return Leave()
        row = self._newest
        if row is None:
            return Ignore()
        reaction = react(self._view, row, self.me)
        match reaction:
            case Note():
                self._view = reaction.view
                self.work.moved(row)
            case Restart():
                self.work.moved(row)
            case Ignore():
                self._newest = None
            case Wait() | Leave():
                pass
        return reaction

    async def _after(self, job: asyncio.Task[None]) -> Reaction:
        """The action has ended by itself: well, outrun by somebody else, or with a bug."""
        error = job.exception()
        if error is None:
            return Leave()
        if not isinstance(error, StaleFence):
            await self._fail(error)
            return Leave()
        # Somebody else moved the chat and we have not heard yet: look for ourselves.
        self.wrote(None)
        row = await self._actions.read(self)
        if row is None:
            return Leave()
        self.hear(row)
        reaction = self._judge()
        return reaction if isinstance(reaction, Restart) else Leave()

    async def _fail(self, error: BaseException) -> None:
        """Whatever it was, it must not leave a chat that says it is running."""
        code = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("runner_failed", chat_id=self.work.chat.id, error_kind=code, error=error)
        told = ChatError(kind="internal", message="The server failed while working on this chat.")
        try:
            await self._actions.fail(self, told)
        except StaleFence:
            self._env.emit("runner_outrun", chat_id=self.work.chat.id)

    async def _end(self, job: asyncio.Task[None]) -> None:
        """A tool that does not listen is left behind: whatever it still does is fenced."""
        if job.done():
            return
        job.cancel()
        await asyncio.wait({job}, timeout=CANCEL_WITHIN_S)
        if not job.done():
            self._env.emit("task_left_behind", chat_id=self.work.chat.id)
