"""The smallest row, measured for real: provider, relay, database and server are processes."""

import asyncio

import pytest

from chatd.bench import proc
from chatd.bench.script import Wish
from chatd.bench.sides import Heard, Side
from chatd.bench.stage import set_up
from chatd.cli import benching
from chatd.settings.tree import SettingsError


async def test_the_same_words_come_on_all_three_ways(empty_dsn: str) -> None:
    """Takes seconds: it starts three programs, and the server migrates a database."""
    wish = Wish(tokens=20, per_s=200)
    async with set_up(empty_dsn) as stage:
        sides: tuple[Side, ...] = (stage.direct(), stage.relayed(), stage.ours())
        heard: list[Heard] = [await side.talk(wish) for side in sides]
        for side in sides:
            side.close()
        home, pids = stage.home, (stage.server.pid, stage.relay.pid, stage.provider.pid)
        assert await stage.cpu_s() > 0
    assert [one.tokens for one in heard] == [20, 20, 20]
    assert all(one.asked_at < one.first_at < one.last_at for one in heard)
    assert not await asyncio.to_thread(home.exists)
    assert [proc.entry(pid) for pid in pids] == [None, None, None]


async def test_a_row_that_nobody_knows_is_refused_before_anything_is_started() -> None:
    with pytest.raises(SettingsError, match="there is no row 'speed'"):
        await benching.bench(["speed"], quick=True, json=True, database_url=None)
