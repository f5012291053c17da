"""What a worker may do, given the times of its heartbeats."""

from itertools import pairwise
from uuid import UUID

import pytest

from chatd.domain.chat.lease import (
    OWN_HEARTBEATS_TO_REAP_LEASES_S,
    SILENT_AFTER_S,
    UNANSWERED_TTL_S,
    HeartbeatHistory,
    LeaseHealth,
    ReapScope,
    SeenWorker,
    WorkerObservations,
    lease_health,
    may_reap,
)
from chatd.domain.ids import WorkerId

FAILED = None


def history_of(*times: float | None, interval_s: float = 1.0) -> HeartbeatHistory:
    history = HeartbeatHistory(interval_s=interval_s)
    for at in times:
        history = history.failed() if at is None else history.succeeded(at)
    return history


def steadily(start: float, end: float, step: float = 1.0) -> list[float]:
    return [start + step * n for n in range(round((end - start) / step) + 1)]


@pytest.mark.parametrize(
    ("times", "now", "expected"),
    [
        pytest.param([], 100.0, "none", id="no heartbeat"),
        pytest.param([100.0], 100.0, "none", id="once"),
        pytest.param([100.0, 102.0], 102.0, "none", id="twice, long enough"),
        pytest.param([100.0, 100.5, 101.0], 101.0, "none", id="three times, too quickly"),
        pytest.param([100.0, 101.0, 102.0], 102.0, "locks", id="three times over two seconds"),
        pytest.param([100.0, 101.0, 102.0], 104.0, "locks", id="and the next heartbeat is late"),
        pytest.param([100.0, 101.0, 102.0], 104.1, "none", id="then the process was suspended"),
        pytest.param(steadily(100, 114), 114.0, "locks", id="not yet long enough"),
        pytest.param(steadily(100, 115), 115.0, "leases", id="long enough"),
        pytest.param(steadily(100, 130), 133.0, "none", id="long enough, then suspended"),
        pytest.param([*steadily(100, 130), FAILED], 130.0, "none", id="failed just now"),
        pytest.param(
            [*steadily(100, 130), FAILED, 132.0, 133.0], 133.0, "none", id="back for a moment"
        ),
        pytest.param(
            [*steadily(100, 130), FAILED, 132.0, 133.0, 134.0], 134.0, "locks", id="back again"
        ),
        pytest.param(
            [*steadily(100, 130), 132.5, 133.5], 133.5, "none", id="a gap counts like a failure"
        ),
        pytest.param(
            [*steadily(100, 130), 132.5, 133.5, 134.5], 134.5, "locks", id="after the gap"
        ),
    ],
)
def test_reaping_needs_an_unbroken_run_of_heartbeats(
    times: list[float | None], now: float, expected: ReapScope
) -> None:
    assert may_reap(history_of(*times), now) == expected


def test_a_gap_of_two_intervals_is_a_slow_heartbeat() -> None:
    assert may_reap(history_of(0.0, 2.0, 4.0), 4.0) == "locks"


def test_slow_intervals_need_the_same_time_and_no_more_heartbeats() -> None:
    assert may_reap(history_of(0.0, 5.0, 14.0, interval_s=10.0), 14.0) == "locks"
    assert may_reap(history_of(0.0, 5.0, 15.0, interval_s=10.0), 15.0) == "leases"


def test_the_reap_scope_only_grows_while_heartbeats_succeed() -> None:
    order = {"none": 0, "locks": 1, "leases": 2}
    history = HeartbeatHistory(interval_s=1.0)
    scopes: list[int] = []
    for now in steadily(0, 60):
        history = history.succeeded(now)
        scopes.append(order[may_reap(history, now)])
    assert all(before <= after for before, after in pairwise(scopes))
    assert scopes[-1] == 2


OTHER = WorkerId(UUID(int=7))


def observe(
    *sights: tuple[float, int | None, bool] | None, interval_s: float = 1.0
) -> WorkerObservations:
    """Heartbeats at these times find the other worker with a renewal and a lock; None fails."""
    observed = WorkerObservations(history=HeartbeatHistory(interval_s=interval_s))
    for sight in sights:
        if sight is None:
            observed = observed.failed()
            continue
        at, renewal, has_lock = sight
        seen = SeenWorker(worker_id=OTHER, renewal=renewal, has_lock=has_lock)
        observed = observed.succeeded([seen], sent_at=at, now=at)
    return observed


def alive(start: float, end: float) -> list[tuple[float, int | None, bool]]:
    return [(at, round(at), True) for at in steadily(start, end)]


def seen_at(
    times: list[float], renewal: int | None, *, has_lock: bool
) -> list[tuple[float, int | None, bool]]:
    return [(at, renewal, has_lock) for at in times]


LIVED = alive(0, 40)
QUICK = steadily(40.25, 42.5, 0.25)


