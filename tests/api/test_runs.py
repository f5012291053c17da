"""The record of attempts and the workers over the API."""

import msgspec

from chatd.domain.chat.takeover import worker_name
from chatd.store.chat import workers
from chatd.store.database.pool import Pool
from tests.support.api.server import ADMINISTRATOR, ME, OTHER_USER, ApiServer, Json
from tests.support.factories import CHAT, WORKER


async def test_turns_come_newest_first_with_their_attempts(server: ApiServer, pool: Pool) -> None:
    chat = await server.create("hello")
    await workers.send_heartbeat(pool, workers.Heartbeat(worker_id=WORKER, running={}))
    for _ in range(2):
        await workers.acquire(pool, WORKER, roots=1, children=0)
        await workers.release(pool, WORKER)
    await workers.acquire(pool, WORKER, roots=1, children=0)
    page = (await server.ask("GET", f"/chats/{chat}/runs")).json
    [turn] = msgspec.convert(page["items"], list[Json])
    assert (turn["turn"], turn["message_id"], turn["outcome"]) == (1, 1, "running")
    attempts = msgspec.convert(turn["attempts"], list[Json])
    assert [one["outcome"] for one in attempts] == ["released", "released", "running"]
    assert [one["number"] for one in attempts] == [1, 2, 3]
    holder = msgspec.convert(page["holder"], Json)
    assert msgspec.convert(holder["worker"], Json)["id"] == str(WORKER)
    assert [one["id"] for one in msgspec.convert(page["workers"], list[Json])] == [str(WORKER)]


async def test_names_of_hosts_are_for_those_who_read_the_configuration(
    server: ApiServer, pool: Pool
) -> None:
    chat = await server.create("hello")
    about = workers.WorkerDescription(worker_id=WORKER, host="db-7.secret.example")
    beat = workers.Heartbeat(worker_id=WORKER, running={}, description=about)
    await workers.send_heartbeat(pool, beat)
    await workers.acquire(pool, WORKER, roots=1, children=0)
    own = await server.ask("GET", f"/chats/{chat}/runs")
    assert b"db-7" not in own.content
    assert worker_name(WORKER).encode() in own.content
    full = await server.ask("GET", f"/chats/{chat}/runs", token=ADMINISTRATOR)
    assert full.content.count(b"db-7.secret.example") == 3, "attempt, holder and lane"


async def test_no_user_sees_the_attempts_of_another(server: ApiServer) -> None:
    chat = await server.create("mine")
    for chat_id in (chat, CHAT):
        reply = await server.ask("GET", f"/chats/{chat_id}/runs", token=OTHER_USER)
        assert reply.code == (404, "not_found")


async def test_only_administrators_list_the_workers(server: ApiServer, pool: Pool) -> None:
    await workers.send_heartbeat(pool, workers.Heartbeat(worker_id=WORKER, running={}))
    reply = await server.ask("GET", "/workers", token=ADMINISTRATOR)
    assert [item["id"] for item in reply.items] == [str(WORKER)]
    assert (await server.ask("GET", "/workers", token=ME)).status == 403
