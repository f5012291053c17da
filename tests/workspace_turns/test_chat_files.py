"""A server is killed after a tool has put a file into the chat and before its result is stored:
the chat has the file once."""

import asyncio
from contextlib import AsyncExitStack
from typing import Final, LiteralString

import pytest

from chatd.store.database.pool import Pool
from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Call,
    ReplyHoldingProxy,
    ServerSite,
    WorkspaceServer,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

# The commit of the result waits for this lock; the statement that stores the file does not.
HOLD_ROW: Final[LiteralString] = "SELECT id FROM chats WHERE id = $1::uuid FOR NO KEY UPDATE"
COUNT: Final[LiteralString] = "SELECT count(*) FROM chat_files WHERE chat_id = $1::uuid"
COUNT_ALL: Final[LiteralString] = "SELECT count(*) FROM files"


async def kill_after_file(
    victim: WorkspaceServer, pool: Pool, chat: str, held: ReplyHoldingProxy
) -> None:
    """Kill the server between the file and the result of the call."""

    async def is_stored() -> bool:
        return await pool.fetchval(COUNT, chat) == 1

    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await held.replied.wait()
    async with pool.transaction() as session:
        await session.execute(HOLD_ROW, chat)
        held.release()
        await eventually(is_stored, within_s=WAIT_TIMEOUT_S)
        await victim.kill()


@pytest.mark.promise("P7")
async def test_a_plan_that_a_killed_server_proposed_is_proposed_once(
    site: ServerSite, pool: Pool
) -> None:
    """Takes seconds: servers are started and one is killed."""
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(site.server())
        chat = await victim.create("make", site.create("plain"))
        place = await victim.workspace_of(chat)
        heir = await stack.enter_async_context(site.server())
        path = f"~/.chatd/plans/PLAN-{chat}.md"
        calls: tuple[Call, ...] = (
            ("write_file", {"path": path, "content": "# Plan\n"}),
            ("propose_plan", {}),
        )
        async with ReplyHoldingProxy(place.socket, b"/read-file?").listening() as held:
            await victim.send(chat, "plan", *calls, mode="plan")
            await kill_after_file(victim, pool, chat, held)
        written, proposed = (await heir.wait_idle(chat))[1:]
        assert written == {"ok": True}
        assert (proposed["ok"], proposed["kind"]) == (True, "plan")
        assert await pool.fetchval(COUNT, chat) == 1
        assert await pool.fetchval(COUNT_ALL) == 1
        listed = (await heir.ask("GET", f"/chats/{chat}/files"))["items"]
        assert [file["id"] for file in listed] == [proposed["file_id"]]
        # The turn ended with the proposal: the model said nothing after it.
        assert (await heir.parts(chat))[-1]["type"] == "tool-result"


@pytest.mark.promise("P7")
async def test_a_file_that_a_killed_server_attached_is_attached_once(
    site: ServerSite, pool: Pool
) -> None:
    """Takes seconds: servers are started and one is killed."""
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(site.server())
        chat = await victim.create("make", site.create("plain"))
        place = await victim.workspace_of(chat)
        heir = await stack.enter_async_context(site.server())
        (place.home / "sums.csv").write_text("a,b\n1,2\n")
        async with ReplyHoldingProxy(place.socket, b"/read-file?").listening() as held:
            await victim.send(chat, "give", ("attach_file", {"path": "~/sums.csv"}))
            await kill_after_file(victim, pool, chat, held)
        (attached,) = (await heir.wait_idle(chat))[1:]
        assert (attached["name"], attached["media_type"]) == ("sums.csv", "text/csv")
        assert await pool.fetchval(COUNT_ALL) == 1
        shown = [part for part in await heir.parts(chat) if part["type"] == "file"]
        assert [part["file_id"] for part in shown] == [attached["file_id"]]
