"""The guard of a stream that may say nothing: it ends once, one way or the other."""

import pytest

from chatd.domain.failures import known_failure
from chatd.domain.silence import SILENCE_S, Silence

FAILURE = known_failure("config", "openai")
SILENT = known_failure("stream_silence_timeout", "openai")


@pytest.mark.covers("loop-9")
def test_the_guard_fires_when_its_time_has_come_and_not_before() -> None:
    guard = Silence.armed(100.0, 10.0)
    assert not guard.checked(109.9).fired
    assert guard.checked(110.0).fired


def test_ten_minutes_are_the_default() -> None:
    assert SILENCE_S == 600
    assert Silence.armed(0.0).wait_s(0.0) == 600


@pytest.mark.covers("loop-9")
def test_every_event_gives_the_stream_its_whole_time_again() -> None:
    guard = Silence.armed(0.0, 10.0).heard(9.0)
    assert not guard.checked(18.9).fired
    assert guard.checked(19.0).fired
    assert guard.wait_s(15.0) == 4.0
    assert guard.wait_s(30.0) == 0.0


@pytest.mark.covers("loop-7")
def test_a_reader_that_lets_go_first_is_not_disturbed_by_the_timer() -> None:
    guard = Silence.armed(0.0, 10.0).released()
    assert not guard.checked(99.0).fired
    assert guard.checked(99.0) == guard


@pytest.mark.covers("loop-7")
def test_a_timer_that_fires_first_is_not_undone_by_the_reader() -> None:
    guard = Silence.armed(0.0, 10.0).checked(10.0)
    assert guard.released().fired
    assert guard.heard(10.0).fired


@pytest.mark.covers("loop-8")
def test_whatever_ends_a_stream_after_the_guard_fired_is_silence() -> None:
    guard = Silence.armed(0.0, 10.0).checked(10.0)
    assert guard.failure("openai", FAILURE) == SILENT
    assert guard.failure("openai", None) == SILENT
    assert SILENT.retryable


@pytest.mark.covers("loop-7")
def test_a_guard_that_was_released_leaves_the_streams_own_end() -> None:
    guard = Silence.armed(0.0, 10.0).released()
    assert guard.failure("openai", FAILURE) is FAILURE
    assert guard.failure("openai", None) is None
