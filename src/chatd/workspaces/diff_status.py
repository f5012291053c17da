"""The diff status of chats: refreshed behind their requests to workspace agents, coalesced.

A chat is marked at each request to its agent. Some seconds later the agent is asked once for the
sums of the whole chat, and the row is written only if they changed. No step waits for this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from chatd.domain.access import WORKER
from chatd.domain.chat.row import Chat, DiffStatus
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.domain.text import clip, model_text
from chatd.domain.workspace.agent_api import ScopedDiff
from chatd.store.chat import chats
from chatd.store.conn import Conn

DIFF_STATUS_DELAY_S: Final = 3.0
"""From the first request of a chat to its refresh; later requests in between are part of it."""
DIFF_STATUS_TIMEOUT_S: Final = 20.0
MAX_REFRESHES: Final = 8
"""At once: an agent that does not answer holds up one of them."""
MAX_DIRTY_CHATS: Final = 1000
MAX_BRANCH_CHARS: Final = 255
MAX_COUNT: Final = 1_000_000_000
"""An agent is not trusted, and each row of a chat list has this."""

ReadSums = Callable[[Chat], Awaitable[Sequence[ScopedDiff]]]


def sum_diffs(found: Sequence[ScopedDiff]) -> DiffStatus | None:
    """Over all repositories, with the branch of the one with most changes. None without any.
    Bounded, and in a form that can be stored."""
    if not found:
        return None
    main = max(found, key=lambda one: one.additions + one.deletions)
    return DiffStatus(
        branch=clip(model_text(main.branch), MAX_BRANCH_CHARS),
        base=clip(model_text(main.base), MAX_BRANCH_CHARS),
        additions=_count(one.additions for one in found),
        deletions=_count(one.deletions for one in found),
        changed_files=_count(one.changed_files for one in found),
    )


def _count(numbers: Iterable[int]) -> int:
    return min(max(sum(numbers), 0), MAX_COUNT)


class DiffStatusKeeper:
    """Refreshes only while `run` runs. `read` asks the agent of a chat."""

    def __init__(
        self, conn: Conn, env: Env, read: ReadSums, announce: Callable[[Chat, str], None]
    ) -> None:
        self._conn = conn
        self._env = env
        self._read = read
        self._announce = announce
        self._dirty: dict[ChatId, None] = {}
        self._has_work = asyncio.Event()

    def mark(self, chat_id: ChatId) -> None:
        if len(self._dirty) < MAX_DIRTY_CHATS:
            self._dirty[chat_id] = None
            self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            await self._env.clock.sleep(DIFF_STATUS_DELAY_S, "diff_status")
            dirty, self._dirty = self._dirty, {}
            self._has_work.clear()
            waiting = iter(dirty)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(MAX_REFRESHES, len(dirty))):
                    group.create_task(self._refresh_all(waiting))

    async def _refresh_all(self, waiting: Iterator[ChatId]) -> None:
        for chat_id in waiting:
            await self._refresh(chat_id)

    async def _refresh(self, chat_id: ChatId) -> None:
        """Best effort: an agent that is away is asked again at the chat's next request."""
        try:
            async with asyncio.timeout(DIFF_STATUS_TIMEOUT_S):
                chat = await chats.get(self._conn, WORKER, chat_id)
                if chat is None:
                    return
                status = sum_diffs(await self._read(chat))
                if status is None or status == chat.diff_status:
                    return
                written = await chats.set_diff_status(self._conn, WORKER, chat_id, status)
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("diff_status_failed", chat_id=chat_id, error_kind=kind)
            return
        if written is not None:
            self._announce(written, "diff")
