"""Write usage that no commit of a step records, in the background.

This is the usage of titles, of answers that were dropped, and of calls whose chat another worker
owns now. For a worker that died, the next owner records its calls from the journal, as estimates.
Each call has one entry, so nothing is counted twice. A process that ends writes what it still has
within a time limit.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final
from uuid import UUID

import msgspec

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.answer.answer import StartedCall, estimated_entry
from chatd.domain.chat.messages import UsageEntry
from chatd.domain.chat.row import Chat, Episode
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.model.usage import estimate_output_tokens, streamed_bytes
from chatd.domain.ports import Env
from chatd.engine.attempt import emit_usage
from chatd.parts.journal_tail import read_episode
from chatd.store.chat import journal, usage
from chatd.store.conn import Conn

MAX_PENDING_USAGE_WRITES: Final = 10_000
USAGE_BACKOFF: Final = Backoff(first_delay_s=0.1, max_delay_s=5.0)

_STARTED_CALL: Final = msgspec.json.Decoder(StartedCall)


class UsageWriter:
    """`run` must be running. `record` and `settle` never wait."""

    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env
        self._pending: deque[tuple[Chat, Callable[[], Awaitable[None]]]] = deque()
        self._has_pending = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(self, chat: Chat, entries: Iterable[UsageEntry]) -> None:
        entries = tuple(entries)
        for entry in entries:
            self._submit(chat, lambda entry=entry: usage.insert_usage(self._conn, chat, entry))
        emit_usage(self._env, entries)

    def settle(self, chat: Chat, last: Episode) -> None:
        """Record the calls up to this episode that their own worker has not recorded."""
        self._submit(chat, lambda: self._settle(chat, last))

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._has_pending.wait()
            await self._write_all()

    async def close(self, timeout_s: float) -> None:
        """Write what is left, after `run` has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._write_all()
        except TimeoutError:
            for chat, _ in self._pending:
                self._env.emit("usage_write_failed", chat_id=chat.id, error_kind="timeout")

    def _submit(self, chat: Chat, write: Callable[[], Awaitable[None]]) -> None:
        if len(self._pending) >= MAX_PENDING_USAGE_WRITES:
            self._env.emit("usage_write_failed", chat_id=chat.id, error_kind="queue_full")
            return
        self._pending.append((chat, write))
        self._has_pending.set()
        self._idle.clear()

    async def _write_all(self) -> None:
        """A write is removed after it was made: one that is cancelled is repeated by `close`."""
        while self._pending:
            chat, write = self._pending[0]
            await self._write(chat, write)
            self._pending.popleft()
        self._has_pending.clear()
        self._idle.set()

    async def _write(self, chat: Chat, write: Callable[[], Awaitable[None]]) -> None:
        def on_failure(error: Unavailable, failures: int) -> None:
            kind = error.code
            self._env.emit(
                "usage_write_delayed", chat_id=chat.id, error_kind=kind, failures=failures
            )

        try:
            await retry_unavailable(
                self._env.clock,
                write,
                tag="usage_retry",
                delay=USAGE_BACKOFF.delay,
                budget_s=None,
                on_failure=on_failure,
            )
        except ChatdError as error:
            self._env.emit("usage_write_failed", chat_id=chat.id, error_kind=error.code)

    async def _settle(self, chat: Chat, last: Episode) -> None:
        found: dict[UUID, tuple[Episode, StartedCall]] = {}
        for episode, record in await journal.find_calls(self._conn, last):
            if (call := _decode(record)) is not None:
                found[call.id] = (episode, call)
        recorded = await usage.find_recorded(self._conn, tuple(found)) if found else ()
        for episode, call in found.values():
            if call.id not in recorded:
                entry = estimated_entry(call, await self._output_tokens(episode, call))
                await usage.insert_usage(self._conn, chat, entry, corrects=False)
                self._env.emit("usage_estimated", chat_id=chat.id, provider=entry.provider)
                emit_usage(self._env, (entry,))

    async def _output_tokens(self, episode: Episode, call: StartedCall) -> int:
        """A summary is shown to viewers only when it is complete."""
        if call.kind != "turn":
            return 0
        parts = await read_episode(self._conn, episode)
        return estimate_output_tokens(sum(streamed_bytes(live.part) for live in parts))


def _decode(record: bytes) -> StartedCall | None:
    """None for a record of another version."""
    try:
        return _STARTED_CALL.decode(record)
    except msgspec.DecodeError:
        return None
