"""Which deaths of workers tell against the chat that they ran."""

import pytest

from chatd.domain.chat.states import State
from chatd.domain.chat.suspicion import (
    STABLE_WORKER_S,
    WORKER_CRASHED_ERROR,
    WorkerDeath,
    is_evidence,
    is_isolated,
    suspect_delay_s,
)
from tests.support.seeds import seed_state

LONG = STABLE_WORKER_S


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    ("death", "tells"),
    [
        (WorkerDeath(uptime_s=LONG, isolated=1, lock_held=False), True),
        (WorkerDeath(uptime_s=LONG - 1, isolated=1, lock_held=False), False),
        (WorkerDeath(uptime_s=LONG, isolated=0, lock_held=False), False),
        (WorkerDeath(uptime_s=LONG, isolated=2, lock_held=False), False),
        (WorkerDeath(uptime_s=LONG, isolated=1, lock_held=True), True),
        (WorkerDeath(uptime_s=LONG, isolated=2, lock_held=True), False),
        (WorkerDeath(uptime_s=LONG, isolated=1, lock_held=False, draining=True), False),
    ],
    ids=[
        *("alone", "dies_at_start", "no_suspect", "two_suspects", "stalled", "stalled_with_two"),
        "killed_while_draining",
    ],
)
def test_a_death_tells_against_the_only_suspect_of_a_worker_that_had_run_for_a_while(
    death: WorkerDeath, *, tells: bool
) -> None:
    assert is_evidence(death) is tells


def test_a_running_chat_is_isolated_from_the_second_death_on() -> None:
    counts = [is_isolated(seed_state(State.R0, orphans=deaths).chat) for deaths in range(4)]
    assert counts == [False, False, True, True]
    assert not is_isolated(seed_state(State.I0, orphans=3).chat)


def test_the_delay_doubles_up_to_a_minute_and_is_spread() -> None:
    assert [suspect_delay_s(deaths) for deaths in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert suspect_delay_s(3, jitter=1.0) == 2.5
    assert suspect_delay_s(1, jitter=1.0) == 0


def test_the_error_says_what_happened_and_what_to_do() -> None:
    assert "3 times" in WORKER_CRASHED_ERROR.message
    assert "Send a message to try again" in WORKER_CRASHED_ERROR.message
