"""Shared fixtures: a clean database, a pool on it, a fake clock. Also orders the tests and
freezes imported objects for the garbage collector."""

import gc
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, cast

import pytest

from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.chatd_forks import ChatdForks, forking_chatd
from tests.support.clock import FakeClock
from tests.support.database import (
    Clone,
    OwnServer,
    TestServer,
    cache_type_lookups,
    find_stock_programs,
    own_server_in,
    scratch_space,
)
from tests.support.forked_tests import ForkedTests
from tests.support.machine import EmptyHome, in_empty_home
from tests.support.proxy import Proxy, proxy_to

# Files with tests of many seconds run first, because the slowest of the last tests delays the whole
# run. The random order within them and after them is kept.
LONGEST: Final = (
    "workspace_turns/test_mcp.py",
    "workspaces/test_sandbox_unprivileged.py",
    "workspace_turns/test_killed.py",
    "chaos/test_rolling.py",
    "api/test_fuzzed_requests.py",
    "store/test_outages.py",
    "store/test_statements.py",
    "e2e/test_mcp.py",
    "workspace_turns/test_chat_files.py",
    "workspace_turns/test_subagents.py",
    "workspace_turns/test_configured_mcp.py",
    "e2e/test_serve.py",
    "terminal/test_answers_scenes.py",
    "e2e/test_event_logs.py",
    "workspace_turns/test_leaving.py",
    "workspace_turns/test_demo.py",
    "workspace_turns/test_hostile.py",
    "chaos/test_takeover.py",
    "chaos/test_subagents.py",
    "chaos/test_accidents.py",
    "bench/test_bench.py",
)
# They start processes while the types, the lint and the page are checked too.
LONGEST_TIMEOUT_S: Final = 180

STOCK_PROGRAMS: Final = find_stock_programs()
NO_STOCK_SERVER: Final = "none is installed, so every test has the embedded server only"
ON_EMBEDDED_SERVER: Final = "embedded"
ON_STOCK_SERVER: Final = "stock"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in this many forks")
    parser.addoption("--failed-file", help="write the ids of failed tests to this file")
    parser.addoption(
        "--record-events", action="store_true", help="write tests/data/events (tests/e2e)"
    )


SELDOM: Final = (20_000, 20, 50)
EMPTY_HOME: Final = pytest.StashKey[EmptyHome]()
CPU_BEFORE: Final = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SHARED_CPU] = SharedCpu()
    # A process that only starts others stays where it is: they look for their settings there.
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.stash[EMPTY_HOME] = EmptyHome()
        config.stash[EMPTY_HOME].enter()
    if forks := cast("int", config.getoption("--forks")):
        config.pluginmanager.register(ForkedTests(forks, in_empty_home))


def pytest_unconfigure(config: pytest.Config) -> None:
    if EMPTY_HOME in config.stash:
        config.stash[EMPTY_HOME].leave()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write the ids of failed tests to the file that `tools/run_tests.py` reads."""
    if STOCK_PROGRAMS is None:
        terminalreporter.write_line(f"NOT RUN on a stock PostgreSQL: {NO_STOCK_SERVER}")
    path: str | None = config.getoption("--failed-file")
    if path is None:
        return
    write_directory_times(terminalreporter)
    reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    failed = dict.fromkeys(report.nodeid for report in reports)
    Path(path).write_text("".join(f"{test}\n" for test in failed))


def write_directory_times(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests of each directory took, the most expensive first."""
    spent: dict[str, list[float]] = {}
    servers: dict[str, float] = {}
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            times = spent.setdefault("/".join(report.nodeid.split("/")[:2]), [0, 0.0, 0.0])
            times[0] += report.when == "call"
            times[1] += report.duration
            times[2] += sum(cast("float", s) for name, s in report.user_properties if name == CPU_S)
            for name, seconds in report.user_properties:
                if name in (ON_EMBEDDED_SERVER, ON_STOCK_SERVER):
                    servers[name] = max(servers.get(name, 0.0), cast("float", seconds))
    if len(spent) < 2:
        return
    terminalreporter.write_line("Seconds by directory; CPU without PostgreSQL and left processes:")
    for directory, (tests, wall, cpu) in sorted(spent.items(), key=lambda each: -each[1][1]):
        terminalreporter.write_line(f"{wall:8.1f} s {cpu:8.1f} s CPU {tests:6.0f}  {directory}")
    for name, cpu in servers.items():
        terminalreporter.write_line(f"{cpu:19.1f} s CPU         PostgreSQL ({name})")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After the shuffle: the longest first."""
    here = Path(__file__).parent
    rank = {here / name: place for place, name in enumerate(LONGEST)}
    longest = sorted((one for one in items if one.path in rank), key=lambda one: rank[one.path])
    for one in longest:
        one.add_marker(pytest.mark.timeout(LONGEST_TIMEOUT_S))
    items[:] = [*longest, *(one for one in items if one.path not in rank)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imported objects live for ever: exclude them from garbage collection, which runs seldom: the
    servers, apps and sessions of a test live as long as it does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*SELDOM)
        gc.enable()


CPU_S: Final = "cpu_s"


def read_cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


class SharedCpu:
    """CPU seconds of what the tests of a process share, which the last of them ends."""

    def __init__(self) -> None:
        self.servers: dict[str, float] = {}
        """Of PostgreSQL since its start, for all processes."""
        self.waited_s = 0.0

    @contextmanager
    def ending(self) -> Generator[None]:
        before = read_cpu_s()
        yield
        self.waited_s += read_cpu_s() - before


SHARED_CPU: Final = pytest.StashKey[SharedCpu]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[CPU_BEFORE] = read_cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The last test also ends what all tests have used. It is not charged for the work of that."""
    shared = item.config.stash[SHARED_CPU]
    try:
        return (yield)
    finally:
        cpu_s = read_cpu_s() - item.stash[CPU_BEFORE] - shared.waited_s
        item.user_properties.append((CPU_S, cpu_s))
        item.user_properties.extend(shared.servers.items())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """No garbage collection while pytest parses the source of a failed test: a finalizer that
    prints a traceback, as that of a failed task does, parses too, and Python 3.11 then raises a
    SystemError that ends the whole process."""
    if call.excinfo is None:
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def chatd_forks(pytestconfig: pytest.Config) -> Generator[ChatdForks]:
    with ExitStack() as stack:
        forks = stack.enter_context(forking_chatd())
        yield forks
        with pytestconfig.stash[SHARED_CPU].ending():
            stack.close()


