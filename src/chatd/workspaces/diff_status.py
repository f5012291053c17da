"""The diff status of chats: refreshed behind their requests to workspace agents, coalesced.

A chat is marked at each request to its agent. Some seconds later the agent is asked once for the
sums of the whole chat, then the git host for the pull request of its branch, and the row is written
only if something changed. No step waits for this. While checks run or a pushed branch has no pull
request yet, the host is asked again every minute, until the chat was not used for half an hour.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from chatd.domain.access import WORKER
from chatd.domain.chat.pull_requests import MAX_REMOTE_CHARS
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

RECHECK_INTERVAL_S: Final = 60.0
RECHECK_FOR_S: Final = 30 * 60.0
"""After the chat's last request to its agent."""

ReadSums = Callable[[Chat], Awaitable[Sequence[ScopedDiff]]]
CompleteStatus = Callable[[Chat, DiffStatus], Awaitable[DiffStatus]]


def can_change_elsewhere(status: DiffStatus) -> bool:
    """Whether a pull request may be opened, merged or checked while the chat does nothing."""
    if status.pull_request is not None:
        return status.pull_request.state in ("open", "draft")
    return status.new_pull_request_url is not None and status.ahead == 0


async def _unchanged(chat: Chat, status: DiffStatus) -> DiffStatus:
    del chat
    return status


def sum_diffs(found: Sequence[ScopedDiff]) -> DiffStatus | None:
    """Over all repositories, with the branch of the one with most changes. None without any.
    Bounded, and in a form that can be stored."""
    if not found:
        return None
    main = max(found, key=lambda one: one.additions + one.deletions)
    return DiffStatus(
        remote_url=clip(model_text(main.remote), MAX_REMOTE_CHARS),
        ahead=None if main.ahead is None else _count([main.ahead]),
        behind=None if main.behind is None else _count([main.behind]),
        branch=clip(model_text(main.branch), MAX_BRANCH_CHARS),
        base=clip(model_text(main.base), MAX_BRANCH_CHARS),
        additions=_count(one.additions for one in found),
        deletions=_count(one.deletions for one in found),
        changed_files=_count(one.changed_files for one in found),
    )


def _count(numbers: Iterable[int]) -> int:
    return min(max(sum(numbers), 0), MAX_COUNT)


class DiffStatusKeeper:
    """Refreshes only while `run` runs. `read` asks the agent of a chat, `complete` its git host."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        read: ReadSums,
        announce: Callable[[Chat, str], None],
        complete: CompleteStatus = _unchanged,
    ) -> None:
        self._conn = conn
        self._env = env
        self._read = read
        self._announce = announce
        self._complete = complete
        self._dirty: dict[ChatId, None] = {}
        self._used_at_s: dict[ChatId, float] = {}
        self._watched: set[ChatId] = set()
        self._has_work = asyncio.Event()

    def mark(self, chat_id: ChatId) -> None:
        """The chat has sent a request to its agent."""
        if len(self._dirty) < MAX_DIRTY_CHATS:
            self._used_at_s[chat_id] = self._env.clock.monotonic()
            self._dirty[chat_id] = None
            self._has_work.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh_marked())
            group.create_task(self._recheck())

    async def _recheck(self) -> None:
        while True:
            await self._env.clock.sleep(RECHECK_INTERVAL_S, "diff_recheck")
            before = self._env.clock.monotonic() - RECHECK_FOR_S
            self._used_at_s = {id_: at for id_, at in self._used_at_s.items() if at > before}
            self._watched &= self._used_at_s.keys()
            for chat_id in self._watched:
                self._dirty[chat_id] = None
            if self._dirty:
                self._has_work.set()

    async def _refresh_marked(self) -> None:
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
                self._watched.discard(chat_id)
                if status is None:
                    return
                status = await self._complete(chat, status)
                if can_change_elsewhere(status):
                    self._watched.add(chat_id)
                if status == chat.diff_status:
                    return
                written = await chats.set_diff_status(self._conn, WORKER, chat_id, status)
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("diff_status_failed", chat_id=chat_id, error_kind=kind)
            return
        except Exception as error:  # noqa: BLE001 - the status of one chat must not end the process
            self._env.emit("diff_status_failed", chat_id=chat_id, error=error, error_kind="bug")
            return
        if written is not None:
            self._announce(written, "diff")
