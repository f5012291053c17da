"""The runners of this worker: one for each chat that is ours, under the epoch that is.

Owns starting them when a row says that a chat is ours, telling them of rows, and what becomes
of a chat whose runner has crashed. A runner whose chat has come back under a new epoch leaves
by itself; until it has left, both are here.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from chatd.domain import worker_moves
from chatd.domain.change import Change
from chatd.domain.chat import Chat
from chatd.domain.errors import ChatdError, StaleFence
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.attempt import Work
from chatd.engine.runner import Actions, Runner
from chatd.engine.slots import Slots
from chatd.engine.tasks import TaskReaper, run_contained
from chatd.store.transact import Applied, Operation, Transactor


class Roster:
    """`run` must be running; before and after nothing is started. `freed` is called when a
    runner has left, with the last row that it knew."""

    def __init__(
        self,
        me: WorkerId,
        env: Env,
        actions: Actions,
        *,
        transactor: Transactor,
        left: TaskReaper,
        slots: Slots,
        freed: Callable[[Chat], None],
    ) -> None:
        self._me = me
        self._env = env
        self._actions = actions
        self._transactor = transactor
        self._left = left
        self._slots = slots
        self._freed = freed
        self._runners: dict[ChatId, Runner] = {}
        self._shells: dict[asyncio.Task[None], Runner] = {}
        self._letting_go: set[asyncio.Task[bool]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._closed = asyncio.Event()
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._leaving = False

    def __len__(self) -> int:
        return len(self._runners)

    def __iter__(self) -> Iterator[ChatId]:
        return iter(self._runners)

    def epochs(self) -> Mapping[ChatId, int]:
        return {chat_id: runner.epoch for chat_id, runner in self._runners.items()}

    def known(self, chat_id: ChatId) -> Chat | None:
        """The row as its runner here knows it."""
        runner = self._runners.get(chat_id)
        return None if runner is None else runner.work.chat

    # Life

    async def run(self) -> None:
        """Until closed and everybody has left."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._closed.wait()
            finally:
                self._group = None

    def leave(self) -> None:
        """Runners finish the step under way and let go; whatever comes now is let go at once."""
        self._leaving = True
        for runner in self._shells.values():
            runner.stop_after_step()

    async def empty(self) -> None:
        await self._nobody.wait()

    def close(self) -> None:
        """Nobody is waited for longer than it takes to say so."""
        self._closed.set()
        self._left.shorten_grace()
        self.cut_off()
        for task in self._letting_go:
            task.cancel()

    def cut_off(self) -> None:
        """Everybody stops at once and writes nothing."""
        for shell in self._shells:
            shell.cancel()

    # Rows

    def hear(self, chat: Chat, created: Applied | None = None) -> None:
        """`created`: the write that made the chat, whose messages are all its history."""
        runner = self._runners.get(chat.id)
        if runner is not None:
            runner.hear(chat)
        if chat.worker_id == self._me and (runner is None or runner.epoch < chat.epoch):
            self._begin(chat, created)

    def gone(self, chat_id: ChatId) -> None:
        """There is no such chat any more."""
        for shell, runner in self._shells.items():
            if runner.work.chat.id == chat_id:
                shell.cancel()

    def _begin(self, chat: Chat, created: Applied | None) -> None:
        if self._group is None or self._closed.is_set():
            return
        if self._leaving:
            letting_go = run_contained(
                self._let_go(chat), lambda error: self._not_moved(chat, error)
            )
            task = self._group.create_task(letting_go, name=f"let go {chat.id}")
            self._letting_go.add(task)
            task.add_done_callback(self._letting_go.discard)
            return
        work = Work(chat)
        if created is not None:
            work.begun_with(created.messages)
        runner = Runner(work, self._me, self._actions, self._env, self._left)
        self._runners[chat.id] = runner
        self._slots.take(chat)
        shell = self._group.create_task(self._shell(runner), name=f"runner {chat.id}")
        self._shells[shell] = runner
        self._nobody.clear()
        shell.add_done_callback(self._left_by)

    async def _shell(self, runner: Runner) -> None:
        """A runner must not take the others with it."""
        chat = runner.work.chat
        fine = await run_contained(
            runner.run(),
            lambda error: self._env.emit("runner_crashed", chat_id=chat.id, error=error),
        )
        if not fine:
            await run_contained(self._write_off(runner), lambda error: self._not_moved(chat, error))

    def _left_by(self, shell: asyncio.Task[None]) -> None:
        """Not in the shell itself: one that is cut off before it has begun never runs."""
        runner = self._shells.pop(shell)
        chat = runner.work.chat
        if self._runners.get(chat.id) is runner:
            del self._runners[chat.id]
            self._slots.give_back(chat.id)
        if not self._shells:
            self._nobody.set()
        self._freed(chat)

    # Chats that cannot be run here

    async def _let_go(self, chat: Chat) -> None:
        await self._move(chat, lambda row: worker_moves.release(row, self._me, chat.epoch))

    async def _write_off(self, runner: Runner) -> None:
        """The chat counts it like the death of a worker: one that does this again and again
        ends in an error."""
        epoch = runner.epoch

        def decide(row: Chat) -> Change:
            if row.epoch != epoch:
                raise StaleFence(f"Chat {row.id} has moved on.")
            return worker_moves.reap(row, self._me)

        await self._move(runner.work.chat, decide)

    async def _move(self, chat: Chat, decide: Callable[[Chat], Change]) -> None:
        operation = Operation(
            chat_id=chat.id,
            change_id=self._env.new_change_id(),
            decide=lambda loaded: decide(loaded.chat),
        )
        await self._transactor.run(operation)

    def _not_moved(self, chat: Chat, error: Exception) -> None:
        """Somebody else has moved it. Or it cannot be written now, and the tick will find that
        nobody runs it."""
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("not_let_go", chat_id=chat.id, error_kind=kind)
