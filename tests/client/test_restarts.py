"""The client through the death of its server's process: kill -9 in the middle of an answer."""

import asyncio
from pathlib import Path

import pytest

from chatd.client.frames import ListReady
from tests.e2e.test_mcp import held_server
from tests.support.chaos.servers import TOKEN, server
from tests.support.client_rig import draft, run_client, texts_of
from tests.support.mcp.servers import front_door

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

ONE_MINUTE = 60


@pytest.mark.promise("P1", "P6", "P8")
async def test_an_answer_goes_on_after_kill_9_and_nothing_is_lost_or_doubled(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts the server twice."""
    async with (
        held_server(dsn, tmp_path) as (installation, model),
        front_door() as door,
        server(installation) as first,
    ):
        door.lead_to(first.url)
        async with run_client(door.url, TOKEN) as client:
            listed = client.follow_list()
            made = client.outbox.send(None, draft("hello"))
            async with asyncio.timeout(ONE_MINUTE):
                chat_id = await client.outbox.created(made.key)
                told = client.follow(chat_id)
                await told.until(lambda chat: chat.shown.live is not None)
                await model.gate.reached.wait()
            first.kill()
            door.lead_to(None)
            door.cut()
            await client.until("waiting")
            client.outbox.send(chat_id, draft("while it was away"))
            heard = len(listed.all)
            async with server(installation) as second:
                door.lead_to(second.url)
                model.gate.open()
                client.connection.retry_now()
                async with asyncio.timeout(ONE_MINUTE):
                    await told.until(
                        lambda chat: (
                            len(chat.shown.messages) == 4 and chat.shown.status == "waiting"
                        )
                    )
                    await listed.until(lambda one: isinstance(one, ListReady), after=heard)
            expected = ["hello", "Half and whole.", "while it was away", "Half and whole."]
            assert texts_of(told.all[-1]) == expected
            assert client.outbox.unsent == ()
            ids = [[message.id for message in chat.shown.messages] for chat in told.all]
            assert all(one == sorted(set(one)) for one in ids)
            versions = [chat.shown.version for chat in told.all]
            assert versions == sorted(versions)
