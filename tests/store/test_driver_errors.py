"""Failures of the database and the errors that the store raises for them."""

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Awaitable
from uuid import UUID

import asyncpg
import msgspec
import pytest

from chatd.domain.errors import InvalidInput, InvariantBroken, Unavailable
from chatd.engine.lease import DOWN_FOR_ALL
from chatd.store.database.conn import (
    ConnectConfig,
    DatabaseSession,
    DuplicateRow,
    MissingReference,
    connect,
    translate_driver_error,
)
from tests.support.eventually import eventually
from tests.support.outcomes import raised
from tests.support.proxy import Proxy, proxy_to

LEDGER = """
    CREATE TABLE ledger (
        id int CONSTRAINT one_entry_each PRIMARY KEY,
        amount int CONSTRAINT amount_is_positive CHECK (amount > 0),
        parent int CONSTRAINT parent_exists REFERENCES ledger,
        note text)"""
ENTER = "INSERT INTO ledger (id, amount) VALUES (1, 1)"


@pytest.fixture
async def near(empty_dsn: str) -> AsyncGenerator[DatabaseSession]:
    """A direct session."""
    session = await connect(ConnectConfig(dsn=empty_dsn))
    await session.execute(LEDGER)
    yield session
    await session.close(timeout_s=30)


@pytest.fixture
async def line(near: DatabaseSession, empty_dsn: str) -> AsyncGenerator[Proxy]:
    async with proxy_to(empty_dsn) as proxy:
        yield proxy


@pytest.fixture
async def far(line: Proxy) -> AsyncGenerator[DatabaseSession]:
    """A session through the proxy."""
    session = await connect(ConnectConfig(dsn=line.dsn))
    yield session
    session.terminate()


async def unavailable(call: Awaitable[object]) -> tuple[str, bool]:
    """The code of the error, and whether the statement may have been applied."""
    error = await raised(Unavailable, call)
    return error.code, error.maybe_applied


async def entries(near: DatabaseSession) -> bool:
    return await near.fetchval("SELECT count(*) FROM ledger") == 1


async def test_a_statement_with_a_lost_reply_may_have_been_applied(
    near: DatabaseSession, far: DatabaseSession, line: Proxy
) -> None:
    await far.execute("SELECT 1")
    line.hold_replies()
    async with asyncio.TaskGroup() as group:
        sent = group.create_task(unavailable(far.execute(ENTER)))
        await eventually(lambda: entries(near))
        line.cut()
    assert sent.result() == ("database_down", True)


async def test_a_statement_on_a_session_known_to_be_lost_was_never_sent(
    far: DatabaseSession, line: Proxy
) -> None:
    gone = asyncio.Event()
    far.on_connection_lost(gone.set)
    line.cut()
    async with asyncio.timeout(30):
        await gone.wait()
    assert await unavailable(far.execute(ENTER)) == ("database_down", False)


async def test_a_transaction_lost_before_its_commit_was_not_applied(
    near: DatabaseSession, far: DatabaseSession, line: Proxy
) -> None:
    async def lose() -> None:
        async with far.transaction():
            await far.execute(ENTER)
            line.cut()
            await far.execute("SELECT 1")

    assert await unavailable(lose()) == ("database_down", False)
    assert not await entries(near)


async def test_a_transaction_with_a_lost_commit_reply_may_have_been_applied(
    near: DatabaseSession, far: DatabaseSession, line: Proxy
) -> None:
    async def lose() -> None:
        async with far.transaction():
            await far.execute(ENTER)
            line.hold_replies()

    async with asyncio.TaskGroup() as group:
        sent = group.create_task(unavailable(lose()))
        await eventually(lambda: entries(near))
        line.cut()
    assert sent.result() == ("database_down", True)


async def test_a_silent_server_is_given_up(near: DatabaseSession, line: Proxy) -> None:
    link = ConnectConfig(dsn=line.dsn, statement_timeout_s=0.05, reply_margin_s=0.05)
    session = await connect(link)
    line.stall()
    assert await unavailable(session.execute(ENTER)) == ("database_timeout", True)
    assert not session.is_reusable
    session.terminate()


async def test_connecting_to_a_silent_server_is_given_up(line: Proxy) -> None:
    line.stall()
    link = ConnectConfig(dsn=line.dsn, connect_timeout_s=0.05)
    assert await unavailable(connect(link)) == ("database_timeout", False)


async def test_a_session_ended_by_an_administrator_counts_as_lost(
    near: DatabaseSession, far: DatabaseSession
) -> None:
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(unavailable(far.execute("SELECT pg_sleep(60)")))
        await eventually(lambda: is_running(near, "SELECT pg_sleep(60)"))
        await near.execute("SELECT pg_terminate_backend($1, 5000)", far.backend_pid)
    assert sleeping.result() == ("database_down", True)


async def is_running(near: DatabaseSession, query: str) -> bool:
    found = await near.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE query = $1 AND state = 'active'", query
    )
    return found == 1


async def test_a_slow_statement_is_ended_by_the_server_and_not_applied(
    near: DatabaseSession,
) -> None:
    await near.execute("SET statement_timeout = 50")
    slow = "INSERT INTO ledger (id, note) SELECT 1, pg_sleep(60)::text"
    assert await unavailable(near.execute(slow)) == ("database_timeout", False)
    assert near.is_reusable


