"""The record of attempts is written by the statements that change the owner, and stays small."""

from chatd.domain.chat.commands import ReapChat
from chatd.domain.chat.states import State
from chatd.domain.chat.takeover import DeathNotice, worker_name
from chatd.domain.chat.worker_transitions import reap
from chatd.domain.ids import WorkerId
from chatd.store.chat import runs, workers
from chatd.store.chat.runs import RUNS_KEPT_PER_CHAT
from chatd.store.database.pool import Pool
from tests.support.client_state import ClientState, read_state, resume_state
from tests.support.factories import CHAT, HARNESS, OTHER_WORKER, WORKER
from tests.support.seeds import Seed
from tests.support.store import insert_seed, write

NOTICE = DeathNotice(sign="lock_gone", seen_at_us=1_700_000_000_000_000, missed=2)


async def acquire(pool: Pool, worker: WorkerId) -> None:
    assert len(await workers.acquire(pool, worker, roots=1, children=0)) == 1


async def test_only_the_newest_attempts_of_a_chat_are_kept(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.P0))
    for _ in range(RUNS_KEPT_PER_CHAT + 3):
        await acquire(pool, WORKER)
        await workers.release(pool, WORKER)
    found = await runs.list_runs(pool, HARNESS, CHAT)
    assert len(found) == RUNS_KEPT_PER_CHAT
    assert found[0].run_no - found[-1].run_no == RUNS_KEPT_PER_CHAT - 1
    assert {run.outcome for run in found} == {"released"}


async def test_viewers_learn_of_a_takeover_as_a_fresh_read_shows_it(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0))
    viewer = await resume_state(pool, CHAT, ClientState())
    assert viewer.takeover is None
    dead = chat.worker_id
    assert dead is not None
    command = ReapChat(worker_ids=frozenset({dead}), notices={dead: NOTICE}, reaper=OTHER_WORKER)
    await write(pool, reap(chat, command))
    viewer = await resume_state(pool, CHAT, viewer)
    assert viewer.takeover is None
    await acquire(pool, OTHER_WORKER)
    viewer = await resume_state(pool, CHAT, viewer)
    assert viewer == await read_state(pool, CHAT)
    shown = viewer.takeover
    assert shown is not None
    assert (shown.worker.name, shown.lost_worker.id) == (worker_name(OTHER_WORKER), dead)
    assert (shown.noticed_by, shown.missed_renewals) == ("lock_gone", 2)
    assert shown.after_ms is not None
    assert shown.after_ms > 1_000_000
    await workers.release(pool, OTHER_WORKER)
    await acquire(pool, WORKER)
    viewer = await resume_state(pool, CHAT, viewer)
    assert viewer == await read_state(pool, CHAT)
    assert viewer.takeover == shown


async def test_the_host_of_a_worker_that_ended_is_still_known(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.P0))
    me = workers.WorkerDescription(worker_id=WORKER, host="web-2", version="1.2", slots=3)
    await workers.send_heartbeat(
        pool, workers.Heartbeat(worker_id=WORKER, running={}, description=me)
    )
    await acquire(pool, WORKER)
    [worker] = await runs.list_lanes(pool)
    assert (worker.host, worker.version, worker.slots, worker.chats) == ("web-2", "1.2", 3, 1)
    holder = await runs.get_holder(pool, HARNESS, CHAT)
    assert holder is not None
    assert (holder.worker_id, holder.host) == (WORKER, "web-2")
    await workers.release(pool, WORKER)
    await workers.delete_workers(pool, frozenset({WORKER}))
    assert await runs.list_lanes(pool) == []
    assert {run.host for run in await runs.list_runs(pool, HARNESS, CHAT)} == {"web-2"}
