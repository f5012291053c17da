"""A replica without tools, a gate for its model or tool, and a model API for several replicas."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate


@pytest.fixture
async def rig(dsn: str) -> AsyncGenerator[EngineRig]:
    async with engine_rig(dsn) as rig:
        yield rig


@pytest.fixture
async def gate() -> Gate:
    return Gate()


@pytest.fixture
async def api() -> AsyncGenerator[FakeCompatible]:
    async with FakeCompatible.running() as api:
        yield api
