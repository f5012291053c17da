"""What the model is told about its workspace, and that reading it never delays a turn."""

import asyncio
from typing import cast

import msgspec
import pytest

from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import State
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ContextResource,
    WorkspaceContext,
)
from chatd.domain.workspace.entities import AgentHealth, AgentRow, BuildTransition
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings, builds, workspaces
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_monitor import ContextMonitor, ContextSync
from chatd.workspaces.agents.agent_resolver import StoredBindings
from chatd.workspaces.instructions import (
    ATTACHED_TEXT,
    DELETED_TEXT,
    FAILED_BRIEFING_KEPT_S,
    NO_WORKSPACE_CHILD_TEXT,
    NO_WORKSPACE_TEXT,
    STOPPED_CHILD_TEXT,
    STOPPED_TEXT,
    WorkspaceInstructions,
)
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, HARNESS
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import Emitted, env_with
from tests.support.workspaces import (
    HOST,
    agent_id,
    build_id,
    finish,
    insert_template,
    insert_workspace_for,
    new_build,
    stored_context,
    workspace_id,
)


def says(text: str, version: int = 1) -> WorkspaceContext:
    file = ContextResource(
        kind="instruction_file", source="/home/dev/AGENTS.md", status="ok", content=text
    )
    return WorkspaceContext(
        version=version, hash=text, directory="/home/dev", os="linux", resources=(file,)
    )


class Place:
    """A chat with a running workspace. Its agent reports what a test has set."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.emitted = Emitted()
        self.clock = FakeClock()
        self.env = env_with(self.clock, self.emitted)
        self.contexts = ContextSync(pool, self.env)
        self.words = says("Use tabs.")
        self.asked = 0
        self.lost = False
        self.mute = False
        self.briefings = WorkspaceInstructions(
            StoredBindings(pool), self.contexts, self.connect, self.env
        )

    async def connect(self, row: Chat) -> AgentClient:
        del row
        if self.lost:
            self.asked += 1
            raise AgentUnreachable("The agent does not answer.")
        return cast("AgentClient", self)

    async def context(self, *, after: int = 0, wait_s: float = 0) -> WorkspaceContext:
        del after, wait_s
        self.asked += 1
        if self.mute:
            await asyncio.Event().wait()
        return self.words

    async def read(self, agent: AgentRow) -> WorkspaceContext:
        del agent
        return await self.context()

    async def told(self, **columns: object) -> str:
        row = present(await chats.get(self.pool, HARNESS, CHAT))
        told = await self.briefings.instructions(msgspec.structs.replace(row, **columns))
        return "\n\n".join(text for _, text in told.sections() if text)

    async def stop(self, transition: BuildTransition = "stop") -> None:
        new = new_build(2, transition=transition)
        assert await builds.insert(self.pool, HARNESS, new) is not None
        await finish(self.pool)


@pytest.fixture
async def place(pool: Pool) -> Place:
    await insert_template(pool)
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))
    await insert_workspace_for(pool, CHAT, fence)
    await finish(pool)
    await bindings.save_bound_agent(
        pool, HARNESS, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )
    return Place(pool)


async def test_a_chat_without_a_workspace_is_told_how_to_get_one(place: Place) -> None:
    assert await place.told(workspace_id=None) == NO_WORKSPACE_TEXT
    child = {"workspace_id": None, "parent_chat_id": CHAT}
    assert await place.told(epoch=9, **child) == NO_WORKSPACE_CHILD_TEXT
    assert place.asked == 0


@pytest.mark.covers("instructions-1")
async def test_the_instructions_of_the_workspace_are_told_once_in_a_turn(place: Place) -> None:
    first = await place.told()
    assert first.startswith(ATTACHED_TEXT)
    assert "Source: /home/dev/AGENTS.md\nUse tabs." in first
    assert await place.told() == first
    assert place.asked == 1


async def test_pinned_instructions_stay_until_a_refresh_is_requested(place: Place) -> None:
    """An unchanged beginning of the prompt is cheaper."""
    first = await place.told(epoch=1)
    place.words = says("Use spaces.", version=2)
    assert await place.contexts.store(agent_id(1), place.words, initial=False)
    assert await place.told(epoch=2) == first
    assert present(await bindings.get_pinned_context(place.pool, HARNESS, CHAT)).dirty
    assert await bindings.pin_context(place.pool, HARNESS, CHAT, agent_id(1), replace=True)
    assert "Use spaces." in await place.told(epoch=3)


@pytest.mark.promise("P14")
async def test_a_stopped_workspace_is_not_connected_to_and_keeps_its_instructions(
    place: Place,
) -> None:
    await place.told(epoch=1)
    await place.stop()
    told = await place.told(epoch=2)
    assert told.startswith(STOPPED_TEXT)
    assert "Use tabs." in told
    child = await place.told(epoch=3, parent_chat_id=CHAT)
    assert child.startswith(STOPPED_CHILD_TEXT)
    assert place.asked == 1


async def test_a_deleted_workspace_is_not_reported_as_stopped(place: Place) -> None:
    await place.told(epoch=1)
    await place.stop("delete")
    assert await place.told(epoch=2) == DELETED_TEXT
    assert await place.told(epoch=3, parent_chat_id=CHAT) == NO_WORKSPACE_CHILD_TEXT
    assert place.asked == 1


@pytest.mark.covers("instructions-1")
async def test_a_workspace_that_does_not_answer_is_asked_again_in_the_next_turn(
    place: Place,
) -> None:
    place.lost = True
    assert await place.told(epoch=1) == ATTACHED_TEXT
    assert await place.told(epoch=1) == ATTACHED_TEXT
    assert place.asked == 1
    place.lost = False
    assert "Use tabs." in await place.told(epoch=2)


async def test_a_workspace_that_did_not_answer_is_asked_again_within_the_turn(place: Place) -> None:
    place.lost = True
    assert await place.told(epoch=1) == ATTACHED_TEXT
    place.lost = False
    assert await place.told(epoch=1) == ATTACHED_TEXT
    assert place.asked == 1
    place.clock.advance(FAILED_BRIEFING_KEPT_S)
    assert "Use tabs." in await place.told(epoch=1)


@pytest.mark.covers("hostile-6")
@pytest.mark.promise("P14")
async def test_a_silent_agent_delays_no_turn(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatd.workspaces.instructions.INSTRUCTIONS_TIMEOUT_S", 0.1)
    place.mute = True
    async with asyncio.timeout(20):
        assert await place.told() == ATTACHED_TEXT


async def test_a_workspace_bound_during_a_turn_is_described(place: Place) -> None:
    """The turn's row was read before."""
    assert await place.told(workspace_id=None) == NO_WORKSPACE_TEXT
    place.briefings.on_bound(CHAT)
    assert "Use tabs." in await place.told(workspace_id=None)


