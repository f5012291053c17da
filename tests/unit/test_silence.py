"""The guard of a stream that may say nothing: it ends once, one way or the other."""

import pytest

from chatd.domain.model.failures import known_failure
from chatd.domain.model.retry import STREAM_IDLE_TIMEOUT_S, IdleTimeout

FAILURE = known_failure("config", "openai")
SILENT = known_failure("stream_silence_timeout", "openai")


@pytest.mark.covers("loop-9")
def test_the_guard_fires_when_its_time_has_come_and_not_before() -> None:
    guard = IdleTimeout.armed(100.0, 10.0)
    assert not guard.checked(109.9).is_expired
    assert guard.checked(110.0).is_expired


def test_ten_minutes_are_the_default() -> None:
    assert STREAM_IDLE_TIMEOUT_S == 600
    assert IdleTimeout.armed(0.0).wait_s(0.0) == 600


@pytest.mark.covers("loop-9")
def test_every_event_gives_the_stream_its_whole_time_again() -> None:
    guard = IdleTimeout.armed(0.0, 10.0).touched(9.0)
    assert not guard.checked(18.9).is_expired
    assert guard.checked(19.0).is_expired
    assert guard.wait_s(15.0) == 4.0
    assert guard.wait_s(30.0) == 0.0


@pytest.mark.covers("loop-7")
def test_a_reader_that_lets_go_first_is_not_disturbed_by_the_timer() -> None:
    guard = IdleTimeout.armed(0.0, 10.0).released()
    assert not guard.checked(99.0).is_expired
    assert guard.checked(99.0) == guard


@pytest.mark.covers("loop-7")
def test_a_timer_that_fires_first_is_not_undone_by_the_reader() -> None:
    guard = IdleTimeout.armed(0.0, 10.0).checked(10.0)
    assert guard.released().is_expired
    assert guard.touched(10.0).is_expired


@pytest.mark.covers("loop-8")
def test_whatever_ends_a_stream_after_the_guard_fired_is_silence() -> None:
    guard = IdleTimeout.armed(0.0, 10.0).checked(10.0)
    assert guard.failure("openai", FAILURE) == SILENT
    assert guard.failure("openai", None) == SILENT
    assert SILENT.retryable


@pytest.mark.covers("loop-7")
def test_a_guard_that_was_released_leaves_the_streams_own_end() -> None:
    guard = IdleTimeout.armed(0.0, 10.0).released()
    assert guard.failure("openai", FAILURE) is FAILURE
    assert guard.failure("openai", None) is None
