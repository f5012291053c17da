"""What models are told of the memory, when, and that what they propose waits for the person."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.app.replica import Replica
from chatd.clock import SystemClock
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.deployment.runtime_settings import UserSettings
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ChatId, ProjectId, ToolCallId, WorkerId
from chatd.domain.memory import MAX_PROPOSALS, MemoryChoice
from chatd.domain.ports import ToolContext, ToolSource
from chatd.domain.prompt.instructions import Instructions
from chatd.store import memory, projects
from chatd.store.account import runtime_settings
from chatd.store.database import sealed_columns
from chatd.store.database.sealed_columns import KeyRecord
from chatd.store.memory import NotePatch
from chatd.store.projects import ProjectPatch
from chatd.tools.chat_tools import ChatTools
from chatd.tools.memory import MemoryDirectory, MemoryTools
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.outcomes import present
from tests.support.providers.server import Gate
from tests.support.stream_replica import env_with
from tests.support.tools import GatedTool, Tools
from tests.support.workspaces import TEMPLATE, insert_template

NOTE = UUID(int=51)
NUMBERS = count(9000)
REMEMBER = '{"text":"Ada works on billing."}'


async def no_instructions(_chat: Chat) -> Instructions:
    return Instructions()


class MemoryRig:
    def __init__(self, rig: EngineRig, directory: MemoryDirectory) -> None:
        self.rig = rig
        self.directory = directory
        self.owner = UserActor(user_id=rig.owner, role="member")

    async def choose(self, choice: MemoryChoice) -> None:
        stored = await runtime_settings.get_user(self.rig.pool, self.owner, self.rig.owner)
        async with self.rig.pool.transaction() as session:
            document = UserSettings(memory=choice)
            await runtime_settings.save_user(session, self.owner, document, version=stored.version)

    async def keep(
        self, text: str, note_id: UUID = NOTE, project_id: ProjectId | None = None
    ) -> None:
        async with self.rig.pool.transaction() as session:
            await memory.insert(session, self.owner, note_id, text=text, project_id=project_id)

    async def change(self, **fields: object) -> None:
        async with self.rig.pool.transaction() as session:
            await memory.update(session, self.owner, NOTE, replace(NotePatch(), **fields))

    async def until_told(self, chat: Chat, text: str) -> None:
        """This replica has heard of a change."""

        async def is_known() -> bool:
            return text in str((await self.directory.texts(chat)).user)

        await eventually(is_known)

    async def turn(self, chat_id: ChatId, epoch: int) -> str:
        """Another turn, and what the model was sent."""
        self.rig.answer("again")
        await self.rig.send(chat_id, "more")
        await self.rig.wait_chat_task_left(chat_id, epoch=epoch)
        return self.request()

    def request(self) -> str:
        return self.rig.api.requests[-1].body.decode()

    def offered(self) -> list[str]:
        sent = msgspec.json.decode(self.request(), type=dict[str, Any])
        return [one["function"]["name"] for one in sent.get("tools", ())]

    async def proposed(self) -> list[str]:
        found = await memory.list_proposed(self.rig.pool, self.owner)
        return [one.text for one in found]

    async def call(self, chat: Chat, text: str, call: str = "c") -> str:
        (tool,) = await MemoryTools(self.directory).tools(chat)
        context = ToolContext(chat=chat, call_id=ToolCallId(call), fence=Fence.of(chat))
        return str((await tool.run(context, Raw(msgspec.json.encode({"text": text})))).text)


@asynccontextmanager
async def memory_rig(dsn: str, *tools: GatedTool) -> AsyncGenerator[MemoryRig]:
    built: list[MemoryDirectory] = []

    def build_tools(replica: Replica) -> ToolSource:
        pool = replica.database.pool
        built.append(MemoryDirectory(pool, replica.config_changes, env_with(SystemClock())))
        families = [Tools(tools), MemoryTools(built[0])]
        return ChatTools(families, no_instructions, memory=built[0])

    async with engine_rig(dsn, build_tools=build_tools) as rig:
        yield MemoryRig(rig, built[0])


async def test_a_chat_is_told_the_notes_and_once_what_changes(dsn: str) -> None:
    async with memory_rig(dsn) as own:
        rig = own.rig
        await own.keep("I use British English.")
        chat_id = await rig.ask("hi", "hello")
        chat = await rig.wait_chat_task_left(chat_id)
        first = own.request()
        assert first.count("- I use British English.") == 1
        assert own.offered() == [], "no tool unless the person wants proposals"
        await own.change(text="I use American English.")
        await own.until_told(chat, "American")
        for epoch in (3, 5):
            sent = await own.turn(chat_id, epoch)
            assert sent.count("American English.") == 1
            assert first[: first.index('"hi"')] in sent, "what was sent is not rewritten"
        await own.change(enabled=False)

        async def is_off() -> bool:
            return (await own.directory.texts(chat)).user == ""

        await eventually(is_off)
        told = await own.turn(chat_id, 7)
        assert "The notes of the user given earlier no longer apply" in told


async def test_a_project_tells_its_notes_to_its_chats_only(dsn: str) -> None:
    async with memory_rig(dsn) as own:
        project = ProjectId(UUID(int=31))
        async with own.rig.pool.transaction() as session:
            await projects.create(session, own.owner, project, ProjectPatch(name="Billing"))
        await own.keep("Amounts are in cents.", project_id=project)
        chat_id = await own.rig.ask("hi", "hello")
        await own.rig.wait_chat_task_left(chat_id)
        assert "cents" not in own.request()
        own.rig.answer("hello")
        chat_id = await own.rig.create("hi", project_id=project)
        await own.rig.wait_chat_task_left(chat_id)
        assert "- Amounts are in cents.\\n</project-notes>" in own.request()


async def test_a_model_proposes_and_the_turn_goes_on(dsn: str) -> None:
    async with memory_rig(dsn) as own:
        await own.choose("proposals")
        own.rig.call_tools(("c1", "remember", REMEMBER))
        own.rig.answer("done")
        chat_id = await own.rig.create("remember that Ada works on billing")
        chat = await own.rig.wait_chat_task_left(chat_id)
        assert "remember" in own.offered()
        assert await own.proposed() == ["Ada works on billing."]
        assert chat.state == "W", "the call waits for nobody"
        parts = [part for row in await own.rig.history(chat_id) for part in row.content]
        result = next(part for part in parts if isinstance(part, ToolResultPart))
        told = msgspec.json.decode(bytes(present(result.result)), type=dict[str, str | bool])  # pyright: ignore[reportArgumentType]
        assert (told["kind"], told["text"]) == ("note", "Ada works on billing.")
        assert (await own.directory.texts(chat)).user == "", "a proposal is told to no model"


async def test_a_proposal_before_a_kill_is_found_by_the_next_worker(dsn: str) -> None:
    """The worker dies after the note was proposed and before the step's results are committed."""
    gate = Gate()
    slow = GatedTool(gate=gate, effect="idempotent")
    async with memory_rig(dsn, slow) as own:
        await own.choose("proposals")
        own.rig.call_tools(("c1", "remember", REMEMBER), ("c2", "echo", "{}"))
        chat_id = await own.rig.create("remember it")
        await gate.reached.wait()

        async def is_proposed() -> bool:
            return await own.proposed() == ["Ada works on billing."]

        await eventually(is_proposed)
        (before,) = await memory.list_proposed(own.rig.pool, own.owner)
        own.rig.answer("done")
        await own.rig.reap_owner(chat_id)
        gate.open()
        chat = await own.rig.wait_state(chat_id, "W")
        assert len(slow.runs) >= 2, "the step ran again"
        assert await own.proposed() == ["Ada works on billing."]
        (after,) = await memory.list_proposed(own.rig.pool, own.owner)
        assert (after, after.chat_id) == (before, chat.id)


