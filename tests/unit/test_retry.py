"""When a failed model call is retried, and what viewers see during the wait."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from chatd.domain.chat.row import MAX_RUNNABLE_DELAY_S, ChatError, RetryState
from chatd.domain.model.failures import ClassifiedFailure, FailureKind
from chatd.domain.model.protocol import TransportFault
from chatd.domain.model.retry import (
    MAX_MODEL_CALL_ATTEMPTS,
    MAX_RETRY_AFTER_S,
    STREAM_CONTENT_TIMEOUT_S,
    CallLimits,
    CompactFirst,
    GiveUp,
    OutageWait,
    RetryAfter,
    backoff_s,
    decide_retry,
    retry_after_s,
    retry_state,
)

NOW = datetime(2026, 3, 27, 9, 0, tzinfo=UTC)


def failed(
    kind: FailureKind = "overloaded", *, retryable: bool = True, after: float | None = None
) -> ClassifiedFailure:
    error = ChatError(message="It failed.", kind=kind, retryable=retryable)
    return ClassifiedFailure(kind=kind, error=error, retry_after_s=after)


@pytest.mark.covers("retry-1")
def test_the_delay_doubles_up_to_a_minute() -> None:
    waits = [backoff_s(failures) for failures in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff_s(10_000) == 60


@pytest.mark.covers("retry-2")
def test_a_retryable_failure_is_retried_after_the_delay_of_its_attempt() -> None:
    assert decide_retry(failed(), 1) == RetryAfter(delay_s=1)
    assert decide_retry(failed(), 3) == RetryAfter(delay_s=4)


@pytest.mark.covers("retry-2")
def test_a_permanent_failure_is_not_retried() -> None:
    assert decide_retry(failed("auth", retryable=False), 1) == GiveUp(exhausted=False)


@pytest.mark.covers("retry-3")
def test_the_twenty_fifth_attempt_is_the_last() -> None:
    assert decide_retry(failed(), MAX_MODEL_CALL_ATTEMPTS - 1) == RetryAfter(delay_s=60)
    assert decide_retry(failed(), MAX_MODEL_CALL_ATTEMPTS) == GiveUp(exhausted=True)
    assert MAX_MODEL_CALL_ATTEMPTS == 25


def down(kind: FailureKind = "timeout", status: int | None = 503) -> ClassifiedFailure:
    error = ChatError(message="It failed.", kind=kind, retryable=True, status_code=status)
    return ClassifiedFailure(kind=kind, error=error)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("failure", "outage", "goes_on"),
    [
        pytest.param(down(), OutageWait(), True, id="a server error"),
        pytest.param(down("overloaded", 529), OutageWait(), True, id="overload"),
        pytest.param(down("rate_limit", 429), OutageWait(), True, id="a rate limit"),
        pytest.param(down("timeout", None), OutageWait(), True, id="no connection"),
        pytest.param(down("generic", 500), OutageWait(), True, id="an internal error"),
        pytest.param(down("generic", None), OutageWait(), False, id="an answer that ended badly"),
        pytest.param(down("stream_silence_timeout"), OutageWait(), False, id="silence"),
        pytest.param(down(), OutageWait(waited_ms=23 * HOUR_MS), True, id="before the end"),
        pytest.param(down(), OutageWait(waited_ms=24 * HOUR_MS), False, id="a day is over"),
        pytest.param(down(), OutageWait(limit_s=0), False, id="the operator allows none"),
        pytest.param(down(), OutageWait(is_begun=True), False, id="an answer that broke off"),
        pytest.param(failed("auth", retryable=False), OutageWait(), False, id="a refusal"),
    ],
)
def test_an_outage_is_waited_for_as_long_as_the_operator_allows(
    failure: ClassifiedFailure, outage: OutageWait, *, goes_on: bool
) -> None:
    decision = decide_retry(failure, 1_000, jitter=1.0, outage=outage)
    assert isinstance(decision, RetryAfter if goes_on else GiveUp)
    if isinstance(decision, RetryAfter):
        assert decision.delay_s == 60


@pytest.mark.parametrize("fault", ["refused", "dns", "unreachable"])
def test_a_provider_that_never_answered_is_given_up_within_a_minute(fault: TransportFault) -> None:
    unknown = msgspec.structs.replace(failed("timeout"), never_reached=fault)
    longest_attempt_s = {"refused": 1, "dns": 13, "unreachable": 15}[fault]
    attempt, passed_s = 1, 0.0
    while isinstance(decision := decide_retry(unknown, attempt), RetryAfter):
        passed_s += longest_attempt_s + decision.delay_s
        attempt += 1
    assert decision == GiveUp(exhausted=True)
    assert 1 < attempt < MAX_MODEL_CALL_ATTEMPTS
    assert passed_s + longest_attempt_s < 60


def test_a_chat_that_waits_for_a_known_provider_goes_on_after_a_restart_of_its_worker() -> None:
    """The new process has no answer of the provider yet, and the chat has many failures."""
    unknown = msgspec.structs.replace(failed("timeout"), never_reached="refused")
    assert isinstance(decide_retry(unknown, 10), RetryAfter)


def test_a_connection_that_breaks_is_retried_as_often_as_any_failure() -> None:
    broken = msgspec.structs.replace(failed("timeout"), never_reached="reset")
    last = MAX_MODEL_CALL_ATTEMPTS - 1
    assert decide_retry(broken, last) == RetryAfter(delay_s=60)


@pytest.mark.covers("retry-4")
def test_a_requested_delay_is_used_if_longer_than_the_backoff() -> None:
    assert decide_retry(failed(after=90.5), 1) == RetryAfter(delay_s=90.5)
    assert decide_retry(failed(after=0.5), 3) == RetryAfter(delay_s=4)


@pytest.mark.covers("retry-4")
def test_a_requested_delay_over_the_limit_gives_up() -> None:
    assert decide_retry(failed(after=MAX_RETRY_AFTER_S), 1) == RetryAfter(delay_s=MAX_RETRY_AFTER_S)
    assert decide_retry(failed(after=MAX_RETRY_AFTER_S + 1), 1) == GiveUp(exhausted=True)


@pytest.mark.covers("compaction-12")
def test_a_context_overflow_compacts_first_if_the_chat_is_compactable() -> None:
    overflow = failed("context_overflow", retryable=False)
    assert decide_retry(overflow, 1, compactable=True) == CompactFirst()
    assert decide_retry(overflow, MAX_MODEL_CALL_ATTEMPTS, compactable=True) == CompactFirst()
    assert decide_retry(overflow, 1, compactable=False) == GiveUp(exhausted=False)


def test_a_delay_is_spread_but_never_shorter_than_requested() -> None:
    assert decide_retry(failed(), 3, jitter=1.0) == RetryAfter(delay_s=5)
    assert decide_retry(failed(after=40), 1, jitter=0.5) == RetryAfter(delay_s=45)
    longest = decide_retry(failed(after=MAX_RETRY_AFTER_S), 1, jitter=1.0)
    assert isinstance(longest, RetryAfter)
    assert longest.delay_s <= MAX_RUNNABLE_DELAY_S


@pytest.mark.covers("retry-5")
def test_the_retry_state_has_the_attempt_its_error_and_the_next_time() -> None:
    error = ChatError(
        message="OpenAI is overloaded.",
        kind="overloaded",
        detail="Try later.",
        provider="openai",
        status_code=529,
    )
    state = retry_state(ClassifiedFailure(kind="overloaded", error=error), 2, 2.5, NOW)
    assert state == RetryState(
        attempt=2,
        delay_ms=2500,
        error="OpenAI is overloaded.",
        kind="overloaded",
        provider="openai",
        status_code=529,
        detail="Try later.",
        retrying_at=NOW + timedelta(seconds=2.5),
    )


@pytest.mark.covers("retry-5")
def test_the_retry_state_of_a_failure_without_provider_and_status_has_neither() -> None:
    state = retry_state(failed("generic"), 1, 1, NOW)
    assert (state.provider, state.status_code) == (None, None)


DATE = "Fri, 27 Mar 2026 09:00:00 GMT"
LATER = "Fri, 27 Mar 2026 09:00:30 GMT"


@pytest.mark.covers("errors-6")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "12.5"}, 0.0125),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "9"}, 9),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 9),
        ({"retry-after": LATER, "date": DATE}, 30),
        ({"retry-after": LATER}, 30),
        ({"retry-after": "Fri, 27 Mar 2026 09:00:30 -0000"}, 30),
        ({"retry-after": DATE, "date": LATER}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "in a while"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_the_requested_delay_is_read_from_the_headers(
    headers: Mapping[str, str], expected: float | None
) -> None:
    assert retry_after_s(headers, NOW) == expected


@pytest.mark.covers("errors-6")
def test_a_date_is_compared_with_the_date_of_the_response() -> None:
    headers = {"retry-after": LATER, "date": DATE}
    assert retry_after_s(headers, NOW + timedelta(days=3)) == 30
    assert retry_after_s({"retry-after": LATER}) is None


@pytest.mark.parametrize(
    ("tokens", "silence_s", "answer_s", "limit_s"),
    [
        (None, 600, None, 3800),
        (32_000, 600, None, 3800),
        (128_000, 600, None, 13_400),
        (1_000, 600, None, 700),
        (4_000, 2400, None, 2800),
        (32_000, 600, 120, 120),
    ],
)
def test_the_limit_of_an_answer_follows_from_its_output_tokens(
    tokens: int | None, silence_s: float, answer_s: float | None, limit_s: float
) -> None:
    limits = CallLimits.of_model(tokens, silence_s, answer_s)
    assert (limits.silence_s, limits.answer_s) == (silence_s, limit_s)
    assert limits.content_s == max(silence_s, STREAM_CONTENT_TIMEOUT_S)


def test_a_usual_answer_at_a_usual_speed_is_not_cut() -> None:
    assert CallLimits().answer_s > 32_000 / 35
