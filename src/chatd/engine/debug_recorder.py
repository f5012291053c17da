"""Records of model calls for debugging, written behind the calls, only where they are enabled.

Best effort: a record that cannot be written in time is dropped, and never delays or fails a call.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.answer.answer import Answer
from chatd.domain.answer.debug_calls import DebugCall, DebugKind, build_document
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId
from chatd.domain.model.protocol import ModelConfig, ModelRequest
from chatd.domain.ports import Env
from chatd.engine.model_call import ModelCall, ModelCallError
from chatd.store.chat import model_calls
from chatd.store.pool import Pool

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
