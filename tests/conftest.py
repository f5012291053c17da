"""Fixtures for everybody: a clean database, a pool on it, a clock that stands still."""

from collections.abc import AsyncGenerator, Generator

import pytest

from chatd.store.conn import ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from tests.support.clock import FakeClock
from tests.support.database import Clone, OwnServer, TestServer, own_server_in, scratch_space
from tests.support.proxy import Proxy, proxy_to


@pytest.fixture(scope="session")
def test_server() -> Generator[TestServer]:
    server = TestServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def database(test_server: TestServer) -> Generator[Clone]:
    clone = test_server.clone()
    yield clone
    clone.drop()


@pytest.fixture
def dsn(database: Clone) -> Generator[str]:
    """A database with the schema and no rows. A session left open fails the test."""
    yield database.dsn
    if left := database.clean():
        pytest.fail("sessions left open by the test: " + "; ".join(left))


@pytest.fixture
def empty_dsn(test_server: TestServer) -> Generator[str]:
    """A database of the test's own, without any schema."""
    name = test_server.new_name()
    yield test_server.create(name)
    test_server.drop(name)


@pytest.fixture
async def own_server() -> AsyncGenerator[OwnServer]:
    """A server that the test may stop and start. Costs a second."""
    async with own_server_in(scratch_space()) as server:
        yield server


@pytest.fixture
async def pool(dsn: str) -> AsyncGenerator[Pool]:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    yield pool
    await pool.close()


@pytest.fixture
async def proxy(dsn: str) -> AsyncGenerator[Proxy]:
    """A network to the database that can fail."""
    async with proxy_to(dsn) as proxy:
        yield proxy


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()
