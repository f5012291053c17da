"""Spend limits: which one holds for a user, what a call may reserve, and when a user is warned.

Amounts are micros of a dollar. A limit counts what is booked and what open calls have reserved. A
call reserves before it is sent and before it goes on, so all calls together stay within the limit
without asking for every chunk.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.row import ChatError
from chatd.domain.description import describe
from chatd.domain.model.config import cost_micros
from chatd.domain.model.failures import ClassifiedFailure
from chatd.domain.model.protocol import Prices
from chatd.domain.text import utc_text

Period = Literal["day", "week", "month"]
LimitSource = Literal["user", "group", "default", "settings"]
"""Where a limit comes from: the user's own, the strictest of the user's groups, the deployment's
default over the API, or the default of the settings."""

WARNING_PERCENTS: Final = (80, 100)
FIRST_OUTPUT_TOKENS: Final = 256
"""What a call reserves for its answer before it is sent."""
MAX_HELD_AMOUNTS: Final = 200
UNCHECKED_MARGIN_PERCENT: Final = 10
"""Of a limit. While the sums cannot be read, calls go on until this much of the limit is left:
other replicas may have spent it."""
_SHARE_OF_ROOM: Final = 32
"""A call that goes on reserves this fraction of what is left. The nearer the limit, the smaller."""


class LimitRules(Struct, frozen=True, kw_only=True):
    """The limits that are set for a user. `is_default_stored`: the default is that of the API, even
    if it is None."""

    user_micros: int | None = None
    group_micros: tuple[int, ...] = ()
    default_micros: int | None = None
    is_default_stored: bool = False
    settings_micros: int | None = None


class SpendWarningEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="spend_warning"):
    """You have spent this share of your limit. Sent once in a period for each share."""

    percent: Annotated[int, describe("The share of the limit, in percent: 80 or 100.", 80)]
    spent_micros: Annotated[int, describe("What was spent, in micros of a dollar.", 20_400_000)]
    limit_micros: Annotated[int, describe("The limit, in micros of a dollar.", 25_000_000)]
    resets_at: Annotated[
        datetime, describe("When the limit's period ends.", "2026-12-01T00:00:00Z")
    ]


def effective_limit(rules: LimitRules) -> tuple[int, LimitSource] | None:
    """The user's own limit, else the strictest of the user's groups, else the default."""
    if rules.user_micros is not None:
        return rules.user_micros, "user"
    if rules.group_micros:
        return min(rules.group_micros), "group"
    if rules.is_default_stored:
        return None if rules.default_micros is None else (rules.default_micros, "default")
    return None if rules.settings_micros is None else (rules.settings_micros, "settings")


class SpendAccount(Struct, frozen=True, kw_only=True):
    """One limit and what counts against it. `reserved_micros` is of other open calls. The limit of
    a chat has no period."""

    limit_micros: int
    spent_micros: int
    reserved_micros: int = 0
    source: LimitSource | Literal["chat"] = "settings"
    period: Period | None = None
    period_start: datetime | None = None
    resets_at: datetime | None = None

    @property
    def room(self) -> int:
        return self.limit_micros - self.spent_micros - self.reserved_micros


class SpendRefusal(Struct, frozen=True, kw_only=True):
    """Why a call may not be made, or not go on."""

    message: str
    spent_micros: int = 0
    limit_micros: int = 0
    resets_at: datetime | None = None
    kind: Literal["usage_limit", "config"] = "usage_limit"

    @property
    def error(self) -> ChatError:
        return ChatError(kind=self.kind, message=self.message)


UNCHECKED_REFUSAL: Final = SpendRefusal(
    message="What you have spent cannot be read now, and this server makes no model call without"
    " it. Try again in a moment."
)

UNCHECKED_WAIT: Final = ClassifiedFailure(
    kind="usage_limit",
    error=ChatError(
        kind="usage_limit",
        message="What you have spent cannot be read now, and the limit may be near. The model is"
        " called as soon as it can be read.",
        retryable=True,
    ),
)


def grant(accounts: Sequence[SpendAccount], *, needed: int, wanted: int) -> int | SpendRefusal:
    """What a call may reserve: up to `wanted`, and more than `needed`, which it surely costs. The
    call has no account without a limit, and then gets all."""
    tightest = min(accounts, key=lambda account: account.room, default=None)
    if tightest is None:
        return wanted
    if tightest.room <= needed:
        return refusal(tightest, needed)
    return min(wanted, tightest.room)


def fits_alone(accounts: Iterable[SpendAccount], needed: int) -> bool:
    """Whether only what other open calls have reserved forbids the call. They may not need it."""
    return all(one.limit_micros - one.spent_micros > needed for one in accounts)


class KnownAccount(Struct, frozen=True, kw_only=True):
    """An account as a replica read it last, with what it has allowed since it asked. `account` is
    None if there is no limit; `held` are times and amounts."""

    account: SpendAccount | None
    asked_at: float
    held: tuple[tuple[float, int], ...] = ()

    def after_read(self, read: "KnownAccount") -> "KnownAccount":
        """Reads may end in another order than they began: the one that was asked for last counts.
        It may lack what was allowed while it was under way."""
        if read.asked_at < self.asked_at:
            return self
        kept = tuple(one for one in self.held if one[0] >= read.asked_at)
        return replace(read, held=kept)

    def holding(self, micros: int, at: float) -> "KnownAccount":
        held = (*self.held, (at, micros))
        if len(held) > MAX_HELD_AMOUNTS:
            held = ((held[1][0], held[0][1] + held[1][1]), *held[2:])
        return replace(self, held=held)

    @property
    def with_held(self) -> SpendAccount | None:
        if self.account is None:
            return None
        held = sum(micros for _, micros in self.held)
        return replace(self.account, reserved_micros=self.account.reserved_micros + held)


def fits_unchecked(accounts: Iterable[SpendAccount], micros: int) -> bool:
    """Whether a call may have this much more while the sums cannot be read. `accounts` are as read
    last, with what this replica has allowed since then."""
    return all(
        one.room - micros >= one.limit_micros * UNCHECKED_MARGIN_PERCENT // 100 for one in accounts
    )


def check_reached(accounts: Iterable[SpendAccount]) -> SpendRefusal | None:
    """For a message, whose calls are not known yet. What open calls have reserved they may not
    need."""
    reached = [one for one in accounts if one.spent_micros >= one.limit_micros]
    return refusal(reached[0]) if reached else None


def refusal(account: SpendAccount, needed: int = 0) -> SpendRefusal:
    """Says what was spent, what other calls hold, what this call needs in all (`needed`, 0 if
    there is no call yet), what the limit is and when it ends."""
    limit, spent = dollars(account.limit_micros), dollars(account.spent_micros)
    amounts = [f"{spent} were spent"]
    if account.reserved_micros:
        amounts.append(f"other running calls hold {dollars(account.reserved_micros)}")
    if needed:
        left = max(0, account.room)
        amounts.append(f"{dollars(left)} are left, and this call needs at least {dollars(needed)}")
    said = ", ".join(amounts) if needed else ", and ".join(amounts)
    if account.period is None:
        what, end = f"The budget of {limit} of this chat", "Start another chat to go on."
    else:
        what, end = f"The spend limit of {limit} for this {account.period}", ""
        if account.resets_at is not None:
            end = f"It is reset at {utc_text(account.resets_at)}."
    return SpendRefusal(
        message=f"{what} is reached: {said}. {end}".rstrip(),
        spent_micros=account.spent_micros,
        limit_micros=account.limit_micros,
        resets_at=account.resets_at,
    )


def first_reservation(usage: TokenUsage, prices: Prices | None) -> int | None:
    """The cost of the estimated input and of the first part of the answer; None without a price."""
    answered = max(usage.output_tokens, FIRST_OUTPUT_TOKENS)
    return cost_micros(replace(usage, output_tokens=answered), prices)


def next_reservation(cost: int, accounts: Sequence[SpendAccount], least: int) -> int:
    """What a call wants that has cost this much and goes on: at least `least` more."""
    room = min((account.room for account in accounts), default=0)
    return cost + max(least, (room - cost) // _SHARE_OF_ROOM)


def due_warnings(account: SpendAccount) -> tuple[int, ...]:
    return tuple(
        percent
        for percent in WARNING_PERCENTS
        if account.spent_micros * 100 >= account.limit_micros * percent
    )


def dollars(micros: int) -> str:
    """Cents, and more digits for less than a cent."""
    return (
        f"${micros / 1_000_000:.2f}"
        if micros >= 10_000 or not micros
        else (f"${micros / 1_000_000:.6f}".rstrip("0"))
    )
