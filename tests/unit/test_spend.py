"""The rules of spend limits: which limit holds, what a call may reserve, when a user is warned."""

from datetime import UTC, datetime

import pytest

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.deployment.spend import (
    FIRST_OUTPUT_TOKENS,
    LimitRules,
    LimitSource,
    SpendAccount,
    SpendRefusal,
    check_reached,
    dollars,
    due_warnings,
    effective_limit,
    first_reservation,
    fits_alone,
    grant,
    next_reservation,
    refusal,
)
from chatd.domain.model.protocol import Prices

MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)


def account(limit: int, spent: int, reserved: int = 0) -> SpendAccount:
    return SpendAccount(
        limit_micros=limit,
        spent_micros=spent,
        reserved_micros=reserved,
        period="month",
        resets_at=MIDNIGHT,
    )


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (LimitRules(), None),
        (LimitRules(settings_micros=9), (9, "settings")),
        # A default of the database replaces that of the settings, also one without an amount.
        (LimitRules(settings_micros=9, is_default_stored=True), None),
        (LimitRules(settings_micros=9, is_default_stored=True, default_micros=8), (8, "default")),
        # The strictest group, even if the default is stricter.
        (LimitRules(group_micros=(7, 6), default_micros=5, is_default_stored=True), (6, "group")),
        (LimitRules(group_micros=(7, 6)), (6, "group")),
        # The user's own limit, even if it is the largest.
        (LimitRules(user_micros=10, group_micros=(6,), settings_micros=9), (10, "user")),
    ],
)
def test_the_nearest_limit_holds(
    rules: LimitRules, expected: tuple[int, LimitSource] | None
) -> None:
    assert effective_limit(rules) == expected


@pytest.mark.parametrize(
    ("accounts", "needed", "wanted", "granted"),
    [
        ((), 5, 9, 9),
        ((account(100, 0),), 5, 9, 9),
        ((account(100, 80, 12),), 5, 9, 8),
        ((account(100, 80, 15),), 5, 9, None),
        ((account(100, 100),), 0, 0, None),
        ((account(100, 130),), 0, 0, None),
        # The tightest of several.
        ((account(100, 0), account(20, 13)), 5, 9, 7),
        ((account(100, 0), account(20, 16)), 5, 9, None),
    ],
)
def test_a_call_reserves_what_is_left_and_not_less_than_it_surely_costs(
    accounts: tuple[SpendAccount, ...], needed: int, wanted: int, granted: int | None
) -> None:
    found = grant(accounts, needed=needed, wanted=wanted)
    assert (None if isinstance(found, SpendRefusal) else found) == granted


def test_a_call_waits_only_for_what_other_calls_have_reserved() -> None:
    assert fits_alone([account(100, 80, 50)], 5)
    assert not fits_alone([account(100, 95, 0)], 5)
    assert not fits_alone([account(100, 0), account(20, 16)], 5)


def test_a_message_is_refused_by_what_is_spent_and_not_by_what_is_reserved() -> None:
    assert check_reached([account(100, 99, 50)]) is None
    reached = check_reached([account(500, 0), account(100, 100)])
    assert reached is not None
    assert (reached.spent_micros, reached.limit_micros, reached.resets_at) == (100, 100, MIDNIGHT)


def test_a_refusal_says_amounts_and_the_time_of_the_reset() -> None:
    found = refusal(account(25_000_000, 24_900_000, 200_000))
    assert found.message == (
        "The spend limit of $25.00 for this month is reached: $24.90 were spent, and other running"
        " calls hold $0.20. It is reset at 2026-12-01T00:00:00Z."
    )
    assert (found.error.kind, found.error.message) == ("usage_limit", found.message)
    chat = refusal(SpendAccount(limit_micros=500_000, spent_micros=500_100, source="chat"))
    assert chat.message == (
        "The budget of $0.50 of this chat is reached: $0.50 were spent. Start another chat to go"
        " on."
    )


def test_a_refused_call_is_told_which_amount_is_its_own() -> None:
    found = grant([account(25_000_000, 24_600_000, 200_000)], needed=350_000, wanted=400_000)
    assert isinstance(found, SpendRefusal)
    assert found.message == (
        "The spend limit of $25.00 for this month is reached: $24.60 were spent, other running"
        " calls hold $0.20, $0.20 are left, and this call needs at least $0.35. It is reset at"
        " 2026-12-01T00:00:00Z."
    )


def test_the_first_reservation_is_the_input_and_a_piece_of_the_answer() -> None:
    usage, prices = TokenUsage(input_tokens=1000), Prices(input="1", output="2")
    assert first_reservation(usage, prices) == 1000 + 2 * FIRST_OUTPUT_TOKENS
    assert first_reservation(usage, None) is None


def test_the_nearer_the_limit_the_less_is_reserved_at_a_time() -> None:
    steps = [next_reservation(0, [account(limit, 0)], 10) for limit in (64_000, 3_200, 320, 100)]
    assert steps == [2_000, 100, 10, 10]


@pytest.mark.parametrize(
    ("spent", "percents"), [(0, ()), (79, ()), (80, (80,)), (99, (80,)), (100, (80, 100))]
)
def test_warnings_are_due_at_80_and_100_percent(spent: int, percents: tuple[int, ...]) -> None:
    assert due_warnings(account(100, spent)) == percents


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "$0.00"), (5, "$0.000005"), (1_200, "$0.0012"), (25_500_000, "$25.50")],
)
def test_small_amounts_keep_their_digits(micros: int, text: str) -> None:
    assert dollars(micros) == text