@pytest.fixture
def real_start(chatd_forks: ChatdForks) -> Generator[None]:
    """A `chatd` that the test starts is the program, and imports all that it needs."""
    with chatd_forks.paused():
        yield


@pytest.fixture(scope="session")
def test_server(pytestconfig: pytest.Config) -> Generator[TestServer]:
    yield from _shared_server(pytestconfig, ON_EMBEDDED_SERVER, TestServer())


@pytest.fixture(scope="session")
def stock_server(pytestconfig: pytest.Config) -> Generator[TestServer]:
    yield from _shared_server(pytestconfig, ON_STOCK_SERVER, TestServer(STOCK_PROGRAMS))


def _shared_server(config: pytest.Config, name: str, server: TestServer) -> Generator[TestServer]:
    with cache_type_lookups():
        yield server
    shared = config.stash[SHARED_CPU]
    shared.servers[name] = server.read_cpu_s()
    with shared.ending():
        server.close()


@pytest.fixture(scope="session")
def database(test_server: TestServer) -> Generator[Clone]:
    with test_server.cloned() as clone:
        yield clone


@pytest.fixture(scope="session")
def stock_database(stock_server: TestServer) -> Generator[Clone]:
    with stock_server.cloned() as clone:
        yield clone


@pytest.fixture
def dsn(request: pytest.FixtureRequest) -> Generator[str]:
    """A database with the schema and no rows. A session left open fails the test."""
    name = "stock_database" if _is_on_stock_server(request) else "database"
    database = cast("Clone", request.getfixturevalue(name))
    yield database.dsn
    if left := database.clean():
        pytest.fail("sessions left open by the test: " + "; ".join(left))


@pytest.fixture
def empty_dsn(request: pytest.FixtureRequest) -> Generator[str]:
    """An empty database without schema."""
    name = "stock_server" if _is_on_stock_server(request) else "test_server"
    server = cast("TestServer", request.getfixturevalue(name))
    database = server.new_name()
    yield server.create(database)
    server.drop(database)


def _is_on_stock_server(request: pytest.FixtureRequest) -> bool:
    return getattr(request, "param", None) == ON_STOCK_SERVER


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `stock_server` also runs on the installed PostgreSQL."""
    if STOCK_PROGRAMS is None or metafunc.definition.get_closest_marker("stock_server") is None:
        return
    for fixture in {"dsn", "empty_dsn"} & set(metafunc.fixturenames):
        servers = (ON_EMBEDDED_SERVER, ON_STOCK_SERVER)
        metafunc.parametrize(fixture, servers, indirect=True)


def pytest_report_header() -> str:
    if STOCK_PROGRAMS is None:
        return f"stock PostgreSQL: {NO_STOCK_SERVER}"
    return f"stock PostgreSQL: {STOCK_PROGRAMS}, for tests marked stock_server too"


@pytest.fixture
async def own_server() -> AsyncGenerator[OwnServer]:
    """A server that the test may stop and start. Takes a second."""
    async with own_server_in(scratch_space()) as server:
        yield server


@pytest.fixture
async def pool(dsn: str) -> AsyncGenerator[Pool]:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    yield pool
    await pool.close()


@pytest.fixture
async def proxy(dsn: str) -> AsyncGenerator[Proxy]:
    """A proxy to the database that can fail."""
    async with proxy_to(dsn) as proxy:
        yield proxy


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock()
