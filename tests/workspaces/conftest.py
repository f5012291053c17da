"""A running workspace agent, shared by tests: each has its own directory and chat there. A test
that stops or kills an agent starts its own."""

import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.support.container_engines import (
    Engine,
    EngineNotStarted,
    engine_service,
    missing_reason,
)
from tests.workspaces.agent_process import AgentProcess, Workbench, workbench


@pytest.fixture(scope="session")
def agent_process(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    process = AgentProcess(tmp_path_factory.mktemp("agent"))
    process.start()
    yield process
    process.end(signal.SIGKILL)


@pytest.fixture
async def bench(agent_process: AgentProcess, tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with workbench(agent_process, tmp_path) as bench:
        yield bench


@pytest.fixture(scope="session")
def engine() -> Generator[Engine]:
    """The container engine of this test process."""
    if reason := missing_reason():
        pytest.skip(reason)
    try:
        with engine_service() as service:
            yield service
    except EngineNotStarted as error:
        pytest.skip(f"the container engine does not run here: {error}")
