"""The runners of this worker: one for each chat that it owns, under the epoch that it owns.

Starts a runner when a row says that the chat is owned here, passes rows on, and releases the chat
of a crashed runner. A runner with an old epoch stops by itself; until then the pool holds both.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from chatd.aio import TaskReaper, run_contained
from chatd.domain.chat.commands import ReapChat, ReleaseChat
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.attempt import Committer
from chatd.engine.runner import Runner
from chatd.engine.slots import Slots
from chatd.engine.turn_loop import TurnLoop
from chatd.store.chat.operation import AppliedChange


class RunnerPool:
    """Starts runners only while `run` runs. `on_runner_left` gets the last row of a runner."""

    def __init__(
        self,
        worker_id: WorkerId,
        env: Env,
        turn_loop: TurnLoop,
        *,
        committer: Committer,
        task_reaper: TaskReaper,
        slots: Slots,
        on_runner_left: Callable[[Chat], None],
    ) -> None:
        self._worker_id = worker_id
        self._env = env
        self._turn_loop = turn_loop
        self._committer = committer
        self._task_reaper = task_reaper
        self._slots = slots
        self._on_runner_left = on_runner_left
        self._runners: dict[ChatId, Runner] = {}
        self._tasks: dict[asyncio.Task[None], Runner] = {}
        self._releases: set[asyncio.Task[bool]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._closed = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._runners)

    def __iter__(self) -> Iterator[ChatId]:
        return iter(self._runners)

    def epochs(self) -> Mapping[ChatId, int]:
        return {chat_id: runner.epoch for chat_id, runner in self._runners.items()}

    def last_row(self, chat_id: ChatId) -> Chat | None:
        """The newest row that the chat's runner here has accepted."""
        runner = self._runners.get(chat_id)
        return None if runner is None else runner.chat

    # Life cycle

    async def run(self) -> None:
        """Return when the pool is closed and every runner has ended."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._closed.wait()
            finally:
                self._group = None

    def drain(self) -> None:
        """Runners finish the step in progress and release. New chats are released at once."""
        self._is_draining = True
        for runner in self._tasks.values():
            runner.drain()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def close(self) -> None:
        """Cancel all runners and releases, with a short grace."""
        self._closed.set()
        self._task_reaper.shorten_grace()
        self.cancel_all()
        for task in self._releases:
            task.cancel()

    def cancel_all(self) -> None:
        """Stop every runner at once; a cancelled runner writes nothing."""
        for task in self._tasks:
            task.cancel()

    # Rows

    def on_row(self, chat: Chat, created: AppliedChange | None = None) -> None:
        """`created` is the write that created the chat; its messages are the whole history."""
        runner = self._runners.get(chat.id)
        if runner is not None:
            runner.on_row(chat)
        if chat.worker_id == self._worker_id and (runner is None or runner.epoch < chat.epoch):
            self._start(chat, created)

    def on_chat_deleted(self, chat_id: ChatId) -> None:
        for task, runner in self._tasks.items():
            if runner.chat.id == chat_id:
                task.cancel()

    def _start(self, chat: Chat, created: AppliedChange | None) -> None:
        if self._group is None or self._closed.is_set():
            return
        if self._is_draining:
            self._start_release(self._group, chat)
            return
        runner = Runner(
            chat,
            self._worker_id,
            self._turn_loop,
            self._env,
            self._task_reaper,
            history=None if created is None else created.messages,
        )
        self._runners[chat.id] = runner
        self._slots.occupy(chat)
        task = self._group.create_task(self._run(runner), name=f"runner {chat.id}")
        self._tasks[task] = runner
        self._empty.clear()
        task.add_done_callback(self._on_done)

    async def _run(self, runner: Runner) -> None:
        """A crash of one runner must not end the others."""
        chat = runner.chat
        succeeded = await run_contained(
            runner.run(),
            lambda error: self._env.emit("runner_crashed", chat_id=chat.id, error=error),
        )
        if not succeeded:
            await run_contained(self._reap(runner), lambda error: self._on_refused(chat, error))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A callback, because a task that is cancelled before it starts never runs its code."""
        runner = self._tasks.pop(task)
        if self._runners.get(runner.chat.id) is runner:
            del self._runners[runner.chat.id]
            self._slots.free_slot(runner.chat.id)
        if not self._tasks:
            self._empty.set()
        self._on_runner_left(runner.chat)

    # Chats that cannot run here

    def _start_release(self, group: asyncio.TaskGroup, chat: Chat) -> None:
        command = ReleaseChat(worker_id=self._worker_id, epoch=chat.epoch)
        release = self._committer.run(chat.id, command)
        contained = run_contained(release, lambda error: self._on_refused(chat, error))
        task = group.create_task(contained, name=f"release {chat.id}")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _reap(self, runner: Runner) -> None:
        """Count a crash like the death of a worker, so that repeated crashes fail the chat."""
        command = ReapChat(worker_ids=frozenset({self._worker_id}), epoch=runner.epoch)
        await self._committer.run(runner.chat.id, command)

    def _on_refused(self, chat: Chat, error: Exception) -> None:
        """Another writer changed the chat, or the database is away. In the second case a
        heartbeat finds that no runner here has the chat."""
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("release_refused", chat_id=chat.id, error_kind=kind)
