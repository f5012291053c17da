"""The spend limits of users and the budgets of chats, from the database.

A call reserves what it will cost at least, and reserves more before its answer passes that. Near
the limit it reserves less at a time. Replicas share a limit through the reservations in the
database; no chunk needs a statement of its own.
"""

import asyncio
from typing import Final, Literal, Protocol, TypeAlias
from uuid import UUID

from msgspec import Struct

from chatd.aio import BackgroundTasks, Backoff
from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.spend import (
    UNCHECKED_REFUSAL,
    KnownAccount,
    Period,
    SpendAccount,
    SpendRefusal,
    check_reached,
    due_warnings,
    first_reservation,
    fits_alone,
    fits_unchecked,
    grant,
    next_reservation,
)
from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId
from chatd.domain.model.config import cost_micros
from chatd.domain.ports import Env
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.model import spend
from chatd.store.model.spend import DefaultLimit, Spending

EXTENSION_TIMEOUT_S: Final = 2.0
MAX_RESERVE_TRIES: Final = 6
RESERVE_BACKOFF: Final = Backoff(first_delay_s=0.02, max_delay_s=0.3)
MAX_EXTENSION_TRIES: Final = 15
EXTENSION_BACKOFF: Final = Backoff(first_delay_s=0.1, max_delay_s=2.0)
MAX_WARNINGS_REMEMBERED: Final = 10_000
MAX_ACCOUNTS_REMEMBERED: Final = 10_000
MAX_ACCOUNT_AGE_S: Final = 300.0
"""How long a sum that was read allows calls without another check."""


class SpendLimit(Struct, frozen=True, kw_only=True):
    """The default of the settings, in micros of a dollar, for each owner and period.
    `refuses_unpriced`: models without a price cannot be used by owners with a limit.
    `refuses_unchecked`: no call is made or goes on while the spend cannot be read."""

    micros: int | None = None
    period: Period = "month"
    refuses_unpriced: bool = False
    refuses_unchecked: bool = False


_AccountKey: TypeAlias = tuple[Literal["user", "chat"], UUID]


