"""Which runner fits a workspace, why a build waits, and which versions work together."""

from datetime import timedelta

import msgspec
import pytest

from chatd.domain.ids import UserId
from chatd.domain.workspace.runners import (
    BackendOffer,
    Requirements,
    Runner,
    RunnerId,
    explain_version_gap,
    explain_wait,
    fits,
    is_connected,
    takes_new,
)
from tests.support.factories import AT, OWNER

NEEDS = Requirements(backend="container", pool="build", labels=("gpu",))


def runner(**columns: object) -> Runner:
    row = Runner(
        id=RunnerId("r1"),
        name="one",
        pool="build",
        labels=("gpu", "big"),
        backends=(BackendOffer(kind="container"), BackendOffer(kind="sandbox")),
        created_at=AT,
        connected_at=AT,
        seen_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


@pytest.mark.parametrize(
    ("columns", "connected"),
    [
        ({}, True),
        ({"connected_at": None}, False),
        ({"seen_at": AT - timedelta(seconds=31)}, False),
        ({"seen_at": AT - timedelta(seconds=30)}, True),
        ({"disconnected_at": AT}, False),
        ({"disconnected_at": AT - timedelta(seconds=1)}, True),
    ],
)
def test_a_runner_is_connected_while_a_replica_hears_of_it(
    columns: dict[str, object], *, connected: bool
) -> None:
    assert is_connected(runner(**columns), AT) is connected


@pytest.mark.parametrize(
    ("columns", "taking"),
    [
        ({}, True),
        ({"draining": True}, False),
        ({"capacity": 2, "running": 1}, True),
        ({"capacity": 2, "running": 2}, False),
        ({"owner_id": OWNER}, False),
    ],
)
def test_a_runner_takes_new_workspaces_unless_full_drained_or_personal(
    columns: dict[str, object], *, taking: bool
) -> None:
    assert takes_new(runner(**columns)) is taking


@pytest.mark.parametrize(
    ("needs", "fitting"),
    [
        (NEEDS, True),
        (Requirements(backend="container", pool="build"), True),
        (Requirements(backend="container", pool=""), False),
        (Requirements(backend="kubernetes", pool="build"), False),
        (Requirements(backend="container", pool="build", labels=("gpu", "arm")), False),
    ],
)
def test_a_runner_fits_by_backend_pool_and_all_labels(
    needs: Requirements, *, fitting: bool
) -> None:
    assert fits(runner(), needs) is fitting


OTHER_PERSON = UserId(OWNER)


@pytest.mark.parametrize(
    ("host", "runners", "text"),
    [
        (None, [runner()], ""),
        ("r1", [runner()], ""),
        ("r1", [runner(capacity=1, running=1)], ""),
        ("r2", [runner()], "has been removed"),
        ("r1", [runner(disconnected_at=AT)], "The runner one is not connected since"),
        (
            "r1",
            [runner(backends=(BackendOffer(kind="sandbox"),))],
            "The runner one no longer offers container workspaces",
        ),
        (None, [], "No runner of the pool build offers container workspaces with the labels gpu"),
        (None, [runner(owner_id=OTHER_PERSON)], "offers container workspaces"),
        (None, [runner(disconnected_at=AT)], "that fits is connected: one"),
        (None, [runner(draining=True)], "is being drained"),
        (None, [runner(draining=True), runner(capacity=1, running=1)], "is full"),
        (None, [runner(draining=True), runner()], ""),
    ],
)
def test_a_waiting_build_says_what_it_waits_for(
    host: str | None, runners: list[Runner], text: str
) -> None:
    told = explain_wait(NEEDS, host, runners, AT)
    assert text in told
    assert bool(text) == bool(told)


@pytest.mark.parametrize(
    ("theirs", "ours", "works"),
    [
        ("1.4.0", "1.4.9", True),
        ("1.3.2", "1.4.0", True),
        ("1.5.0", "1.4.0", True),
        ("1.2.9", "1.4.0", False),
        ("1.6.0", "1.4.0", False),
        ("2.4.0", "1.4.0", False),
        ("dev", "1.4.0", True),
    ],
)
def test_versions_one_minor_apart_work_together(theirs: str, ours: str, *, works: bool) -> None:
    told = explain_version_gap(theirs, ours)
    assert (told is None) is works
    if told is not None:
        older = "runner" if theirs < ours else "server"
        assert f"Upgrade the {older}" in told
