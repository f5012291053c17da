"""The chat tasks of this worker: one for each chat that it owns, under the epoch that it owns.

A chat task owns the asyncio task that works on its chat, and its cancellation. Rows arrive from
writes of this replica, from reads after hints, and from heartbeats; `decide_reaction` says what
each means. A cancelled task writes nothing: the row says what is next. The pool starts a chat task
when a row says that the chat is owned here, passes rows on, and releases the chat of a crashed chat
task. A chat task with an old epoch stops by itself; until then the pool holds both.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from chatd.aio import TaskReaper, run_contained
from chatd.domain.chat.commands import ReapChat, ReleaseChat
from chatd.domain.chat.lease import ISOLATION_S, is_isolated
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.decisions import (
    DeferRow,
    IgnoreRow,
    Reaction,
    RestartTask,
    StopChatTask,
    Task,
    UpdateView,
    decide_reaction,
)
from chatd.domain.errors import ChatdError, NotFound, StaleFence
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.model.attempt import Attempt, Committer
from chatd.engine.turn_loop import TurnLoop
from chatd.store.chat.operation import AppliedChange

TASK_CRASHED_ERROR: Final = ChatError(
    kind="internal", message="The server failed while working on this chat."
)


class ChatTask:
    """One chat under one epoch. To stop it at once, cancel the task that runs it. `created` is
    the write of a new chat: its history and tool policies are not read again."""

    def __init__(
        self,
        chat: Chat,
        worker_id: WorkerId,
        turn_loop: TurnLoop,
        env: Env,
        task_reaper: TaskReaper,
        *,
        created: AppliedChange | None = None,
    ) -> None:
        self.epoch = chat.epoch
        self.started_at = env.clock.monotonic()
        self._worker_id = worker_id
        self._turn_loop = turn_loop
        self._env = env
        self._task_reaper = task_reaper
        self._newest: Chat | None = None
        self._row_changed = asyncio.Event()
        self._attempt = Attempt(chat, worker_id, env.clock, self._row_changed, created=created)

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
                    self._start_attempt(reaction.task)
        finally:
            # Also if the chat task is cancelled: no commit will record the usage of its step.
            self._turn_loop.record_usage(self.chat, self._attempt.unrecorded_usage())
            self._env.emit("chat_task_left", chat_id=self.chat.id, epoch=self.epoch)

    def _start_attempt(self, task: Task) -> None:
        """Only an interrupt commits the partial answer and the usage of the attempt before."""
        ended, self._attempt = self._attempt, self._attempt.next()
        if task == "generate":
            self._attempt.clear_partial()
        if not self._attempt.has_partial:
            self._turn_loop.record_usage(self.chat, ended.unrecorded_usage())

    async def _run_task(self, task: Task) -> Reaction:
        attempt = self._attempt
        self._env.emit("task_started", chat_id=attempt.chat.id, task=task, epoch=self.epoch)
        run = self._turn_loop.generate if task == "generate" else self._turn_loop.interrupt
        running = asyncio.get_running_loop().create_task(
            run(attempt), name=f"{task} {attempt.chat.id}"
        )
        running.add_done_callback(lambda _: self._row_changed.set())
        try:
            return await self._watch(attempt, running)
        finally:
            attempt.end()
            await self._task_reaper.stop(running)

    async def _watch(self, attempt: Attempt, running: asyncio.Task[None]) -> Reaction:
        while True:
            await self._row_changed.wait()  # Set by the end of the task too.
            if running.done():
                return await self._after_task(attempt, running)
            reaction = self._judge(attempt)
            if isinstance(reaction, StopChatTask | RestartTask):
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
            case DeferRow() | StopChatTask():
                pass
        return reaction

    async def _after_task(self, attempt: Attempt, running: asyncio.Task[None]) -> Reaction:
        """The task ended by itself: finished, fenced off, or with a bug. A cancellation that the
        chat task did not send is a bug of the code that the task called."""
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if error is None:
            return StopChatTask()
        if isinstance(error, StaleFence | NotFound):
            return await self._read_row(attempt)
        code = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("chat_task_failed", chat_id=attempt.chat.id, error_kind=code, error=error)
        try:
            # After any failure the row must not stay in status running.
            await self._turn_loop.fail(attempt, TASK_CRASHED_ERROR)
        except (StaleFence, NotFound):
            return await self._read_row(attempt)
        return StopChatTask()

    async def _read_row(self, attempt: Attempt) -> Reaction:
        """Another writer changed the row, which has not arrived here yet."""
        attempt.end_write(None)
        row = await self._turn_loop.read_row(attempt.chat)
        if row is None:
            return StopChatTask()
        self.on_row(row)
        reaction = self._judge(attempt)
        return reaction if isinstance(reaction, RestartTask) else StopChatTask()


class ChatTasks:
    """Starts chat tasks only while `run` runs. `on_chat_task_left` gets the last row of a chat
    task.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        env: Env,
        turn_loop: TurnLoop,
        *,
        committer: Committer,
        task_reaper: TaskReaper,
        on_chat_task_left: Callable[[Chat], None],
    ) -> None:
        self._worker_id = worker_id
        self._env = env
        self._turn_loop = turn_loop
        self._committer = committer
        self._task_reaper = task_reaper
        self._on_chat_task_left = on_chat_task_left
        self._chat_tasks: dict[ChatId, ChatTask] = {}
        self._roots = 0
        self._tasks: dict[asyncio.Task[None], ChatTask] = {}
        self._releases: set[asyncio.Task[bool]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._closed = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._chat_tasks)

    def __iter__(self) -> Iterator[ChatId]:
        return iter(self._chat_tasks)

    def count(self, *, root: bool) -> int:
        """How many root chats run here, or how many subagents."""
        return self._roots if root else len(self._chat_tasks) - self._roots

    def has_new_isolated(self) -> bool:
        """Whether an isolated chat has run here for less than ISOLATION_S."""
        since = self._env.clock.monotonic() - ISOLATION_S
        chat_tasks = self._chat_tasks.values()
        return any(it.started_at > since and is_isolated(it.chat) for it in chat_tasks)

    def epochs(self) -> Mapping[ChatId, int]:
        return {chat_id: chat_task.epoch for chat_id, chat_task in self._chat_tasks.items()}

    def last_row(self, chat_id: ChatId) -> Chat | None:
        """The newest row that the chat's chat task here has accepted."""
        chat_task = self._chat_tasks.get(chat_id)
        return None if chat_task is None else chat_task.chat

    # Life cycle

    async def run(self) -> None:
        """Return when the pool is closed and every chat task has ended."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._closed.wait()
            finally:
                self._group = None

    def drain(self) -> None:
        """Chat tasks finish the step in progress and release. New chats are released at once."""
        self._is_draining = True
        for chat_task in self._tasks.values():
            chat_task.drain()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def close(self) -> None:
        """Cancel all chat tasks and releases, with a short grace."""
        self._closed.set()
        self._task_reaper.shorten_grace()
        self.cancel_all()
        for task in self._releases:
            task.cancel()

    def cancel_all(self) -> None:
        """Stop every chat task at once; a cancelled chat task writes nothing."""
        for task in self._tasks:
            task.cancel()

    # Rows

    def on_row(self, chat: Chat, created: AppliedChange | None = None) -> None:
        """`created` is the write that created the chat; its messages are the whole history."""
        chat_task = self._chat_tasks.get(chat.id)
        if chat_task is not None:
            chat_task.on_row(chat)
        if chat.worker_id == self._worker_id and (
            chat_task is None or chat_task.epoch < chat.epoch
        ):
            self._start(chat, created)

    def cancel(self, chat_id: ChatId) -> None:
        """The chat, or the past that its chat task has seen, no longer exists."""
        for task, chat_task in self._tasks.items():
            if chat_task.chat.id == chat_id:
                task.cancel()

    def _start(self, chat: Chat, created: AppliedChange | None) -> None:
        if self._group is None or self._closed.is_set():
            return
        if self._is_draining:
            self._start_release(self._group, chat)
            return
        chat_task = ChatTask(
            chat,
            self._worker_id,
            self._turn_loop,
            self._env,
            self._task_reaper,
            created=created,
        )
        if chat.id not in self._chat_tasks:
            self._roots += chat.is_root
        self._chat_tasks[chat.id] = chat_task
        task = self._group.create_task(self._run(chat_task), name=f"chat task {chat.id}")
        self._tasks[task] = chat_task
        self._empty.clear()
        task.add_done_callback(self._on_done)

    async def _run(self, chat_task: ChatTask) -> None:
        """A crash of one chat task must not end the others."""
        chat = chat_task.chat
        succeeded = await run_contained(
            chat_task.run(),
            lambda error: self._env.emit("chat_task_crashed", chat_id=chat.id, error=error),
        )
        if not succeeded:
            await run_contained(self._reap(chat_task), lambda error: self._on_refused(chat, error))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A callback, because a task that is cancelled before it starts never runs its code."""
        chat_task = self._tasks.pop(task)
        if self._chat_tasks.get(chat_task.chat.id) is chat_task:
            del self._chat_tasks[chat_task.chat.id]
            self._roots -= chat_task.chat.is_root
        if not self._tasks:
            self._empty.set()
        self._on_chat_task_left(chat_task.chat)

    # Chats that cannot run here

    def _start_release(self, group: asyncio.TaskGroup, chat: Chat) -> None:
        command = ReleaseChat(worker_id=self._worker_id, epoch=chat.epoch)
        release = self._committer.run(chat.id, command)
        contained = run_contained(release, lambda error: self._on_refused(chat, error))
        task = group.create_task(contained, name=f"release {chat.id}")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _reap(self, chat_task: ChatTask) -> None:
        """Count a crash like the death of a worker that ran this chat alone, so that repeated
        crashes fail the chat."""
        command = ReapChat(
            worker_ids=frozenset({self._worker_id}),
            epoch=chat_task.epoch,
            is_task_crash=True,
            jitter=self._env.jitter(),
            reaper=self._worker_id,
        )
        await self._committer.run(chat_task.chat.id, command)

    def _on_refused(self, chat: Chat, error: Exception) -> None:
        """Another writer changed the chat, or the database is away. In the second case a
        heartbeat finds that no chat task here has the chat."""
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("release_refused", chat_id=chat.id, error_kind=kind)