class SpendBudget:
    """Satisfies `Budget` and `SpendBooks`."""

    def __init__(
        self,
        pool: Pool,
        env: Env,
        limit: SpendLimit,
        changes: ConfigChanges,
        background_tasks: BackgroundTasks,
    ) -> None:
        self._pool = pool
        self._env = env
        self.refuses_unchecked = limit.refuses_unchecked
        self._default = DefaultLimit(micros=limit.micros, period=limit.period)
        self._changes = changes
        self._background_tasks = background_tasks
        self._has_limits: bool | None = None
        self._changes_heard = 0
        self._warned: set[tuple[UserId, object, int]] = set()
        self._known: dict[_AccountKey, KnownAccount] = {}
        changes.subscribe(self._on_change)

    def is_unlimited(self, chat: Chat) -> bool:
        return not self._is_limit_possible(chat) and self._known_has_limits() is False

    async def check(self, chat: Chat) -> SpendRefusal | None:
        if not await self._may_limit(chat):
            return None
        return check_reached((await self.read(chat)).accounts)

    async def reserve(self, chat: Chat, call: StartedCall) -> "CallAllowance | SpendRefusal | None":
        if not await self._may_limit(chat):
            return None
        return await reserve_call(self, chat, call)

    def reserve_unchecked(
        self, chat: Chat, call: StartedCall
    ) -> "CallAllowance | SpendRefusal | None":
        if not self._is_limit_possible(chat) and self._has_limits is False:
            return None
        prices = call.config.prices
        wanted = first_reservation(call.usage, prices) or 0
        if not self.allows_unchecked(chat, wanted):
            return UNCHECKED_REFUSAL
        accounts = self._known_accounts(chat)
        if not accounts:
            return None
        needed = cost_micros(call.usage, prices) or 0
        allowance = CallAllowance(self, chat, call.id, cost=needed, granted=wanted)
        allowance.accounts, allowance.least = accounts, wanted - needed
        return allowance

    def on_booked(self, chat: Chat) -> None:
        """Look whether a warning is due now."""
        if self._has_limits is not False or self._default.micros is not None:
            self._background_tasks.submit("spend_warning", lambda: self._review(chat))

    async def read(self, chat: Chat, call_id: UUID | None = None) -> Spending:
        owner, asked_at = chat.owner_id, self._env.clock.monotonic()
        found = await spend.read_spending(
            self._pool, owner, self._default, chat=chat, call_id=call_id
        )
        if found.user is not None:
            self._warn(owner, found.user)
        self._remember(chat, found, asked_at)
        return found

    async def set_reserved(self, call_id: UUID, micros: int) -> None:
        await spend.set_reserved(self._pool, call_id, micros)

    async def back_off(self, tries: int) -> None:
        delay_s = RESERVE_BACKOFF.delay(tries, self._env.jitter)
        await self._env.clock.sleep(delay_s, "reserve_retry")

    async def wait_readable(self, failures: int) -> None:
        delay_s = EXTENSION_BACKOFF.delay(failures, self._env.jitter)
        await self._env.clock.sleep(delay_s, "spend_check_retry")

    def hold(self, chat: Chat, micros: int) -> None:
        for key in (_user_key(chat), _chat_key(chat)):
            if (known := self._known.get(key)) is not None:
                self._known[key] = known.holding(micros, self._env.clock.monotonic())

    def allows_unchecked(self, chat: Chat, micros: int) -> bool:
        accounts = self._known_accounts(chat)
        if accounts is None or not fits_unchecked(accounts, micros):
            return False
        self.hold(chat, micros)
        return True

    def _remember(self, chat: Chat, found: Spending, asked_at: float) -> None:
        if len(self._known) >= MAX_ACCOUNTS_REMEMBERED:
            self._known.clear()
        accounts = {_user_key(chat): found.user}
        if found.chat is not None:
            accounts[_chat_key(chat)] = found.chat
        for key, account in accounts.items():
            read, known = KnownAccount(account=account, asked_at=asked_at), self._known.get(key)
            self._known[key] = read if known is None else known.after_read(read)

    def _known_accounts(self, chat: Chat) -> tuple[SpendAccount, ...] | None:
        """None if one was not read, or is too old."""
        budgets = () if chat.max_cost_micros is None else (_chat_key(chat),)
        oldest = self._env.clock.monotonic() - MAX_ACCOUNT_AGE_S
        known = [self._known.get(key) for key in (_user_key(chat), *budgets)]
        if any(one is None or one.asked_at < oldest for one in known):
            return None
        found = [None if one is None else one.with_held for one in known]
        return tuple(account for account in found if account is not None)

    def report_failure(self, chat: Chat, kind: str) -> None:
        self._env.emit("spend_check_failed", chat_id=chat.id, error_kind=kind)

    async def _review(self, chat: Chat) -> None:
        if await self._may_limit(chat):
            await self.read(chat)

    async def _may_limit(self, chat: Chat) -> bool:
        """Whether a statement must tell. Only while this replica hears of changes it remembers that
        no limit is set."""
        if self._is_limit_possible(chat):
            return True
        known = self._known_has_limits()
        if known is None:
            heard = self._changes_heard
            known = await spend.has_limits(self._pool)
            if heard == self._changes_heard:
                self._has_limits = known
        return known

    def _known_has_limits(self) -> bool | None:
        return self._has_limits if self._changes.is_current else None

    def _is_limit_possible(self, chat: Chat) -> bool:
        """Whatever the database has."""
        return self._default.micros is not None or chat.max_cost_micros is not None

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind == "limit":
            self._changes_heard += 1
            self._has_limits = None
            self._known.clear()

    # Warnings

    def _warn(self, owner: UserId, account: SpendAccount) -> None:
        """Each replica writes a warning at most once; the database keeps the first of all."""
        marks = {(owner, account.period_start, percent) for percent in due_warnings(account)}
        if marks <= self._warned:
            return
        percents = sorted(percent for _, _, percent in marks - self._warned)
        if len(self._warned) > MAX_WARNINGS_REMEMBERED:
            self._warned.clear()

        async def write() -> None:
            async with self._pool.transaction() as session:
                new = await spend.warn(session, owner, account, percents)
            self._warned.update(marks)
            for percent in new:
                self._env.emit("spend_warning", percent=percent, source=account.source)

        self._background_tasks.submit("spend_warning", write)


def _user_key(chat: Chat) -> _AccountKey:
    return "user", chat.owner_id


def _chat_key(chat: Chat) -> _AccountKey:
    return "chat", chat.root_chat_id


class SpendBooks(Protocol):
    """What is spent and reserved, shared by all calls of all replicas."""

    @property
    def refuses_unchecked(self) -> bool: ...

    async def read(self, chat: Chat, call_id: UUID) -> Spending:
        """Without what this call has reserved."""
        ...

    async def set_reserved(self, call_id: UUID, micros: int) -> None: ...

    async def back_off(self, tries: int) -> None:
        """Wait for a short time by chance, longer after more tries."""
        ...

    async def wait_readable(self, failures: int) -> None:
        """Wait until the sums may be read again."""
        ...

    def hold(self, chat: Chat, micros: int) -> None:
        """Remember what a call has reserved beyond the sums as they were read."""
        ...

    def allows_unchecked(self, chat: Chat, micros: int) -> bool:
        """Whether a call may have this much more by the sums as read last. It is held then."""
        ...

    def report_failure(self, chat: Chat, kind: str) -> None: ...


