"""Fake servers of OpenAI's APIs."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.providers.openai_chat import FakeChat, FakeCompatible
from tests.support.providers.openai_responses import FakeResponses


@pytest.fixture
async def responses() -> AsyncGenerator[FakeResponses]:
    async with FakeResponses.running() as server:
        yield server


@pytest.fixture
async def chat() -> AsyncGenerator[FakeChat]:
    async with FakeChat.running() as server:
        yield server


@pytest.fixture
async def compatible() -> AsyncGenerator[FakeCompatible]:
    async with FakeCompatible.running() as server:
        yield server
