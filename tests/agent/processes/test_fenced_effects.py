"""Effects wait for a snapshot of the repositories; the chat may get another owner meanwhile."""

import json
from collections.abc import Sequence

import pytest

from chatd.agent.effect_guards import EpochFence, OwnerClaim
from chatd.agent.errors import AgentError
from chatd.agent.files.file_routes import FileRoutes
from chatd.agent.processes.process_table import ProcessRoutes
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import RequestHead
from chatd.agent.threads import WorkerThreads
from tests.agent.processes.agent_fixture import AgentFixture


class Takeover:
    """Another worker claims the chat during the snapshot."""

    def __init__(self) -> None:
        self.fence = EpochFence()

    async def during_snapshot(self, caller: AgentCaller, paths: Sequence[str]) -> None:
        del paths
        self.fence.check_owner(caller.chat_id, OwnerClaim(2))


async def send(routes: Sequence[AgentRoute], path: str, query: dict[str, str], body: bytes) -> None:
    [route] = [one for one in routes if one.path.endswith(path)]
    head = RequestHead("POST", path, path, query, {}, len(body), keep_alive=False)
    caller = AgentCaller(chat_id="c", owner=OwnerClaim(1), key="k")
    await route.handle(AgentRouteRequest(head, caller, body))


@pytest.mark.promise("P3")
async def test_a_worker_that_lost_its_chat_during_the_snapshot_starts_no_command(
    agent: AgentFixture,
) -> None:
    takeover = Takeover()
    routes = ProcessRoutes(agent.processes, takeover.fence, takeover.during_snapshot).routes()
    body = json.dumps({"command": f"touch {agent.home}/late"}).encode()
    with pytest.raises(AgentError) as refused:
        await send(routes, "/start", {}, body)
    assert refused.value.code == "stale_epoch"
    assert agent.processes.list("c") == []


@pytest.mark.promise("P3")
async def test_a_worker_that_lost_its_chat_during_the_snapshot_writes_no_file(
    agent: AgentFixture,
) -> None:
    takeover = Takeover()
    routes = FileRoutes(
        home=str(agent.home),
        directory=str(agent.home),
        threads=WorkerThreads(),
        journal=agent.journal,
        fence=takeover.fence,
        on_touched=lambda _chats, _paths: None,
        before_effect=takeover.during_snapshot,
    ).routes()
    with pytest.raises(AgentError) as refused:
        await send(routes, "/write-file", {"path": str(agent.home / "late")}, b"x")
    assert refused.value.code == "stale_epoch"
    assert not (agent.home / "late").exists()
