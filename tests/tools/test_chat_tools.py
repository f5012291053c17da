"""In which order a chat's tools are sent: what a provider has cached stays at the beginning."""

from collections.abc import Sequence

import pytest

from chatd.clock import SystemClock
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.ids import ChangeId
from chatd.domain.mcp.tools import McpOrigin
from chatd.domain.prompt.instructions import Instructions
from chatd.store.chat import transfer
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_servers
from chatd.tools.chat_tools import ChatTools, ToolOrders
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import env_with
from tests.support.tools import GatedTool
from tests.workspaces.agent_process import new_chat_id


class ServerTool(GatedTool):
    def __init__(self, server: str, name: str, *, is_configured: bool = True) -> None:
        super().__init__(f"{server}__{name}")
        self.mcp_origin = McpOrigin(name=server, config_id=server if is_configured else None)


class Family:
    def __init__(self) -> None:
        self.found: list[GatedTool] = [GatedTool("read_file"), GatedTool("zip")]

    async def tools(self, chat: Chat) -> Sequence[GatedTool]:
        del chat
        return self.found


async def _instructions(chat: Chat) -> Instructions:
    del chat
    return Instructions()


class Source:
    """One process. `restarted` is the next one."""

    def __init__(self, pool: Pool, chat: Chat, family: Family) -> None:
        self._pool, self.chat, self.family = pool, chat, family
        self._tools = ChatTools([family], _instructions)
        self._tools.orders = ToolOrders(pool, env_with(SystemClock()))

    def restarted(self) -> "Source":
        return Source(self._pool, self.chat, self.family)

    async def names(self) -> list[str]:
        return [tool.spec.name for tool in await self._tools.tools(self.chat)]


@pytest.fixture
async def source(pool: Pool) -> Source:
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local", chat_id=new_chat_id()))
    return Source(pool, chat, Family())


async def test_the_tools_of_an_added_server_follow_all_others(source: Source) -> None:
    found = source.family.found
    found += [ServerTool("mid", "b"), ServerTool("mid", "a"), ServerTool("new", "x")]
    first = await source.names()
    assert first == ["read_file", "zip", "mid__a", "mid__b", "new__x"]
    found += [ServerTool("added", "y"), ServerTool("here", "z", is_configured=False)]
    assert (await source.names())[:5] == first
    # Another replica, and one that adds a third.
    later = source.restarted()
    assert await later.names() == [*first, "added__y", "here__z"]
    found.append(ServerTool("first", "y"))
    assert await later.names() == [*first, "added__y", "here__z", "first__y"]
    assert await source.restarted().names() == [*first, "added__y", "here__z", "first__y"]


async def test_a_server_that_returns_has_its_former_place(source: Source) -> None:
    found = source.family.found
    found += [ServerTool("b", "x")]
    await source.names()
    found += [ServerTool("a", "x"), ServerTool("c", "x")]
    every = await source.names()
    gone = found.pop(2)
    assert await source.restarted().names() == ["read_file", "zip", "a__x", "c__x"]
    found.append(gone)
    assert every == ["read_file", "zip", "b__x", "a__x", "c__x"]
    assert await source.restarted().names() == every


async def test_the_order_that_is_kept_for_a_chat_is_bounded(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_servers, "MAX_ORDERED_SERVERS", 2)
    for name in ("b", "c", "a"):
        source.family.found.append(ServerTool(name, "x"))
        names = await source.names()
    assert names[2:] == ["b__x", "c__x", "a__x"]
    assert await source.restarted().names() == names


async def test_the_tools_for_skills_that_come_later_follow_all_others(source: Source) -> None:
    found = source.family.found
    found += [GatedTool("zoom"), ServerTool("a", "x")]
    first = await source.names()
    found.append(GatedTool("read_skill"))
    assert await source.names() == [*first, "read_skill"]
    found += [GatedTool("read_skill_file"), ServerTool("b", "x")]
    every = await source.restarted().names()
    assert every[: len(first) + 1] == [*first, "read_skill"]
    assert await source.restarted().names() == every


async def test_a_server_that_is_added_to_a_chat_with_skills_follows_their_tools(
    source: Source,
) -> None:
    source.family.found += [GatedTool("read_skill"), GatedTool("zoom")]
    first = await source.names()
    assert first == ["read_file", "zip", "zoom", "read_skill"]
    source.family.found.append(ServerTool("a", "x"))
    assert await source.restarted().names() == [*first, "a__x"]


async def test_a_fork_has_the_tools_in_the_order_of_its_source(source: Source, pool: Pool) -> None:
    source.family.found.append(ServerTool("b", "x"))
    await source.names()
    source.family.found.append(ServerTool("a", "x"))
    names = await source.names()
    fork = await transfer.fork(
        pool,
        UserActor(user_id=source.chat.owner_id, role="member"),
        transfer.ForkRequest(id=new_chat_id(), source_id=source.chat.id, change_id=ChangeId(7)),
    )
    assert await Source(pool, fork, source.family).names() == names
