"""What a worker may do, given the times of its heartbeats."""

from itertools import pairwise

import pytest

from chatd.domain.lease import HeartbeatHistory, ReapScope, may_reap
from chatd.engine.lease import LeaseHealth, lease_health

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
        pytest.param(steadily(100, 129), 129.0, "locks", id="not yet a lease long"),
        pytest.param(steadily(100, 130), 130.0, "leases", id="as long as a lease"),
        pytest.param(steadily(100, 130), 133.0, "none", id="a lease long, then suspended"),
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
    assert may_reap(history_of(0.0, 10.0, 20.0, interval_s=10.0), 20.0) == "locks"
    assert may_reap(history_of(0.0, 15.0, 30.0, interval_s=10.0), 30.0) == "leases"


def test_the_reap_scope_only_grows_while_heartbeats_succeed() -> None:
    order = {"none": 0, "locks": 1, "leases": 2}
    history = HeartbeatHistory(interval_s=1.0)
    scopes: list[int] = []
    for now in steadily(0, 60):
        history = history.succeeded(now)
        scopes.append(order[may_reap(history, now)])
    assert all(before <= after for before, after in pairwise(scopes))
    assert scopes[-1] == 2


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (0.0, "ok"),
        (19.9, "ok"),
        (20.0, "no_new_work"),
        (29.9, "no_new_work"),
        (30.0, "cancel_runs"),
        (3600.0, "cancel_runs"),
    ],
)
def test_an_unrenewed_lease_first_forbids_new_work_and_then_all_work(
    age_s: float, expected: LeaseHealth
) -> None:
    assert lease_health(1000.0, 1000.0 + age_s) == expected
