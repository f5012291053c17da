"""A front door for each test."""

from collections.abc import AsyncGenerator

import pytest

from tests.api.rooms import House, a_house
from tests.support.front import Front, front_door


@pytest.fixture
async def front(dsn: str) -> AsyncGenerator[Front]:
    async with front_door(dsn) as front:
        yield front


@pytest.fixture
async def house(dsn: str) -> AsyncGenerator[House]:
    async with a_house(dsn) as house:
        yield house
