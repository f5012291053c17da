"""A transactor, and what it has reported."""

import pytest

from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from tests.support.store import AppliedRecorder


@pytest.fixture
def told() -> AppliedRecorder:
    return AppliedRecorder()


@pytest.fixture
def transactor(pool: Pool, told: AppliedRecorder) -> Transactor:
    return Transactor(pool, told)
