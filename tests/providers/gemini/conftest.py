"""The fake server of Gemini."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.providers.gemini import FakeGemini


@pytest.fixture
async def fake() -> AsyncGenerator[FakeGemini]:
    async with FakeGemini.running() as server:
        yield server
