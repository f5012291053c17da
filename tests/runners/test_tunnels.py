"""Runners that dial in: builds go to them, and every replica reaches their agents."""

import asyncio
from pathlib import Path

import pytest

from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ConnectFailed,
    RunnerDisconnected,
)
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.domain.workspace.runners import is_connected
from chatd.store.workspace import builds, tunnels, workspaces
from chatd.workspaces.runner.runner_client import RunnerRefused
from tests.runners.runner_rig import (
    WAIT_S,
    ProcessBackend,
    ask_for_workspace,
    built,
    make_token,
    replica,
    row_of,
    runner,
    running_workspace,
)
from tests.support.api.server import ME
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.runners import insert_runner, own_runner
from tests.workspaces.agent_process import new_chat_id


async def test_a_workspace_of_a_pool_is_built_by_its_runner_and_reached_from_every_replica(
    dsn: str, tmp_path: Path
) -> None:
    """Two replicas, a runner and an agent as processes and sockets."""
    async with replica(dsn, 1) as first, replica(dsn, 2) as second:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            workspace = await running_workspace(first)
            assert await first.output_of(workspace, "echo $GREETING") == "hello"
            assert await second.output_of(workspace, "echo from elsewhere") == "from elsewhere"
            snapshot = present(
                await workspaces.load_snapshot(first.services.pool, HARNESS, workspace)
            )
            assert present(snapshot.workspace).host_id == machine.id
            (agent,) = snapshot.agents
            assert [each.host_id for each in agent.endpoints] == [machine.id]
            log = await builds.list_log(first.services.pool, HARNESS, agent.build_id)
            assert [line.output for line in log] == ["starting", "started"]