@pytest.mark.parametrize(
    ("sights", "is_dead"),
    [
        pytest.param(LIVED, False, id="renews, with its lock"),
        pytest.param([(at, round(at), False) for at in steadily(0, 40)], False, id="without"),
        pytest.param([*LIVED, *seen_at(QUICK[:2], 40, has_lock=False)], False, id="gone for 0.5 s"),
        pytest.param([*LIVED, *seen_at(QUICK[:3], 40, has_lock=False)], True, id="gone for 0.75 s"),
        pytest.param(
            [*LIVED, *seen_at(QUICK[:6], 40, has_lock=False), (42.0, 41, False)],
            False,
            id="gone, then renewed",
        ),
        pytest.param(
            [*LIVED, *seen_at(QUICK[:6], 40, has_lock=False), (42.0, 40, True)],
            False,
            id="gone, then locked again",
        ),
        pytest.param(
            [*LIVED, *seen_at([41.0, 42.0], 40, has_lock=False)], False, id="gone in two heartbeats"
        ),
        pytest.param(
            [*LIVED, *seen_at(steadily(41, 50), 40, has_lock=True)], False, id="stalled for 10 s"
        ),
        pytest.param(
            [*LIVED, *seen_at(steadily(41, 51), 40, has_lock=True)], True, id="stalled for 11 s"
        ),
        pytest.param(
            [*alive(0, 1), *seen_at([1.25, 1.5, 1.75], 1, has_lock=False)],
            False,
            id="the observer has just started",
        ),
        pytest.param(
            seen_at(steadily(0, 2, 0.25), 1, has_lock=False), True, id="dead before the observer"
        ),
        pytest.param(
            [*LIVED, *seen_at(QUICK[:4], 40, has_lock=False), (100.0, 40, False)],
            False,
            id="the observer was suspended",
        ),
        pytest.param(
            [*LIVED, *seen_at(QUICK[:4], 40, has_lock=False), None, (42.5, 40, False)],
            False,
            id="the observer lost the database",
        ),
        pytest.param(
            [*LIVED, *seen_at(QUICK[:3], None, has_lock=False)], False, id="unregistered for 0.5 s"
        ),
        pytest.param(
            [*LIVED, *seen_at(QUICK[:4], None, has_lock=False)], True, id="unregistered for 0.75 s"
        ),
        pytest.param(
            [*LIVED, *seen_at(steadily(41, 51), None, has_lock=True)],
            False,
            id="unregistered, with its lock",
        ),
        pytest.param(
            seen_at(steadily(0, 10, 0.25), None, has_lock=False),
            False,
            id="unregistered, seen by a new observer",
        ),
    ],
)
def test_a_worker_is_dead_when_its_renewals_were_seen_to_stop(
    sights: list[tuple[float, int | None, bool] | None], *, is_dead: bool
) -> None:
    now = next(sight[0] for sight in reversed(sights) if sight is not None)
    dead = observe(*sights).dead(now)
    assert [seen.worker_id for seen in dead] == ([OTHER] if is_dead else [])


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    ("sights", "watched"),
    [
        pytest.param([*LIVED, *seen_at(QUICK[:6], 40, has_lock=False)], True, id="died"),
        pytest.param([*LIVED, *seen_at(steadily(41, 73), 40, has_lock=True)], True, id="stalled"),
        pytest.param(
            seen_at(steadily(0, 2, 0.25), 1, has_lock=False), False, id="dead before the observer"
        ),
        pytest.param(
            [*LIVED, None, *seen_at(steadily(60, 93), 40, has_lock=True)],
            False,
            id="never back after a freeze of the database",
        ),
        pytest.param(
            [*LIVED, *seen_at(steadily(60, 93), 40, has_lock=True)],
            False,
            id="never back after a pause of the observer",
        ),
        pytest.param(
            [*LIVED, None, *alive(60, 70), *seen_at(steadily(71, 103), 70, has_lock=True)],
            True,
            id="back after a freeze, then stalled",
        ),
    ],
)
def test_a_reaper_has_watched_a_worker_that_it_saw_renew_since_the_database_last_failed(
    sights: list[tuple[float, int | None, bool] | None], *, watched: bool
) -> None:
    assert observe(*sights).death_notices({OTHER})[OTHER].watched is watched


@pytest.mark.covers("F19")
@pytest.mark.parametrize("jump", [3600_000_000, -3600_000_000])
def test_a_jump_of_the_databases_clock_is_a_renewal(jump: int) -> None:
    """The renewal is compared with the one before, and never with a clock."""
    sights = [*LIVED, *seen_at(steadily(41, 50), 40 + jump, has_lock=True)]
    assert observe(*sights).dead(50.0) == ()


def test_a_slow_reply_does_not_make_a_worker_look_older() -> None:
    observed = WorkerObservations(history=HeartbeatHistory(interval_s=5.0))
    seen = SeenWorker(worker_id=OTHER, renewal=1, has_lock=False)
    for sent_at in (0.0, 4.0, 8.0):
        observed = observed.succeeded([seen], sent_at=sent_at, now=sent_at + 3.9)
    assert observed.workers[OTHER].unchanged_s == pytest.approx(8.0 - 3.9)


def test_a_worker_without_its_lock_is_looked_at_early_until_it_is_judged() -> None:
    assert not observe(*LIVED).has_suspects(())
    gone = observe(*LIVED, (40.25, 40, False))
    assert gone.has_suspects(())
    assert not gone.has_suspects([gone.workers[OTHER].seen])


@pytest.mark.parametrize(
    ("age_s", "unanswered", "down"),
    [
        (0.0, "ok", "ok"),
        (5.9, "ok", "ok"),
        (6.0, "no_new_work", "ok"),
        (8.9, "no_new_work", "ok"),
        (9.0, "cancel_runs", "ok"),
        (19.9, "cancel_runs", "ok"),
        (20.0, "cancel_runs", "no_new_work"),
        (29.9, "cancel_runs", "no_new_work"),
        (30.0, "cancel_runs", "cancel_runs"),
        (3600.0, "cancel_runs", "cancel_runs"),
    ],
)
def test_an_unrenewed_lease_first_forbids_new_work_and_then_all_work(
    age_s: float, unanswered: LeaseHealth, down: LeaseHealth
) -> None:
    """Longer while the database is down for all."""
    now = 1000.0 + age_s
    assert lease_health(1000.0, now, is_database_down=False) == unanswered
    assert lease_health(1000.0, now, is_database_down=True) == down


def test_a_silent_worker_has_given_up_its_chats_before_it_is_reaped() -> None:
    assert UNANSWERED_TTL_S < SILENT_AFTER_S < OWN_HEARTBEATS_TO_REAP_LEASES_S