async def test_a_worker_that_has_lost_the_chat_proposes_nothing(dsn: str) -> None:
    async with memory_rig(dsn) as own:
        await own.choose("proposals")
        chat = await own.rig.wait_chat_task_left(await own.rig.ask("hi", "hello"))
        stale = replace(chat, worker_id=WorkerId(UUID(int=next(NUMBERS))), status="running")
        with pytest.raises(StaleFence):
            await own.call(stale, "a")
        assert await own.proposed() == []


async def test_what_is_proposed_is_bounded_and_not_repeated(dsn: str) -> None:
    gate = Gate()
    async with memory_rig(dsn, GatedTool(gate=gate)) as own:
        await own.choose("proposals")
        chat = await own.rig.chat(await own.rig.start_tool("go", gate))
        assert "at most 500" in await own.call(chat, "x" * 501)
        assert "Propose one short fact" in await own.call(chat, "\u200b")
        assert '"ok":true' in await own.call(chat, "a")
        assert '"ok":true' in await own.call(chat, "a"), "a repeated call finds its note"
        assert "proposed already" in await own.call(chat, "a", "d")
        assert await own.proposed() == ["a"]
        done = await asyncio.gather(
            *(own.call(chat, f"note {number}", f"n{number}") for number in range(MAX_PROPOSALS + 4))
        )
        assert sum("wait for the user's decision" in one for one in done) == 5
        assert len(await own.proposed()) == MAX_PROPOSALS
        own.rig.answer("done")
        gate.open()
        await own.rig.wait_state(chat.id, "W")