async def reserve_call(
    books: SpendBooks, chat: Chat, call: StartedCall
) -> "CallAllowance | SpendRefusal | None":
    """For a call that is open: its record has its first reservation, which other calls see. None if
    no limit holds."""
    prices = call.config.prices
    needed = cost_micros(call.usage, prices) or 0
    wanted = first_reservation(call.usage, prices) or 0
    accounts, granted = (), 0
    for tries in range(1, MAX_RESERVE_TRIES + 1):
        accounts = (await books.read(chat, call.id)).accounts
        if not accounts:
            return None
        granted = grant(accounts, needed=needed, wanted=wanted)
        is_last = tries == MAX_RESERVE_TRIES or not fits_alone(accounts, needed)
        if not isinstance(granted, SpendRefusal) or is_last:
            break
        # Calls that begin together see each other. Give way, so that some of them are made.
        await books.set_reserved(call.id, 0)
        await books.back_off(tries)
        await books.set_reserved(call.id, wanted)
    if isinstance(granted, SpendRefusal):
        return granted
    if granted < wanted:
        await books.set_reserved(call.id, granted)
    books.hold(chat, granted)
    allowance = CallAllowance(books, chat, call.id, cost=needed, granted=granted)
    allowance.accounts, allowance.least = accounts, wanted - needed
    return allowance


class CallAllowance:
    """What is reserved for one model call. `accounts` are as read last; `least` is the least amount
    that is reserved at a time."""

    def __init__(
        self, books: SpendBooks, chat: Chat, call_id: UUID, *, cost: int, granted: int
    ) -> None:
        self.accounts: tuple[SpendAccount, ...] = ()
        self.least = 0
        self._books = books
        self._chat = chat
        self._call_id = call_id
        self._cost = cost
        self._granted = granted
        self._largest_chunk = 0

    def is_covered(self, cost_micros: int) -> bool:
        """Called with the cost of a call so far, with each chunk: whether another chunk of the
        largest size so far would stay within what is reserved. If not, call `cover`."""
        self._largest_chunk = max(self._largest_chunk, cost_micros - self._cost)
        self._cost = cost_micros
        return cost_micros + self._largest_chunk <= self._granted

    async def cover(self, cost_micros: int) -> SpendRefusal | None:
        """Reserve more if `is_covered` is false. A refusal ends the call."""
        if self.is_covered(cost_micros):
            return None
        for failures in range(1, MAX_EXTENSION_TRIES + 1):
            try:
                async with asyncio.timeout(EXTENSION_TIMEOUT_S):
                    return await self._extend(cost_micros + self._largest_chunk)
            except TimeoutError:
                self._books.report_failure(self._chat, "timeout")
            except ChatdError as error:
                self._books.report_failure(self._chat, error.code)
            if self._books.refuses_unchecked:
                break
            # Look again after some chunks.
            granted = cost_micros + max(self.least, self._largest_chunk) * 2
            if self._books.allows_unchecked(self._chat, granted - self._granted):
                self._granted = granted
                return None
            # The provider waits too: nothing more of its answer is read meanwhile.
            if failures < MAX_EXTENSION_TRIES:
                await self._books.wait_readable(failures)
        return UNCHECKED_REFUSAL

    async def _extend(self, needed: int) -> SpendRefusal | None:
        """First reserve, then compare with the limit, and give back what does not fit."""
        wanted = next_reservation(needed, self.accounts, self.least)
        await self._books.set_reserved(self._call_id, wanted)
        self.accounts = (await self._books.read(self._chat, self._call_id)).accounts
        granted = grant(self.accounts, needed=needed, wanted=wanted)
        if isinstance(granted, SpendRefusal):
            await self._books.set_reserved(self._call_id, max(self._granted, self._cost))
            return granted
        if granted < wanted:
            await self._books.set_reserved(self._call_id, granted)
        self._books.hold(self._chat, granted)
        self._granted = granted
        return None


class Budget(Protocol):
    """What may still be spent: asked before a message and before every model call."""

    def is_unlimited(self, chat: Chat) -> bool:
        """Whether it is known without a statement that no limit holds."""
        ...

    async def check(self, chat: Chat) -> SpendRefusal | None:
        """Called before a message is accepted."""
        ...

    async def reserve(self, chat: Chat, call: StartedCall) -> CallAllowance | SpendRefusal | None:
        """Called before every model call, which is open already. None: it has no limit."""
        ...

    def reserve_unchecked(
        self, chat: Chat, call: StartedCall
    ) -> CallAllowance | SpendRefusal | None:
        """Called when `reserve` has failed: decides by what was read last."""
        ...

    def on_booked(self, chat: Chat) -> None:
        """Called after the usage of a call is recorded. Must not raise or block."""
        ...
