"""One server process per transport for all tests of a module."""

from collections.abc import Generator

import pytest

from tests.support.mcp.rig import ServerProcess, tool_server


@pytest.fixture(scope="module", params=["http", "json", "sse"])
def any_server(request: pytest.FixtureRequest) -> Generator[tuple[str, ServerProcess]]:
    """Over each transport."""
    with tool_server(request.param) as server:
        yield ("sse" if request.param == "sse" else "streamable_http"), server


@pytest.fixture(scope="module")
def http_server() -> Generator[ServerProcess]:
    with tool_server("http") as server:
        yield server
