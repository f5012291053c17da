"""Write the record of each model call before its request is sent.

The next owner, or any other worker, then finds the call if this process dies. One statement writes
the records of all calls that begin meanwhile, and deletes those of calls that were not sent.
"""

import asyncio
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.spend import first_reservation
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.store.chat import model_calls
from chatd.store.chat.model_calls import OpenCall
from chatd.store.pool import Pool

OPEN_CALL_BACKOFF: Final = Backoff(first_delay_s=0.05, max_delay_s=1.0)


class OpenCallWriter:
    """Needs a pool of one session that nothing else uses. `run` must be running."""

    def __init__(self, pool: Pool, env: Env, worker_id: WorkerId) -> None:
        self._pool = pool
        self._env = env
        self._worker_id = worker_id
        self._opened: dict[UUID, OpenCall] = {}
        self._discarded: set[UUID] = set()
        self._written: asyncio.Future[None] | None = None
        self._has_work = asyncio.Event()
        self._has_work.set()  # The first write is empty: it prepares the statement.

    async def open(self, chat: Chat, call: StartedCall, *, sent: bool = True) -> None:
        """Return when the record is written; wait while the database is away. A call that is
        cancelled meanwhile leaves no record. `sent`: the request follows at once; else open the
        call again as sent before. It is written whole then: another worker may have removed the
        record of a call that seemed to be abandoned."""
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        written = self._written
        self._opened[call.id] = self._open_call(chat, call, sent=sent)
        self._has_work.set()
        try:
            await asyncio.shield(written)
        except BaseException:
            self.discard(call.id)
            raise

    def discard(self, call_id: UUID) -> None:
        """The call was not sent, or the provider refused it: it costs nothing."""
        self._opened.pop(call_id, None)
        self._discarded.add(call_id)
        self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            await self._write_all()

    async def close(self, timeout_s: float) -> None:
        """Delete the records of calls that were not sent, after `run` has ended. What is left
        another worker records as an estimate."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._discarded:
                    await self._write_all()
        except TimeoutError:
            self._env.emit("open_call_write_failed", error_kind="timeout")

    async def _write_all(self) -> None:
        self._has_work.clear()
        opened, self._opened = self._opened, {}
        discarded, self._discarded = self._discarded, set()
        written, self._written = self._written, None
        try:
            await retry_unavailable(
                self._env.clock,
                lambda: model_calls.write_open_calls(
                    self._pool, list(opened.values()), list(discarded)
                ),
                tag="open_call_retry",
                delay=OPEN_CALL_BACKOFF.delay,
                budget_s=None,
                on_failure=self._report_delay,
            )
        except ChatdError as error:
            self._env.emit("open_call_write_failed", error_kind=error.code, error=error)
            _resolve(written, error)
        except BaseException as error:
            _resolve(written, error)
            raise
        else:
            _resolve(written, None)

    def _report_delay(self, error: Unavailable, failures: int) -> None:
        self._env.emit("open_call_delayed", error_kind=error.code, failures=failures)

    def _open_call(self, chat: Chat, call: StartedCall, *, sent: bool) -> OpenCall:
        return OpenCall(
            id=call.id,
            owner_id=chat.owner_id,
            chat_id=chat.id,
            root_chat_id=chat.root_chat_id,
            worker_id=self._worker_id,
            epoch=chat.epoch,
            history_version=chat.history_version,
            attempt=chat.attempt,
            reserved_micros=first_reservation(call.usage, call.config.prices),
            record=Raw(msgspec.json.encode(call)),
            sent=sent,
        )


def _resolve(written: asyncio.Future[None] | None, error: BaseException | None) -> None:
    if written is None:
        return
    if error is None:
        written.set_result(None)
    elif isinstance(error, asyncio.CancelledError):
        written.cancel()
    else:
        written.set_exception(error)
        written.exception()  # Its callers may all be gone.
