"""A real server for each test of the terminal; `tests/support/terminal.py` runs the terminal."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.support.terminal import TerminalServer, cheap_terminals, serve_terminal


@pytest.fixture(scope="package", autouse=True)
def _cheap_terminals() -> Generator[None]:
    with cheap_terminals():
        yield


@pytest.fixture
async def server(dsn: str, tmp_path: Path) -> AsyncGenerator[TerminalServer]:
    async with serve_terminal(dsn, tmp_path) as server:
        yield server
