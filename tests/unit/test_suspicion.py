"""Which deaths of workers tell against the chat that they ran."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.commands import ReapChat
from chatd.domain.chat.lease import (
    DEATHS_TO_ISOLATE,
    ISOLATION_S,
    MAX_LONE_DEATHS,
    STABLE_WORKER_S,
    WORKER_CRASHED_ERROR,
    HeartbeatHistory,
    IsolatedRun,
    SeenWorker,
    WorkerDeath,
    WorkerObservations,
    find_suspects,
    is_evidence,
    is_isolated,
    is_stable,
    suspect_delay_s,
)
from chatd.domain.chat.row import NO_SETBACKS
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire, reap
from chatd.domain.ids import ChatId
from tests.support.factories import WORKER
from tests.support.seeds import seed_state

LONG = STABLE_WORKER_S
A, B, C = (ChatId(UUID(int=number)) for number in (1, 2, 3))
ONE, TWO = frozenset({A}), frozenset({A, B})


DIED = WorkerDeath(uptime_s=LONG, suspects=ONE, lock_held=False, watched=True)
STALLED = replace(DIED, lock_held=True)


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    ("death", "tells"),
    [
        (DIED, True),
        (replace(DIED, uptime_s=LONG - 1), False),
        (replace(DIED, suspects=frozenset[ChatId]()), False),
        (replace(DIED, suspects=TWO), False),
        (replace(DIED, draining=True), False),
        (STALLED, True),
        (replace(STALLED, suspects=TWO), False),
        (replace(DIED, watched=False, before_reaper=True), True),
        (replace(STALLED, watched=False, before_reaper=True), False),
        (replace(DIED, watched=False), False),
        (replace(STALLED, watched=False), False),
    ],
    ids=[
        *("alone", "dies_at_start", "no_suspect", "two_suspects", "killed_while_draining"),
        *("stalled", "stalled_with_two"),
        *("found_by_a_restarted_server", "stall_found_by_a_new_server"),
        *("lock_lost_while_the_database_was_away", "frozen_with_the_database"),
    ],
)
def test_a_death_tells_against_the_only_suspect_of_a_worker_that_had_run_for_a_while(
    death: WorkerDeath, *, tells: bool
) -> None:
    assert is_evidence(death) is tells


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    ("ran_s", "suspects"),
    [
        (dict[ChatId, float](), set[ChatId]()),
        ({A: 1.0}, {A}),
        ({A: ISOLATION_S}, {A}),
        ({A: ISOLATION_S, B: 1.0}, {B}),
        ({A: 500.0, B: 3.0, C: 1.0}, {B, C}),
        ({A: 500.0, B: 100.0}, {A, B}),
    ],
)
def test_isolated_chats_that_had_run_for_long_are_no_suspects_beside_a_new_one(
    ran_s: dict[ChatId, float], suspects: set[ChatId]
) -> None:
    runs = [IsolatedRun(chat_id=chat_id, ran_s=ran) for chat_id, ran in ran_s.items()]
    assert find_suspects(runs) == suspects


@pytest.mark.promise("P2")
@pytest.mark.parametrize("frozen_s", [3, 20, 40, 90])
@pytest.mark.parametrize("lock_held", [True, False])
def test_no_number_of_freezes_of_the_database_is_blamed_on_a_chat(
    frozen_s: float, *, lock_held: bool
) -> None:
    """Heartbeats of the reaper fail meanwhile. Afterwards the worker never renews again."""
    chat, worker = seed_state(State.R0).chat, WORKER
    observed, at = WorkerObservations(history=HeartbeatHistory(interval_s=1.0)), 0.0
    for _ in range(DEATHS_TO_ISOLATE + MAX_LONE_DEATHS):
        seen = SeenWorker(worker_id=worker, renewal=None, has_lock=True)
        for _ in range(40):
            seen, at = replace(seen, renewal=round(at)), at + 1
            observed = observed.succeeded([seen], sent_at=at, now=at)
        observed, at = observed.failed(), at + frozen_s
        seen = replace(seen, has_lock=lock_held)
        while not observed.dead(at):
            at += 1
            observed = observed.succeeded([seen], sent_at=at, now=at)
        notice = observed.death_notices({worker})[worker]
        death = replace(DIED, lock_held=lock_held, watched=notice.watched)
        blamed = frozenset({chat.id}) if is_evidence(death) else frozenset[ChatId]()
        command = ReapChat(worker_ids=frozenset({worker}), blamed=blamed)
        chat = acquire(reap(chat, command).after, worker).after
    assert is_isolated(chat)
    assert (chat.state, (chat.setbacks or NO_SETBACKS).lone_deaths) == (State.R0, 0)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("heartbeat_s", [0.25, 1.0, 4.9])
def test_a_worker_takes_an_isolated_chat_when_its_death_at_once_would_tell(
    heartbeat_s: float,
) -> None:
    """The age at its death is known by its last heartbeat."""
    ages = [age / 10 for age in range(300) if is_stable(age / 10)]
    assert is_evidence(replace(DIED, uptime_s=ages[0] - heartbeat_s))


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
