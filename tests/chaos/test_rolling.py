"""The restarts of `make rolling`, a few of them."""

import pytest

from tests.chaos.rolling import RestartPlan, roll


@pytest.mark.covers("T21", "T34")
@pytest.mark.timeout(180)
@pytest.mark.promise("P1", "P5", "P8", "P10")
async def test_nobody_notices_that_servers_are_restarted(dsn: str) -> None:
    """Takes seconds: real servers are started, one after the other."""
    told = await roll(dsn, RestartPlan(restarts=2, pause_s=0, chats=8, replicas=2, answer_s=1.5))
    assert told.messages == told.model_calls >= 8
    assert told.connections > 8
