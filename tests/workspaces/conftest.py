"""A running workspace agent, shared by tests: each has its own directory and chat there. A test
that stops or kills an agent starts its own."""

import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

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
