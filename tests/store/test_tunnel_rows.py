"""Which replica reaches which runner, in a real database."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.ids import WorkerId
from chatd.domain.workspace.runners import RunnerId
from chatd.store.database.pool import Pool
from chatd.store.workspace import tunnels
from chatd.store.workspace.tunnels import ConnectedRunner, RunnerIdentity
from tests.support.factories import OWNER
from tests.support.outcomes import present
from tests.support.runners import insert_runner_token
from tests.support.workspaces import HOST, insert_workspace

HERE, ELSEWHERE = WorkerId(UUID(int=1)), WorkerId(UUID(int=2))
LAPTOP = RunnerId("laptop")
OWN = RunnerIdentity(owner_id=OWNER)


def connecting(identity: RunnerIdentity = OWN, **fields: object) -> ConnectedRunner:
    given = ConnectedRunner(
        id=LAPTOP, name="laptop", identity=identity, version="1", replica=HERE, address="here:1"
    )
    return replace(given, **fields)


async def addresses(pool: Pool, runner_id: str = LAPTOP) -> list[str]:
    holder = present(await tunnels.find_holder(pool, runner_id))
    return [address for _, address in holder.addresses]


async def test_runners_of_a_user_that_connect_at_once_count_each_other(pool: Pool) -> None:
    """Each saw none of the others when they were counted without a lock."""

    async def connect(number: int) -> bool:
        runner = connecting(id=RunnerId(f"runner-{number}"))
        async with pool.transaction() as session:
            if await tunnels.count_others(session, runner) >= 1:
                return False
            return await tunnels.connect(session, runner) is not None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(connect(number)) for number in range(4)]
    assert sorted(task.result() for task in tasks) == [False, False, False, True]


async def test_the_end_of_a_connection_leaves_the_tunnel_of_a_later_one(pool: Pool) -> None:
    first = present(await tunnels.connect(pool, connecting()))
    second = present(await tunnels.connect(pool, connecting()))
    await tunnels.disconnect(pool, HERE, LAPTOP, first.epoch)
    assert await addresses(pool) == ["here:1"]
    assert present(await tunnels.find_holder(pool, LAPTOP)).runner.disconnected_at is None
    await tunnels.disconnect(pool, HERE, LAPTOP, second.epoch)
    assert await addresses(pool) == []
    assert present(await tunnels.find_holder(pool, LAPTOP)).runner.disconnected_at is not None


@pytest.mark.parametrize("identity", [OWN, RunnerIdentity()])
async def test_a_renewal_writes_a_tunnel_again_that_was_deleted_as_stale(
    pool: Pool, identity: RunnerIdentity
) -> None:
    row = present(await tunnels.connect(pool, connecting(identity)))
    await pool.execute("DELETE FROM tunnels")
    assert await tunnels.renew(pool, HERE, "here:2", [(LAPTOP, row.epoch, 1)]) == {LAPTOP: False}
    assert await addresses(pool) == ["here:2"]


async def test_nobody_is_led_to_a_replica_that_was_killed(pool: Pool) -> None:
    server = RunnerIdentity()
    await tunnels.connect(pool, connecting(server))
    await tunnels.connect(pool, connecting(server, replica=ELSEWHERE, address="elsewhere:1"))
    await pool.execute(
        "UPDATE tunnels SET seen_at = now() - interval '1 minute' WHERE replica = $1", ELSEWHERE
    )
    assert await addresses(pool) == ["here:1"]


async def test_nobody_takes_the_id_of_a_host_that_has_workspaces(pool: Pool) -> None:
    """The servers of that host have not been started since runners are known."""
    await insert_workspace(pool)
    token = await insert_runner_token(pool)
    pooled = RunnerIdentity(pool=token.pool, token_id=token.id)
    for identity in (OWN, pooled):
        assert await tunnels.connect(pool, connecting(identity, id=RunnerId(HOST))) is None
    server = await tunnels.connect(pool, connecting(RunnerIdentity(), id=RunnerId(HOST)))
    assert present(server).builtin


async def test_the_runner_of_a_suspended_user_is_disconnected(pool: Pool) -> None:
    row = present(await tunnels.connect(pool, connecting()))
    mine = [(LAPTOP, row.epoch, 0)]
    assert await tunnels.renew(pool, HERE, "here:1", mine)
    await pool.execute("UPDATE users SET status = 'suspended' WHERE id = $1", OWNER)
    assert not await tunnels.renew(pool, HERE, "here:1", mine)
