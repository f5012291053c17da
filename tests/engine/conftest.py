"""A replica without tools for each test that names one, and a gate for its model or tool."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.providers.server import Gate


@pytest.fixture
async def rig(dsn: str) -> AsyncGenerator[EngineRig]:
    async with engine_rig(dsn) as rig:
        yield rig


@pytest.fixture
async def gate() -> Gate:
    return Gate()
