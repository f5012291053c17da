"""The agent of a test, with `tmp_path` as its home."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.agent.processes.agent_fixture import AgentFixture, boot_agent


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncGenerator[AgentFixture]:
    async with boot_agent(tmp_path) as agent:
        yield agent
