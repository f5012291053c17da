"""A server for all tests of a module: commands are about their own chats."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.command_line import ServerProcess
from tests.support.database import TestServer


@pytest.fixture(scope="module")
def server(
    test_server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[ServerProcess]:
    clone = test_server.clone()
    server = ServerProcess(clone.dsn, tmp_path_factory.mktemp("chatd"))
    server.start()
    yield server
    server.stop()
    clone.drop()


@pytest.fixture
def slow_server(test_server: TestServer, tmp_path: Path) -> Generator[ServerProcess]:
    """With a model that takes seconds for its usual answer; the test may kill it."""
    clone = test_server.clone()
    server = ServerProcess(clone.dsn, tmp_path, tokens_per_second=100)
    server.start()
    yield server
    server.stop()
    clone.drop()
