"""The circuit of a provider: closed, open, half open."""

import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import ChatError
from chatd.domain.model.circuit import (
    FAILURES_TO_OPEN,
    FIRST_OPEN_S,
    MAX_CIRCUIT_WAIT_S,
    MAX_OPEN_S,
    MAX_UNREACHED_WAIT_S,
    PROBE_TIMEOUT_S,
    PROBE_WAIT_S,
    CallAllowed,
    CallRefused,
    Circuit,
    after_answer,
    after_failure,
    after_no_outcome,
    is_of_provider,
    is_wait_over,
    request_call,
)
from chatd.domain.model.failures import ClassifiedFailure, FailureKind


def failed(
    kind: FailureKind = "overloaded",
    *,
    retryable: bool = True,
    after: float | None = None,
    status: int | None = None,
) -> ClassifiedFailure:
    error = ChatError(message="no", kind=kind, retryable=retryable, status_code=status)
    return ClassifiedFailure(kind=kind, error=error, retry_after_s=after)


DOWN = failed()


def after_failures(count: int, circuit: Circuit | None = None, *, now: float = 0.0) -> Circuit:
    circuit = circuit or Circuit()
    for _ in range(count):
        circuit = after_failure(circuit, DOWN, now)
    return circuit


OPEN = after_failures(FAILURES_TO_OPEN)


def probing(circuit: Circuit, now: float) -> Circuit:
    decision = request_call(circuit, now)
    assert isinstance(decision, CallAllowed)
    assert decision.circuit.probed_at == now
    return decision.circuit


@pytest.mark.parametrize(
    ("failure", "counts"),
    [
        (failed("overloaded", status=529), True),
        (failed("timeout", status=503), True),
        (failed("timeout"), True),
        (failed("generic", status=500), True),
        (failed("generic"), True),
        (failed("rate_limit", status=429, after=7), True),
        (failed("rate_limit", status=429), False),
        (failed("generic", status=409), False),
        (failed("stream_silence_timeout"), False),
        (failed("config", status=400, retryable=False), False),
        (failed("auth", status=401, retryable=False), False),
        (failed("context_overflow", status=400, retryable=False), False),
        (failed("timeout", retryable=False), False),
    ],
    ids=repr,
)
def test_only_a_failure_that_other_chats_would_have_counts(
    failure: ClassifiedFailure, *, counts: bool
) -> None:
    assert is_of_provider(failure) is counts
    circuit = after_failures(FAILURES_TO_OPEN - 1)
    assert after_failure(circuit, failure, 0).is_open is counts


def test_failures_in_a_row_open_the_circuit() -> None:
    assert not after_failures(FAILURES_TO_OPEN - 1).is_open
    assert request_call(OPEN, 1) == CallRefused(wait_s=FIRST_OPEN_S - 1, cause=DOWN)


def test_an_answer_in_between_starts_the_count_again() -> None:
    circuit = after_answer(after_failures(FAILURES_TO_OPEN - 1))
    assert not after_failures(FAILURES_TO_OPEN - 1, circuit).is_open


def test_one_probe_is_allowed_when_the_time_has_passed() -> None:
    now = FIRST_OPEN_S
    circuit = probing(OPEN, now)
    assert request_call(circuit, now) == CallRefused(wait_s=PROBE_WAIT_S, cause=DOWN)


def test_the_answer_to_the_probe_closes_the_circuit() -> None:
    circuit = after_answer(probing(OPEN, FIRST_OPEN_S))
    assert circuit == Circuit()
    assert isinstance(request_call(circuit, FIRST_OPEN_S), CallAllowed)


def test_each_failed_probe_opens_the_circuit_for_longer() -> None:
    circuit, now, waits = OPEN, 0.0, list[float]()
    for _ in range(6):
        waits.append(circuit.open_until - now)
        now = circuit.open_until
        circuit = after_failure(probing(circuit, now), DOWN, now)
    assert waits == [FIRST_OPEN_S, 10, 20, 40, MAX_OPEN_S, MAX_OPEN_S]


def test_calls_that_began_before_the_circuit_opened_change_nothing() -> None:
    assert after_failures(100, OPEN, now=3.0) == OPEN


def test_a_probe_that_tells_nothing_lets_another_chat_probe() -> None:
    circuit = after_no_outcome(probing(OPEN, FIRST_OPEN_S))
    assert isinstance(request_call(circuit, FIRST_OPEN_S), CallAllowed)
    bad_request = failed("config", status=400, retryable=False)
    circuit = after_failure(probing(OPEN, FIRST_OPEN_S), bad_request, FIRST_OPEN_S)
    assert circuit.is_open
    assert isinstance(request_call(circuit, FIRST_OPEN_S), CallAllowed)


def test_a_probe_without_an_outcome_is_replaced_after_a_while() -> None:
    circuit = probing(OPEN, FIRST_OPEN_S)
    late = FIRST_OPEN_S + PROBE_TIMEOUT_S
    assert isinstance(request_call(circuit, late - 1), CallRefused)
    assert isinstance(request_call(circuit, late), CallAllowed)


def test_a_longer_wait_that_the_provider_requests_is_kept() -> None:
    circuit = after_failures(FAILURES_TO_OPEN - 1)
    circuit = after_failure(circuit, failed("rate_limit", after=90), 0, jitter=1.0)
    assert circuit.open_until == 90 * 1.25


def test_a_chat_waits_for_a_bounded_time() -> None:
    assert not is_wait_over(DOWN, int(MAX_CIRCUIT_WAIT_S * 1000) - 1)
    assert is_wait_over(DOWN, int(MAX_CIRCUIT_WAIT_S * 1000))
    assert not is_wait_over(DOWN, int(MAX_CIRCUIT_WAIT_S * 1000), 86400.0)
    assert is_wait_over(DOWN, 86_400_000, 86400.0)
    unreached = replace(DOWN, never_reached="refused")
    assert is_wait_over(unreached, int(MAX_UNREACHED_WAIT_S * 1000))
    before_a_restart = int(MAX_UNREACHED_WAIT_S * 5000)
    assert not is_wait_over(unreached, before_a_restart)
