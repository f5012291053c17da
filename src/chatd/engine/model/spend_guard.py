"""What comes before every model call: its record, written ahead of the request, and the spend
limits.

The record is written first, with what the call reserves; then the sum of all is compared with the
limit. So of two calls that begin at the same moment at least one sees the other. A call that passes
is marked as sent when its request has a connection, before the first byte is written: what is not
marked cost nothing if the worker dies.

A worker that dies between the mark and the first byte leaves a call that is recorded as an estimate
and was never sent. No rule is exact here: the database and the provider cannot be told at once, and
no provider can be asked later whether it had a request. Marking after the first byte would lose
calls that were paid; a limit must rather count one call too many.
"""

import asyncio
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.spend import UNCHECKED_REFUSAL, SpendRefusal, first_reservation
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.model.config import is_priced
from chatd.domain.model.protocol import ModelConfig
from chatd.domain.model.usage import learn_input_ratio
from chatd.domain.ports import Env, ModelChoice
from chatd.engine.model.budget import Budget, CallAllowance
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls
from chatd.store.model.model_calls import OpenCall

# Write the record of each model call before its request is sent.
#
# The next owner, or any other worker, then finds the call if this process dies. One statement
# writes the records of all calls that begin meanwhile, and deletes those of calls that were not
# sent.

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


SPEND_CHECK_TIMEOUT_S: Final = 2.0
MAX_INPUT_RATIOS: Final = 1_000
"""Of models, by which this replica corrects its estimates."""


class SpendRefused(ChatdError):
    """The call was not made."""

    code = "usage_limit_exceeded"

    def __init__(self, refusal: SpendRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class SpendUnknown(SpendRefused):
    """The call was not made, because the sums cannot be read and the limit may be near. It can be
    made later."""

    def __init__(self) -> None:
        super().__init__(UNCHECKED_REFUSAL)


class SpendGuard:
    """Without a budget every call is allowed. When the check fails or times out, a call is allowed
    while the limit is far by what was read last, because an outage of the check must not stop all
    chats; else it waits for the next check. With `refuses_unchecked` it is refused. With
    `refuses_unpriced` models without a price, which no limit can stop, are refused to users with a
    limit."""

    def __init__(
        self,
        budget: Budget | None,
        open_calls: OpenCallWriter,
        env: Env,
        *,
        timeout_s: float = SPEND_CHECK_TIMEOUT_S,
        refuses_unpriced: bool = False,
        refuses_unchecked: bool = False,
    ) -> None:
        self._budget = budget
        self._open_calls = open_calls
        self._env = env
        self._timeout_s = timeout_s
        self._refuses_unpriced = refuses_unpriced
        self._unchecked = UNCHECKED_REFUSAL if refuses_unchecked else None
        self._input_ratios: dict[tuple[str, str], float] = {}

    def estimate_input(self, config: ModelConfig, rough: int) -> int:
        """The input tokens of a call, which count if the provider tells none: by the length of the
        request, and by what the model's provider has counted for earlier requests. Text of another
        kind or another tokenizer can make twice as many tokens."""
        ratio = self._input_ratios.get((config.provider, config.model), 1.0)
        return max(1, round(rough * ratio))

    def learn_input(self, config: ModelConfig, rough: int, told: TokenUsage) -> None:
        """After a call: `told` is what its provider told of its usage."""
        key = (config.provider, config.model)
        if len(self._input_ratios) >= MAX_INPUT_RATIOS:
            self._input_ratios.clear()
        ratio = self._input_ratios.get(key, 1.0)
        self._input_ratios[key] = learn_input_ratio(ratio, rough, told)

    async def check(self, chat: Chat) -> SpendRefusal | None:
        """Before a message is accepted."""
        if self._budget is None:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._budget.check(chat)
        except TimeoutError:
            self._report(chat, "timeout")
        except ChatdError as error:
            self._report(chat, error.code)
        return self._unchecked

    async def open(self, chat: Chat, call: StartedCall, model: ModelChoice) -> CallAllowance | None:
        """Write the record of a call and reserve what it costs. None: no limit holds. Raises
        SpendRefused and, if the caller should ask again, SpendUnknown. `mark_sent` must follow;
        it writes the record of a call that no limit holds for."""
        if self._budget is not None and not self._budget.is_unlimited(chat):
            await self._open_calls.open(chat, call, sent=False)
        try:
            allowed = await self._reserve(chat, call)
            if isinstance(allowed, SpendRefusal):
                raise SpendRefused(allowed)
            if allowed is not None and self._refuses_unpriced:
                config = model.config
                if not is_priced(config.prices, model.kind):
                    raise SpendRefused(unpriced_refusal(config.name))
        except BaseException:
            self._open_calls.discard(call.id)
            raise
        return allowed

    async def mark_sent(self, chat: Chat, call: StartedCall) -> None:
        """Just before the request is sent."""
        await self._open_calls.open(chat, call, sent=True)

    def discard(self, call: StartedCall) -> None:
        """The call was not sent, or the provider refused it."""
        self._open_calls.discard(call.id)

    def on_booked(self, chat: Chat) -> None:
        if self._budget is not None:
            self._budget.on_booked(chat)

    async def _reserve(self, chat: Chat, call: StartedCall) -> CallAllowance | SpendRefusal | None:
        if self._budget is None:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._budget.reserve(chat, call)
        except TimeoutError:
            self._report(chat, "timeout")
        except ChatdError as error:
            self._report(chat, error.code)
        if self._unchecked is not None:
            return self._unchecked
        allowed = self._budget.reserve_unchecked(chat, call)
        if isinstance(allowed, SpendRefusal):
            raise SpendUnknown
        return allowed

    def _report(self, chat: Chat, kind: str) -> None:
        self._env.emit("spend_check_failed", chat_id=chat.id, error_kind=kind)


def unpriced_refusal(model: str) -> SpendRefusal:
    return SpendRefusal(
        kind="config",
        message=f"The model {model} has no price, and this server refuses such models while a spend"
        " limit is set. Choose another model, or let an operator set the model's prices or"
        " limits.unpriced.",
    )
