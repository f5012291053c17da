"""The idle timeout of a stream: it ends once, expired or released."""

import pytest

from chatd.domain.model.failures import known_failure
from chatd.domain.model.retry import STREAM_IDLE_TIMEOUT_S, IdleTimeout

FAILURE = known_failure("config", "openai")
IDLE = known_failure("stream_silence_timeout", "openai")


@pytest.mark.covers("loop-9")
def test_the_timeout_expires_at_its_deadline_and_not_before() -> None:
    timeout = IdleTimeout.armed(100.0, 10.0)
    assert not timeout.checked(109.9).is_expired
    assert timeout.checked(110.0).is_expired


def test_the_default_is_ten_minutes() -> None:
    assert STREAM_IDLE_TIMEOUT_S == 600
    assert IdleTimeout.armed(0.0).wait_s(0.0) == 600


@pytest.mark.covers("loop-9")
def test_every_event_restarts_the_timeout() -> None:
    timeout = IdleTimeout.armed(0.0, 10.0).touched(9.0)
    assert not timeout.checked(18.9).is_expired
    assert timeout.checked(19.0).is_expired
    assert timeout.wait_s(15.0) == 4.0
    assert timeout.wait_s(30.0) == 0.0


@pytest.mark.covers("loop-7")
def test_a_released_timeout_does_not_expire() -> None:
    timeout = IdleTimeout.armed(0.0, 10.0).released()
    assert not timeout.checked(99.0).is_expired
    assert timeout.checked(99.0) == timeout


@pytest.mark.covers("loop-7")
def test_an_expired_timeout_stays_expired() -> None:
    timeout = IdleTimeout.armed(0.0, 10.0).checked(10.0)
    assert timeout.released().is_expired
    assert timeout.touched(10.0).is_expired


@pytest.mark.covers("loop-8")
def test_every_end_of_a_stream_after_expiry_is_an_idle_timeout() -> None:
    timeout = IdleTimeout.armed(0.0, 10.0).checked(10.0)
    assert timeout.failure("openai", FAILURE) == IDLE
    assert timeout.failure("openai", None) == IDLE
    assert IDLE.retryable


@pytest.mark.covers("loop-7")
def test_a_released_timeout_leaves_the_streams_own_failure() -> None:
    timeout = IdleTimeout.armed(0.0, 10.0).released()
    assert timeout.failure("openai", FAILURE) is FAILURE
    assert timeout.failure("openai", None) is None
