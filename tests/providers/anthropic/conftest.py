"""The fake server of the Messages API."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.providers.anthropic import FakeAnthropic


@pytest.fixture
async def fake() -> AsyncGenerator[FakeAnthropic]:
    async with FakeAnthropic.running() as server:
        yield server
