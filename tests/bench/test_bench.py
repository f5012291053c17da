"""A real measurement: provider, relay, database and server are processes."""

import asyncio

import pytest

from bench import proc_stats
from bench.clients import BenchClient, TokenTimes
from bench.environment import start_environment
from bench.fake_provider import AnswerScript
from chatd.cli import server_commands
from chatd.settings.schema import SettingsError


async def test_all_three_clients_get_the_same_answer(empty_dsn: str) -> None:
    """Slow: starts three programs, and the server migrates a database."""
    script = AnswerScript(tokens=20, per_s=200)
    async with start_environment(empty_dsn) as bench:
        clients: tuple[BenchClient, ...] = (
            bench.direct_client(),
            bench.relay_client(),
            bench.chatd_client(),
        )
        times: list[TokenTimes] = [await client.ask(script) for client in clients]
        for client in clients:
            client.close()
        home, pids = bench.home, (bench.server.pid, bench.relay.pid, bench.provider.pid)
        assert await bench.cpu_s() > 0
    assert [one.tokens for one in times] == [20, 20, 20]
    assert all(one.asked_at < one.first_at < one.last_at for one in times)
    assert not await asyncio.to_thread(home.exists)
    assert [proc_stats.read_entry(pid) for pid in pids] == [None, None, None]


async def test_an_unknown_row_is_refused_before_any_process_starts() -> None:
    with pytest.raises(SettingsError, match="there is no row 'speed'"):
        await server_commands.run_bench(["speed"], quick=True, json=True, database_url=None)