async def test_who_gets_no_notes_and_no_tool(dsn: str) -> None:
    async with memory_rig(dsn) as own:
        await own.choose("proposals")
        await own.keep("I use British English.")
        chat = await own.rig.wait_chat_task_left(await own.rig.ask("hi", "hello"))
        family = MemoryTools(own.directory)
        assert len(await family.tools(chat)) == 1
        child = replace(
            chat, parent_chat_id=chat.id, root_chat_id=chat.id, id=ChatId(UUID(int=next(NUMBERS)))
        )
        assert await family.tools(child) == (), "a subagent proposes nothing"
        assert "British" in str((await own.directory.texts(child)).user)
        other = replace(chat, id=ChatId(UUID(int=next(NUMBERS))), owner_id=UUID(int=99))
        assert (await own.directory.texts(other)).user == ""
        public = replace(chat, id=ChatId(UUID(int=next(NUMBERS))), root_chat_id=None)
        await _start_from_repository(own.rig, public.id)
        assert (await own.directory.texts(public)).user == "", "its answers are comments"
        assert await family.tools(public) == ()
        for channel, is_public in (("C01", True), ("G01", True), ("D01", False)):
            posted = replace(public, id=ChatId(UUID(int=next(NUMBERS))))
            await _start_in_slack(own.rig, posted.id, channel)
            assert ((await own.directory.texts(posted)).user == "") is is_public, channel
            assert (await family.tools(posted) == ()) is is_public
        await own.choose("off")

        async def is_off() -> bool:
            told = (await own.directory.texts(chat)).user
            return told == "" and await family.tools(chat) == ()

        await eventually(is_off)


async def _start_in_slack(rig: EngineRig, chat_id: ChatId, channel: str) -> None:
    """As a message there does that mentions chatd."""
    await rig.pool.execute(
        """INSERT INTO slack_connections (id, name, app_token, bot_token)
           VALUES ($1, 'a', 'v1.k.x', 'v1.k.y') ON CONFLICT DO NOTHING""",
        UUID(int=63),
    )
    await rig.pool.execute(
        """INSERT INTO slack_threads (id, connection_id, channel, thread_ts, chat_id)
           VALUES ($1, $2, $3, '1.0', $1)""",
        chat_id,
        UUID(int=63),
        channel,
    )


async def _start_from_repository(rig: EngineRig, chat_id: ChatId) -> None:
    """As an issue does that mentions chatd."""
    await insert_template(rig.pool)
    key = KeyRecord(id="k", check_value="c", state="current")
    await sealed_columns.insert_key(rig.pool, key)
    connection = UUID(int=61)
    await rig.pool.execute(
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           VALUES ($1, 'a', 'github', 'https://api.github.test', '{a/b}', '@chatd', $2, $3, 0,
               'v1.k.x', 'v1.k.y')""",
        connection,
        TEMPLATE,
        rig.owner,
    )
    await rig.pool.execute(
        """INSERT INTO repository_threads (id, connection_id, repository, number, is_pull, title,
               branch, chat_id, reply_number, reply_is_pull, comment_key)
           VALUES ($1, $2, 'a/b', 1, false, 't', 'b', $3, 1, false, $1)""",
        UUID(int=62),
        connection,
        chat_id,
    )