async def test_without_instruction_files_system_and_directory_are_still_described(
    place: Place,
) -> None:
    place.words = msgspec.structs.replace(place.words, resources=())
    assert (
        await place.told() == f"{ATTACHED_TEXT} Its operating system is linux."
        " Commands run in /home/dev unless a call says otherwise."
    )


async def test_a_changed_context_is_found_by_polling_and_offered_once(
    place: Place, pool: Pool
) -> None:
    await place.told()
    await workspaces.record_agent_healthy(pool, {agent_id(1): AgentHealth(boot_id="first")})
    watch = ContextMonitor(pool, place.contexts, place.read, place.env, lambda: [HOST])
    await watch.check_contexts()
    place.words = good = says("Use spaces.", version=2)
    await watch.check_contexts()
    assert await stored_context(pool, agent_id(1)) == good
    place.words = says("x" * 300_000, version=3)
    await watch.check_contexts()
    await watch.check_contexts()
    assert place.emitted.counts["context_rejected"] == 1
    assert await stored_context(pool, agent_id(1)) == good


async def test_a_restarted_agent_counts_versions_from_the_beginning(
    place: Place, pool: Pool
) -> None:
    watch = ContextMonitor(pool, place.contexts, place.read, place.env, lambda: [HOST])
    place.words = says("Old.", version=7)
    await workspaces.record_agent_healthy(pool, {agent_id(1): AgentHealth(boot_id="first")})
    await watch.check_contexts()
    place.words = says("New.", version=1)
    await workspaces.record_agent_healthy(pool, {agent_id(1): AgentHealth(boot_id="second")})
    await watch.check_contexts()
    assert await stored_context(pool, agent_id(1)) == place.words


@pytest.mark.covers("instructions-1")
async def test_a_clipped_file_is_marked(place: Place) -> None:
    (file,) = place.words.resources
    cut = msgspec.structs.replace(file, status="oversize")
    place.words = msgspec.structs.replace(place.words, resources=(cut,))
    assert "Source: /home/dev/AGENTS.md (truncated)\nUse tabs." in await place.told()
