"""An interrupt that holds the queue, over HTTP."""

import pytest

from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import finish_interrupt
from tests.support.api.server import ApiServer, message_body
from tests.support.factories import CHAT, draft, text
from tests.support.seeds import Seed, step
from tests.support.store import insert_seed

PATH = f"/chats/{CHAT}"


async def stop(server: ApiServer) -> None:
    """Interrupt a running chat with one queued message, and play its worker until it rests."""
    await insert_seed(server.replica.pool, Seed(state=State.R1))
    stopped = await server.ask("POST", f"{PATH}/interrupt", {"queue": "hold"})
    assert (stopped.json["status"], stopped.json["queue_held"]) == ("interrupting", True)
    partial = draft("assistant", text("Once upon"))
    await server.act(CHAT, lambda chat: finish_interrupt(chat, step(chat, partial)))


async def test_a_held_queue_stays_until_it_is_resumed(server: ApiServer) -> None:
    await stop(server)
    found = (await server.ask("GET", PATH)).json
    assert (found["status"], found["queue_held"], found["queue_len"]) == ("error", True, 1)
    assert "queue_held" in str(found["last_error"])
    resumed = await server.ask("POST", f"{PATH}/resume")
    assert (resumed.status, resumed.json["status"]) == (200, "pending")
    found = (await server.ask("GET", PATH)).json
    assert (found.get("queue_held"), found["queue_len"]) == (None, 0)


async def test_a_message_resumes_a_held_queue_in_order(server: ApiServer) -> None:
    await stop(server)
    sent = await server.ask("POST", f"{PATH}/messages", message_body("and this"))
    assert (sent.status, sent.json["queued"]) == (200, True)
    assert (await server.chat(CHAT)).state is State.P1


@pytest.mark.parametrize("body", [None, {}, {"queue": "continue"}])
async def test_without_hold_the_queue_goes_on(server: ApiServer, body: object) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1))
    stopped = await server.ask("POST", f"{PATH}/interrupt", body)
    assert stopped.status == 200
    row = await server.act(CHAT, lambda chat: finish_interrupt(chat, step(chat)))
    assert row.state in (State.R0, State.P0)


async def test_resuming_without_a_waiting_queue_changes_nothing(server: ApiServer) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.R1))
    assert (await server.ask("POST", f"{PATH}/resume")).status == 200
    assert await server.chat(CHAT) == before
    refused = await server.ask("POST", f"{PATH}/interrupt", {"queue": "drop"})
    assert (refused.status, refused.field) == (400, "queue")
