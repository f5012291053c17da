"""An API server for each test."""

from collections.abc import AsyncGenerator

import pytest

from tests.api.workspace_api import WorkspaceApi, workspace_api
from tests.support.api.server import ApiServer, serve_api
from tests.support.mcp.authorization_server import AuthorizationServer, authorization_server


@pytest.fixture
async def server(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn) as server:
        yield server


@pytest.fixture
async def api(dsn: str) -> AsyncGenerator[WorkspaceApi]:
    async with workspace_api(dsn) as api:
        yield api


@pytest.fixture
async def authorization() -> AsyncGenerator[AuthorizationServer]:
    """Of MCP servers."""
    async with authorization_server() as found:
        yield found