async def test_a_lock_timeout_is_a_busy_database(
    near: DatabaseSession, far: DatabaseSession
) -> None:
    async with near.transaction():
        await near.execute("LOCK TABLE ledger")
        await far.execute("SET lock_timeout = 50")
        assert await unavailable(far.execute(ENTER)) == ("database_busy", False)


async def test_the_loser_of_a_deadlock_may_try_again(
    near: DatabaseSession, far: DatabaseSession
) -> None:
    await near.execute("INSERT INTO ledger (id) VALUES (1), (2)")
    await near.execute("SET deadlock_timeout = 50")

    async def touch(
        session: DatabaseSession, first: int, second: int, met: asyncio.Barrier
    ) -> None:
        async with session.transaction():
            await session.execute("UPDATE ledger SET amount = 1 WHERE id = $1", first)
            await met.wait()
            await session.execute("UPDATE ledger SET amount = 1 WHERE id = $1", second)

    met = asyncio.Barrier(2)
    outcomes = await asyncio.gather(
        touch(near, 1, 2, met), touch(far, 2, 1, met), return_exceptions=True
    )
    errors = [outcome for outcome in outcomes if outcome is not None]
    assert [(type(e), getattr(e, "code", "")) for e in errors] == [
        (Unavailable, "database_conflict")
    ]


async def test_a_duplicate_row_is_named_by_its_constraint(
    near: DatabaseSession,
) -> None:
    await near.execute(ENTER)
    assert (await raised(DuplicateRow, near.execute(ENTER))).constraint == "one_entry_each"


async def test_a_missing_reference_is_named_by_its_constraint(near: DatabaseSession) -> None:
    orphan = near.execute("INSERT INTO ledger (id, parent) VALUES (1, 99)")
    assert (await raised(MissingReference, orphan)).constraint == "parent_exists"


async def test_a_check_that_fails_is_our_bug_and_does_not_quote_the_row(
    near: DatabaseSession,
) -> None:
    secret = "INSERT INTO ledger (id, amount, note) VALUES (1, -1, 'a secret of the user')"
    error = await raised(InvariantBroken, near.execute(secret))
    assert "amount_is_positive" in error.message
    assert "secret" not in f"{error} {error.__cause__}"


async def test_an_argument_of_the_wrong_type_is_our_bug(near: DatabaseSession) -> None:
    await raised(InvariantBroken, near.fetchval("SELECT $1::int", "not a number"))
    assert near.is_reusable


async def test_a_missing_server_counts_as_down() -> None:
    link = ConnectConfig(dsn="postgresql://nobody@/nowhere?host=/nowhere")
    assert (await raised(Unavailable, connect(link))).code == "database_down"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.ENETDOWN, "Network is down"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    ],
)
def test_a_network_without_a_way_to_the_server_says_nothing_of_the_server(error: OSError) -> None:
    """Other workers may reach it: they take the chats of one that does not."""
    found = translate_driver_error(error, sent=False)
    assert (found.code, found.code in DOWN_FOR_ALL) == ("database_unreachable", False)
    refused = translate_driver_error(ConnectionRefusedError(errno.ECONNREFUSED, "no"), sent=False)
    assert refused.code in DOWN_FOR_ALL


async def test_an_invalid_address_is_invalid_input() -> None:
    error = await raised(InvalidInput, connect(ConnectConfig(dsn="mysql://here")))
    assert error.field == "database_url"


@pytest.mark.parametrize(
    ("state", "code", "maybe_applied"),
    [
        ("08006", "database_down", True),
        ("25006", "database_read_only", False),
        ("25P03", "database_timeout", False),
        ("28P01", "database_refused", False),
        ("3D000", "database_refused", False),
        ("40001", "database_conflict", False),
        ("40003", "database_conflict", True),
        ("53100", "database_full", False),
        ("53300", "database_busy", False),
        ("57P01", "database_down", True),
        ("57P03", "database_starting", False),
        ("58030", "database_down", True),
    ],
)
def test_transient_server_states_are_unavailable(
    state: str, code: str, *, maybe_applied: bool
) -> None:
    error = server_error(state)
    sent = translate_driver_error(error, sent=True)
    assert isinstance(sent, Unavailable)
    assert (sent.code, sent.maybe_applied) == (code, maybe_applied)
    unsent = translate_driver_error(error, sent=False)
    assert isinstance(unsent, Unavailable)
    assert not unsent.maybe_applied


@pytest.mark.parametrize("state", ["22P02", "23502", "23514", "25P02", "42P01", "XX000", "ZZZZZ"])
def test_permanent_server_states_are_bugs(state: str) -> None:
    error = translate_driver_error(server_error(state), sent=True)
    assert isinstance(error, InvariantBroken)
    assert state in error.message


def server_error(state: str) -> asyncpg.PostgresError:
    error = asyncpg.PostgresError("the server's words")
    vars(error)["sqlstate"] = state
    return error


async def test_identifiers_from_the_database_are_as_good_as_our_own(near: DatabaseSession) -> None:
    ours = UUID(int=7)
    theirs = await near.fetchval("SELECT $1::uuid", ours)
    assert theirs == ours
    assert {ours: "found"}[theirs] == "found"
    assert msgspec.json.encode(theirs) == msgspec.json.encode(ours)


async def test_json_comes_and_goes_as_text_byte_for_byte(near: DatabaseSession) -> None:
    text = '{"b":  1, "a": [1.0,"\\u0000"]}'
    assert await near.fetchval("SELECT $1::json", text) == text
