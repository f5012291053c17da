"""`chatd admin runners`, as processes and as lines."""

from datetime import UTC, datetime, timedelta

import pytest

from chatd.cli.administration.runner_administration import runner_row, start_commands, token_row
from chatd.client.resources import BackendOffer, Runner, RunnerToken
from chatd.domain.access.secret_text import digest, is_runner_token
from chatd.store.workspace import runners
from tests.support.command_line import ServerProcess
from tests.support.runners import insert_runner, own_runner, runner, token_id
from tests.support.store import session_to

pytestmark = pytest.mark.timeout(240)

NOW = datetime(2026, 11, 18, tzinfo=UTC)


async def test_an_administrator_lists_drains_resumes_and_removes_a_runner(
    server: ServerProcess,
) -> None:
    """Nine commands, each a process."""
    async with session_to(server.dsn) as session:
        await insert_runner(session, runner("r-1", name="north", version="0.0.1"))
        await insert_runner(session, own_runner("r-2", name="desk"), connected=False)
    listed = await server.ok("admin", "runners", "list")
    north = next(line for line in listed.out.splitlines() if line.startswith("north"))
    assert "connected" in north
    assert "(a server's own)" in north
    assert "not connected" in next(line for line in listed.out.splitlines() if "desk" in line)
    shown = (await server.ok("admin", "runners", "show", "north")).out
    assert "sandbox bwrap" in shown
    drained = await server.ok("admin", "runners", "drain", "north")
    assert "north takes no new workspaces" in drained.err
    assert "connected, drained" in (await server.ok("admin", "runners", "list")).out
    resumed = await server.ok("admin", "runners", "resume", "r-1")
    assert "north takes new workspaces" in resumed.err
    refused = await server.run("admin", "runners", "remove", "north")
    assert refused.code != 0
    assert "is connected" in refused.err
    removed = await server.ok("admin", "runners", "remove", "desk", "--json")
    assert removed.json == {"removed": "r-2"}
    unknown = await server.run("admin", "runners", "show", "desk")
    assert (unknown.code, "there are:" in unknown.err) == (2, True)


async def test_a_token_is_printed_once_with_the_commands_that_start_a_runner(
    server: ServerProcess,
) -> None:
    made = await server.ok(
        *("admin", "runners", "tokens", "create", "--pool", "build", "--expires", "30d")
    )
    token = made.out.strip()
    assert is_runner_token(token)
    for line in start_commands(server.url, token):
        assert line in made.err
    async with session_to(server.dsn) as session:
        found = await runners.find_token(session, digest(token))
    assert found is not None
    listed = (await server.ok("admin", "runners", "tokens", "list")).out
    assert token not in listed
    assert str(found.id) in listed
    await server.ok("admin", "runners", "tokens", "revoke", found.id)
    assert (await server.ok("admin", "runners", "tokens", "list", "--json")).items == []
    wrong = await server.run("admin", "runners", "tokens", "create", "--pool", "No pool")
    assert "pool" in wrong.err


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        ({"builtin": True, "connected": True}, ("(a server's own)", "connected", "0", "now")),
        (
            {"token": "t", "pool": "build", "draining": True, "capacity": 4, "running": 3},
            ("build", "not connected, drained", "3 of 4", "2 h ago"),
        ),
        ({"owner": "ada", "connected": True}, ("(of ada)", "connected", "0", "now")),
    ],
)
def test_a_line_says_whose_a_runner_is_and_whether_it_takes_work(
    columns: dict[str, object], cells: tuple[str, ...]
) -> None:
    offers = (BackendOffer(kind="sandbox"), BackendOffer(kind="container"))
    row = runner_row(
        Runner(id="r", backends=offers, seen_at=NOW - timedelta(hours=2), **columns),  # pyright: ignore[reportArgumentType]
        NOW,
    )
    assert (*row[1:4], row[6]) == cells
    assert row[5] == "sandbox, container"


def test_a_token_that_expired_says_so() -> None:
    past = NOW - timedelta(days=1)
    token = RunnerToken(id=token_id(), pool="build", expires_at=past, expired=True)
    assert token_row(token, NOW)[5] == "expired"
