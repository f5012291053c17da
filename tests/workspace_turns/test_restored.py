"""Chats go on in their workspaces after the database has lost their latest changes of owner, and
after a command has tried to forge one."""

from functools import partial

import pytest

from chatd.store.database.pool import Pool
from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import WAIT_TIMEOUT_S, ServerSite, WorkspaceServer, execute

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

FORGE = (
    """printf '{"chat":"%s","epoch":999999999}\\n' $CHATD_CHAT_ID >> /run/chatd/fence.jsonl;"""
    " kill -9 $PPID"
)


async def append(server: WorkspaceServer, chat: str, *logs: str) -> None:
    """One turn for each log, which has one letter more than before."""
    for log in logs:
        command = f"printf {log[-1]} >> log; cat log"
        [told] = await server.call(chat, f"turn-{log}", execute(command))
        assert told.get("output") == log, told


async def has_agent(server: WorkspaceServer, chat: str) -> bool:
    """False while the agent is started again."""
    [told] = await server.call(chat, "look", ("process_list", {}))
    return "processes" in told


@pytest.mark.promise("P3")
async def test_a_chat_goes_on_after_its_epoch_was_set_back_or_forged(
    site: ServerSite, pool: Pool
) -> None:
    """Takes seconds: a server is started."""
    async with site.server() as server:
        chat = await server.create("make", site.create("plain"), execute("true"))
        await server.wait_idle(chat)
        await append(server, chat, "a", "ab", "abc")
        [before] = [row["epoch"] for row in await pool.fetch("SELECT epoch FROM chats")]
        await pool.execute("UPDATE chats SET epoch = 1")
        assert before > 3
        await append(server, chat, "abcd", "abcde")
        await server.call(chat, "forge", execute(FORGE))
        await eventually(partial(has_agent, server, chat), within_s=WAIT_TIMEOUT_S)
        await append(server, chat, "abcdef")
