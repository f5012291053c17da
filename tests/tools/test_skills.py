"""The tools that read skills: a real agent with skills in its home directory, and real rows."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import State
from chatd.domain.ids import ToolCallId, UserId
from chatd.domain.ports import ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.workspace.agent_api import WorkspaceUnavailable
from chatd.store.account import skills
from chatd.store.account.skills import SkillPatch
from chatd.store.chat import chats
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings
from chatd.tools.chat_tools import ChatTools
from chatd.tools.skills import MAX_SKILL_FILE_BYTES, SkillDirectory, SkillTools, no_workspace_skills
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_monitor import ContextSync
from chatd.workspaces.agents.agent_resolver import StoredBindings
from chatd.workspaces.instructions import WorkspaceInstructions
from tests.support.factories import CHAT, HARNESS, member
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import env_with
from tests.support.workspaces import (
    agent_id,
    build_id,
    finish,
    insert_template,
    insert_workspace_for,
    workspace_id,
)
from tests.workspaces.agent_process import AgentProcess, Workbench, running_agent

NOTES = (
    "---\nname: notes\ndescription: Takes notes.\n---\n# Notes\n\n<!-- hidden -->Write it down.\n"
)


class SkillCaller:
    """Satisfies `WorkspaceAccess`. `is_down`: the workspace does not run."""

    def __init__(self, pool: Pool, bench: Workbench | None) -> None:
        self.pool = pool
        self.bench = bench
        self.is_down = False
        env = env_with(SystemClock())
        self.briefings = WorkspaceInstructions(
            StoredBindings(pool), ContextSync(pool, env), self._connect, env
        )
        listing = no_workspace_skills if bench is None else self.briefings.skills
        self.directory = SkillDirectory(pool, ConfigChanges(), listing, env)
        self.family = SkillTools(self.directory, None if bench is None else self)
        self.source = ChatTools([self.family], self.briefings.instructions, self.directory)

    async def connect(self, context: ToolContext) -> AgentClient:
        return await self._connect(context.chat)

    async def _connect(self, chat: Chat) -> AgentClient:
        del chat
        if self.is_down or self.bench is None:
            raise WorkspaceUnavailable("The workspace is stopped.")
        return self.bench.conn

    async def chat(self) -> Chat:
        return present(await chats.get(self.pool, HARNESS, CHAT))

    async def names(self) -> list[str]:
        return [tool.spec.name for tool in await self.source.tools(await self.chat())]

    async def told(self) -> str:
        found: Instructions = await self.source.instructions(await self.chat())
        return dict(found.sections()).get("skills", "unknown")

    async def call(self, name: str, /, **args: object) -> ToolOutput:
        chat = await self.chat()
        tools = {tool.spec.name: tool for tool in await self.source.tools(chat)}
        context = ToolContext(chat=chat, call_id=ToolCallId("c"), fence=Fence.of(chat))
        output = await tools[name].run(context, Raw(msgspec.json.encode(args)))
        assert isinstance(output, ToolOutput)
        return output

    async def result_of(self, name: str, /, **args: object) -> dict[str, Any]:
        output = await self.call(name, **args)
        assert not output.is_error, output.text
        return msgspec.json.decode(output.text, type=dict[str, Any])

    async def error_of(self, name: str, /, **args: object) -> str:
        output = await self.call(name, **args)
        assert output.is_error, output.text
        return output.text

    async def add_personal(self, name: str, body: str = "Do it.") -> None:
        new = SkillPatch(name=name, description=f"Personal {name}.", body=body)
        async with self.pool.transaction() as session:
            await skills.insert(session, member(), UUID(int=len(name)), new)


def write_skill(home: Path) -> None:
    place = home / ".chatd/skills/notes"
    (place / "references").mkdir(parents=True)
    (place / "SKILL.md").write_text(NOTES)
    (place / "checks.md").write_text("- [ ] all\n")
    (place / "references/long.md").write_bytes(b"x" * (MAX_SKILL_FILE_BYTES + 1))
    (place / "broken.bin").write_bytes(b"a\xff\0b")
    (place / ".hidden").write_text("secret")
    (home / "outside.md").write_text("outside")
    (place / "link.md").symlink_to(home / "outside.md")


@pytest.fixture
async def caller(pool: Pool, tmp_path: Path) -> AsyncGenerator[SkillCaller]:
    """A chat with a workspace that has the skill `notes`."""
    await insert_template(pool)
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))
    await insert_workspace_for(pool, CHAT, fence)
    await finish(pool)
    await bindings.save_bound_agent(
        pool, HARNESS, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )
    write_skill(AgentProcess(tmp_path).home)
    async with running_agent(tmp_path) as bench:
        yield SkillCaller(pool, bench)


@pytest.fixture
async def without_workspace(pool: Pool) -> SkillCaller:
    await insert_seed(pool, Seed(state=State.R0, calls="local"))
    return SkillCaller(pool, None)


async def test_a_skill_of_the_workspace_is_told_and_read(caller: SkillCaller) -> None:
    assert await caller.names() == ["read_skill", "read_skill_file"]
    assert "- notes: Takes notes.\n</available-skills>" in await caller.told()
    home = present(caller.bench).process.home
    assert await caller.result_of("read_skill", name="notes") == {
        "name": "notes",
        "dir": f"{home}/.chatd/skills/notes",
        "body": "# Notes\n\nWrite it down.",
        "files": ["references/", "broken.bin", "checks.md", "link.md"],
    }
    found = await caller.result_of("read_skill_file", name="workspace/notes", path="checks.md")
    assert found == {"content": "- [ ] all\n"}


async def test_a_long_file_is_cut_and_a_broken_one_is_repaired(caller: SkillCaller) -> None:
    long = await caller.result_of("read_skill_file", name="notes", path="references/long.md")
    assert (len(long["content"]), long["truncated"]) == (MAX_SKILL_FILE_BYTES, True)
    broken = await caller.result_of("read_skill_file", name="notes", path="broken.bin")
    assert broken["content"] == "a\ufffd\ufffdb"


async def test_files_outside_of_a_skill_are_refused(caller: SkillCaller) -> None:
    for path in ("../../../outside.md", "/etc/passwd", ".hidden"):
        assert "relative to the directory" in await caller.error_of(
            "read_skill_file", name="notes", path=path
        )
    error = await caller.error_of("read_skill_file", name="notes", path="link.md")
    assert "leads out of the directory of the skill by a link" in error
    missing = await caller.error_of("read_skill_file", name="notes", path="missing.md")
    assert "no such file" in missing.lower()


@pytest.mark.promise("P14")
async def test_a_skill_is_read_while_its_workspace_is_down(caller: SkillCaller) -> None:
    assert "notes" in await caller.told()
    caller.is_down = True
    found = await caller.result_of("read_skill", name="notes")
    assert (found["body"], found.get("files")) == ("# Notes\n\nWrite it down.", None)
    error = await caller.error_of("read_skill_file", name="notes", path="checks.md")
    assert error == "The workspace is stopped."


async def test_the_pinned_skill_is_read_after_the_file_has_changed(caller: SkillCaller) -> None:
    await caller.told()
    home = present(caller.bench).process.home
    (home / ".chatd/skills/notes/SKILL.md").write_text(NOTES.replace("Write", "Sing"))
    assert "Write it down." in (await caller.result_of("read_skill", name="notes"))["body"]


async def test_a_personal_skill_with_the_same_name_needs_its_source(caller: SkillCaller) -> None:
    await caller.add_personal("notes", "Mine.")
    assert "- personal/notes: Personal notes.\n- workspace/notes: Takes notes." in (
        await caller.told()
    )
    assert "two skills named 'notes'" in await caller.error_of("read_skill", name="notes")
    mine = await caller.result_of("read_skill", name="personal/notes")
    assert mine == {"name": "notes", "body": "Mine."}
    error = await caller.error_of("read_skill_file", name="personal/notes", path="a.md")
    assert "is personal and has no files" in error


async def test_without_skills_there_are_no_tools(without_workspace: SkillCaller) -> None:
    caller = without_workspace
    assert (await caller.names(), await caller.told()) == ([], "")
    await caller.add_personal("mail")
    assert await caller.names() == ["read_skill"]
    assert "- mail: Personal mail." in await caller.told()
    assert (await caller.result_of("read_skill", name="mail"))["body"] == "Do it."


async def test_skills_of_others_are_not_found(without_workspace: SkillCaller) -> None:
    caller = without_workspace
    await caller.add_personal("mail")
    stranger = replace(await caller.chat(), owner_id=UserId(UUID(int=99)))
    assert await caller.family.tools(stranger) == ()
