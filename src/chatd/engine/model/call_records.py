"""Writes the usage that no commit of a step records, and debug records, behind the calls.

This is the usage of titles, of answers that were dropped, and of calls of chats that another worker
owns now. The open calls of a worker that died are recorded by the next owner of the chat, or by the
worker that finds the death: as estimates, from the record that was written before the request, and
from the journal. Each call has one entry, so nothing is counted twice. A process that ends writes
what it still has within a time limit.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.answer.answer import Answer, StartedCall, estimated_entry
from chatd.domain.answer.debug_calls import DebugCall, DebugKind, build_document
from chatd.domain.chat.messages import UsageEntry
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId, UserId, WorkerId
from chatd.domain.model.protocol import ModelConfig, ModelRequest
from chatd.domain.model.usage import estimate_output_tokens, streamed_bytes
from chatd.domain.ports import Env
from chatd.engine.model.attempt import emit_usage
from chatd.engine.model.model_call import ModelCall, ModelCallError
from chatd.store.chat import journal
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls
from chatd.store.model.model_calls import OpenCall, Payer
from chatd.stream.journal_tail import read_episode

MAX_PENDING_USAGE_WRITES: Final = 10_000
USAGE_BACKOFF: Final = Backoff(first_delay_s=0.1, max_delay_s=5.0)

_STARTED_CALL: Final = msgspec.json.Decoder(StartedCall)


class UsageWriter:
    """`run` must be running. `record` and `settle` never wait."""

    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env
        self._pending: deque[tuple[ChatId, Callable[[], Awaitable[object]]]] = deque()
        self._has_pending = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(self, chat: Chat, entries: Iterable[UsageEntry]) -> None:
        entries, payer = tuple(entries), Payer.of(chat)
        for entry in entries:
            self._submit(
                chat.id, lambda entry=entry: model_calls.insert_usage(self._conn, payer, entry)
            )
        emit_usage(self._env, entries)

    def settle(self, chat: Chat) -> None:
        """Record the open calls of the chat's earlier owners."""

        async def settle() -> None:
            await self._settle(await model_calls.list_before(self._conn, chat))

        self._submit(chat.id, settle)

    async def settle_workers(self, workers: Sequence[WorkerId]) -> None:
        """Record the open calls of dead workers. Raises Unavailable."""
        while opened := await model_calls.list_of_workers(self._conn, workers):
            await self._settle(opened)
            if len(opened) < model_calls.MAX_CALLS_LISTED:
                return

    async def settle_abandoned(self) -> None:
        """Record the open calls that no living worker knows."""
        await self._settle(await model_calls.list_abandoned(self._conn))
        for chat_id in await model_calls.give_up(self._conn):
            self._env.emit("usage_write_failed", chat_id=chat_id, error_kind="unreadable_record")

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
            for chat_id, _ in self._pending:
                self._env.emit("usage_write_failed", chat_id=chat_id, error_kind="timeout")

    def _submit(self, chat_id: ChatId, write: Callable[[], Awaitable[object]]) -> None:
        if len(self._pending) >= MAX_PENDING_USAGE_WRITES:
            self._env.emit("usage_write_failed", chat_id=chat_id, error_kind="queue_full")
            return
        self._pending.append((chat_id, write))
        self._has_pending.set()
        self._idle.clear()

    async def _write_all(self) -> None:
        """A write is removed after it was made: one that is cancelled is repeated by `close`."""
        while self._pending:
            await self._write(*self._pending[0])
            self._pending.popleft()
        self._has_pending.clear()
        self._idle.set()

    async def _write(self, chat_id: ChatId, write: Callable[[], Awaitable[object]]) -> None:
        def on_failure(error: Unavailable, failures: int) -> None:
            kind = error.code
            self._env.emit(
                "usage_write_delayed", chat_id=chat_id, error_kind=kind, failures=failures
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
            self._env.emit("usage_write_failed", chat_id=chat_id, error_kind=error.code)

    async def _settle(self, calls: Sequence[OpenCall]) -> None:
        for opened in calls:
            if not opened.sent:
                # Its worker may be stalled and still send it: then the next look settles it.
                if await model_calls.forget_unsent(self._conn, opened.id):
                    self._env.emit("call_never_sent", chat_id=opened.chat_id)
                continue
            call = await self._newest_record(opened)
            if call is None:
                continue
            entry = estimated_entry(call, await self._output_tokens(opened, call))
            payer = Payer(
                owner_id=opened.owner_id,
                chat_id=opened.chat_id,
                root_chat_id=opened.root_chat_id,
            )
            if await model_calls.insert_usage(self._conn, payer, entry, corrects=False):
                self._env.emit("usage_estimated", chat_id=payer.chat_id, provider=entry.provider)
                emit_usage(self._env, (entry,))

    async def _newest_record(self, opened: OpenCall) -> StartedCall | None:
        """The journal may have what the provider told of the call before the worker died."""
        call = _decode(bytes(opened.record))
        for _, record in await journal.find_calls(self._conn, opened.episode):
            told = _decode(record)
            if told is not None and told.id == opened.id:
                call = told
        return call

    async def _output_tokens(self, opened: OpenCall, call: StartedCall) -> int:
        """A summary is shown to viewers only when it is complete."""
        if call.kind != "turn":
            return 0
        parts = await read_episode(self._conn, opened.episode)
        said = sum(streamed_bytes(live.part) for live in parts)
        return estimate_output_tokens(max(0, said - call.continued_bytes))


def _decode(record: bytes) -> StartedCall | None:
    """None for a record of another version."""
    try:
        return _STARTED_CALL.decode(record)
    except msgspec.DecodeError:
        return None


# Records of model calls for debugging, written behind the calls, only where they are enabled.
#
# Best effort: a record that cannot be written in time is dropped, and never delays or fails a call.

MAX_PENDING_DEBUG_RECORDS: Final = 50
DEBUG_WRITE_BUDGET_S: Final = 30.0
"""How long a record is retried while the database is away."""
_BACKOFF: Final = Backoff(first_delay_s=0.2, max_delay_s=5.0)
_CANCELLED: Final = ChatError(kind="cancelled", message="The call was stopped.")

DebugGate = Callable[[UserId], Awaitable[bool]]
"""Whether the model calls of this user's chats are recorded. Usually answers from memory."""


async def never(_owner_id: UserId) -> bool:
    return False


class StartedDebugCall(Struct, frozen=True, kw_only=True):
    """`began` is by the monotonic clock."""

    id: UUID
    chat: Chat
    kind: DebugKind
    config: ModelConfig
    request: ModelRequest
    at: datetime
    began: float


class DebugRecorder:
    """Writes only while `run` runs."""

    def __init__(self, pool: Pool, env: Env, gate: DebugGate = never) -> None:
        self._pool = pool
        self._env = env
        self.gate = gate
        self._pending: deque[DebugCall] = deque()
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def is_on(self, owner_id: UserId) -> bool:
        try:
            return await self.gate(owner_id)
        except ChatdError:
            return False

    async def observe(
        self,
        chat: Chat,
        call: ModelCall,
        request: ModelRequest,
        run: Callable[[], Awaitable[Answer]],
    ) -> Answer:
        """Run the call, and record it if its chat's owner has that enabled."""
        if not await self.is_on(chat.owner_id):
            return await run()
        begun = self.begin(chat, call.kind, call.record.config, request)
        error: ChatError | None = None
        try:
            return await run()
        except ModelCallError as failed:
            error = failed.classified.error
            raise
        except asyncio.CancelledError:
            error = _CANCELLED
            raise
        finally:
            self.end(begun, call.answer_so_far(), error, call.first_part_at)

    def begin(
        self, chat: Chat, kind: DebugKind, config: ModelConfig, request: ModelRequest
    ) -> StartedDebugCall:
        return StartedDebugCall(
            id=self._env.new_id(),
            chat=chat,
            kind=kind,
            config=config,
            request=request,
            at=self._env.clock.now(),
            began=self._env.clock.monotonic(),
        )

    def end(
        self,
        started: StartedDebugCall,
        answer: Answer,
        error: ChatError | None = None,
        first_part_at: float | None = None,
    ) -> None:
        call = self._finished(started, answer, error, first_part_at)
        if len(self._pending) >= MAX_PENDING_DEBUG_RECORDS:
            self._pending.popleft()
            self._env.emit("debug_record_dropped", chat_id=call.chat_id)
        self._pending.append(call)
        self._is_idle.clear()
        self._has_work.set()

    async def wait_idle(self) -> None:
        await self._is_idle.wait()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            while self._pending:
                await self._write(self._pending.popleft())
            self._has_work.clear()
            self._is_idle.set()

    async def _write(self, call: DebugCall) -> None:
        try:
            document = await asyncio.to_thread(build_document, call)
            await retry_unavailable(
                self._env.clock,
                lambda: model_calls.insert_debug_call(self._pool, call, document),
                tag="debug_retry",
                delay=_BACKOFF.delay,
                budget_s=DEBUG_WRITE_BUDGET_S,
            )
        except ChatdError as error:
            self._env.emit("debug_record_dropped", chat_id=call.chat_id, error_kind=error.code)

    def _finished(
        self,
        started: StartedDebugCall,
        answer: Answer,
        error: ChatError | None,
        first: float | None,
    ) -> DebugCall:
        chat, config = started.chat, started.config
        took_s = self._env.clock.monotonic() - started.began
        return DebugCall(
            id=started.id,
            chat_id=chat.id,
            kind=started.kind,
            model_config_id=config.id,
            provider=config.provider,
            model=config.model,
            attempt=chat.attempt,
            history_version=chat.history_version,
            turn_message_id=chat.turn_message_id,
            started_at=started.at,
            duration_ms=round(took_s * 1000),
            first_part_ms=None if first is None else round((first - started.began) * 1000),
            error=None if error is None else error.message,
            error_kind=None if error is None else error.kind,
            status_code=None if error is None else error.status_code,
            request=started.request,
            answer=answer,
        )
