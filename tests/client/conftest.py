"""A real API server for each test, and an address before it whose connections can be cut."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.api.server import ME, ApiServer, serve_api
from tests.support.client_rig import ClientRig, run_client
from tests.support.mcp.servers import FrontDoor, front_door


@pytest.fixture
async def server(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn) as server:
        yield server


@pytest.fixture
async def door(server: ApiServer) -> AsyncGenerator[FrontDoor]:
    async with front_door() as door:
        door.lead_to(server.url)
        yield door


@pytest.fixture
async def client(door: FrontDoor) -> AsyncGenerator[ClientRig]:
    async with run_client(door.url, ME) as rig:
        yield rig
