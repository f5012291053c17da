"""Fixtures of the tests of files."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.agent.unprivileged import shared_directory


@pytest.fixture
def shared() -> Generator[Path]:
    with shared_directory() as path:
        yield path