async def test_many_exchanges_at_once_and_large_files_pass_both_ways(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first, replica(dsn, 2) as second:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            workspace = await running_workspace(first)
            for each in (first, second):
                client = await each.client(workspace)
                async with asyncio.timeout(WAIT_S):
                    said = await asyncio.gather(
                        *(each.output_of(workspace, f"echo {number}") for number in range(40))
                    )
                    assert said == [str(number) for number in range(40)]
                    text = "0123456789abcdef\n" * 40_000
                    path = tmp_path / f"{new_chat_id().hex}.txt"
                    await client.write_file(str(path), text.encode(), key=new_chat_id().hex)
                    assert await asyncio.to_thread(path.read_text) == text


async def test_a_command_goes_on_while_its_runner_is_cut_off_and_runs_once(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        token = await make_token(pool)
        backend = ProcessBackend(tmp_path)
        gate, count = tmp_path / "gate", tmp_path / "count"
        command = f"echo ran >> {count}; until test -e {gate}; do sleep 0.05; done; echo done"
        try:
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                workspace = await running_workspace(first)
                client = await first.client(workspace)
                started = await client.start_process(command, key="once")
                waiting = asyncio.get_running_loop().create_task(
                    client.output(started.id, wait_s=20)
                )
                await eventually(lambda: _exists(count), within_s=WAIT_S)
            with pytest.raises(AgentUnreachable):
                await waiting
            with pytest.raises(RunnerDisconnected, match="runner-1, which is not connected since"):
                await client.start_process(command, key="once")
            gate.touch()
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                assert await first.output_of(workspace, command, key="once") == "done"
            assert count.read_text() == "ran\n"
        finally:
            backend.close()


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def test_a_build_goes_on_when_its_connection_breaks_and_is_not_made_twice(
    dsn: str, tmp_path: Path
) -> None:
    """The runner comes back to the other replica, which joins the build that still runs."""
    backend = ProcessBackend(tmp_path)
    backend.gate.clear()
    try:
        async with replica(dsn, 2) as second:
            pool = second.services.pool
            token = await make_token(pool)
            async with replica(dsn, 1) as first:
                machine = runner(first.url, token, tmp_path, backend=backend)
                rig = await machine.__aenter__()
                await rig.connected()
                workspace, build_id = await ask_for_workspace(pool)
                first.services.build_worker.wake()
                await asyncio.wait_for(backend.reached.wait(), WAIT_S)
                # The runner's address now leads to the other replica, as behind a load balancer.
                rig.client.move(second.url)
            await rig.connected()
            backend.gate.set()
            build = await built(pool, build_id)
            assert (build.status, backend.started) == ("succeeded", 1)
            assert await second.output_of(workspace, "echo here") == "here"
            await machine.__aexit__(None, None, None)
    finally:
        backend.close()


async def test_a_build_whose_connection_broke_many_times_is_not_given_up(
    dsn: str, tmp_path: Path
) -> None:
    """Each time counts as an attempt: on this host six of them end a build."""
    backend = ProcessBackend(tmp_path)
    try:
        async with replica(dsn, 1) as first:
            pool = first.services.pool
            token = await make_token(pool)
            _, build_id = await ask_for_workspace(pool)
            await pool.execute("UPDATE workspace_builds SET attempt = 8")
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                assert (await built(pool, build_id)).status == "succeeded"
            _, looping = await ask_for_workspace(pool, 2)
            await pool.execute("UPDATE workspace_builds SET attempt = 30 WHERE id = $1", looping)
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                assert (await built(pool, looping)).error_code == "build_abandoned"
    finally:
        backend.close()


async def test_the_later_of_two_processes_with_one_id_counts(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn, 1) as first, replica(dsn, 2) as second:
        pool = first.services.pool
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path) as old:
            await old.connected()
            async with runner(second.url, token, tmp_path) as new:
                await new.connected()
                with pytest.raises(RunnerRefused, match="Another process with this runner's id"):
                    await asyncio.wait_for(asyncio.shield(old.ended), WAIT_S)
                assert second.services.links.get(new.id) is not None
                assert (await row_of(pool, new.id)).epoch == 2


async def test_a_revoked_token_ends_the_connection_for_good(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            await pool.execute("UPDATE runner_tokens SET revoked_at = now()")
            with pytest.raises(RunnerRefused, match="revoked"):
                await asyncio.wait_for(asyncio.shield(machine.ended), WAIT_S)
        async with runner(first.url, token, tmp_path) as machine:
            with pytest.raises(RunnerRefused, match="does not accept the token"):
                await asyncio.wait_for(asyncio.shield(machine.ended), WAIT_S)


async def test_a_runner_cannot_take_the_id_of_another_pools_runner(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        mine, other = await make_token(pool), await make_token(pool, "other")
        async with runner(first.url, mine, tmp_path) as machine:
            await machine.connected()
            async with runner(first.url, other, tmp_path) as thief:
                with pytest.raises(RunnerRefused, match="another pool"):
                    await asyncio.wait_for(asyncio.shield(thief.ended), WAIT_S)
            assert first.services.links.get(machine.id) is not None


async def test_a_runner_connects_the_server_to_its_own_agents_only(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            link = present(first.services.links.get(machine.id))
            foreign = Endpoint(kind="unix", path="/run/docker.sock", host_id=machine.id)
            with pytest.raises(ConnectFailed, match="not an agent of this runner"):
                await link.open(AgentId(new_chat_id()), foreign)


async def test_a_replica_with_another_secret_is_not_let_in(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn, 1) as first, replica(dsn, 2, secret=b"x" * 32) as stranger:
        pool = first.services.pool
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            await running_workspace(first)
            (found,) = machine.backend.agents.values()
            endpoint = Endpoint(kind="unix", path=str(found[1].socket), host_id=machine.id)
            with pytest.raises(RunnerDisconnected):
                await stranger.services.open_stream(AgentId(new_chat_id()), endpoint)


async def test_a_runner_that_leaves_is_shown_as_disconnected(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path, labels=("gpu",), capacity=3) as machine:
            await machine.connected()
            row = await row_of(pool, machine.id)
            assert is_connected(row, row.seen_at)
            assert (row.pool, row.labels, row.capacity) == ("lab", ("gpu",), 3)

        async def gone() -> bool:
            row = await row_of(pool, machine.id)
            return not is_connected(row, row.seen_at)

        await eventually(gone, within_s=WAIT_S)
        assert present(await tunnels.find_holder(pool, machine.id)).addresses == []


async def test_a_user_has_a_limited_number_of_connected_runners(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn) as here:
        pool = here.services.pool
        for number in range(20):
            await insert_runner(pool, own_runner(f"mine-{number}"))
        await insert_runner(pool, own_runner("gone"), connected=False)
        async with runner(here.url, ME, tmp_path, "one-more") as refused:
            with pytest.raises(RunnerRefused, match="You have 20 connected runners") as error:
                await refused.ended
            assert error.value.code == "too_many_own_runners"
        async with runner(here.url, ME, tmp_path, "mine-3") as again:
            await again.connected()
