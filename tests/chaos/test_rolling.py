"""A short run of `make rolling`."""

import pytest

from tests.chaos.rolling import RestartPlan, roll


@pytest.mark.covers("T21", "T34")
@pytest.mark.timeout(180)
@pytest.mark.promise("P1", "P5", "P8", "P10")
async def test_clients_do_not_notice_restarts(dsn: str) -> None:
    """Slow: starts real servers in sequence."""
    report = await roll(dsn, RestartPlan(restarts=2, pause_s=0, chats=8, replicas=2, answer_s=1.5))
    assert report.messages == report.model_calls >= 8
    assert report.connections > 8
