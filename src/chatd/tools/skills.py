"""The skills of a chat, from its workspace and its owner, and the tools that read them."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

from msgspec import Struct

from chatd.domain.access.permissions import WORKER
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, ToolError
from chatd.domain.ids import UserId
from chatd.domain.ports import Env, Tool, ToolContext
from chatd.domain.prompt.instructions import Skill, SkillIndex, require_skill_path, skill_body
from chatd.domain.text import decode_lenient, model_text
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    WorkspaceUnavailable,
)
from chatd.store.account import skills
from chatd.store.database.conn import Conn
from chatd.store.database.notifications import ConfigChanges
from chatd.store.workspace import bindings
from chatd.tools.tool import (
    NOT_BLANK,
    WorkspaceAccess,
    WorkspaceTool,
    argument,
    json_output,
    workspace_tool,
)
from chatd.workspaces.agents.agent_client import AgentClient

# Which skills a chat has: those of its workspace, and those of its owner.
#
# The skills of an owner are read once and kept until they change. While this replica hears of no
# changes, every use reads them again.

MAX_CACHED_OWNERS: Final = 10_000

ListWorkspaceSkills = Callable[[Chat], Awaitable[tuple[Skill, ...] | None]]
"""None: they are not known now."""


async def no_workspace_skills(chat: Chat) -> tuple[Skill, ...]:
    """Of a process without workspaces."""
    del chat
    return ()


class SkillDirectory:
    def __init__(
        self,
        conn: Conn,
        changes: ConfigChanges,
        list_workspace_skills: ListWorkspaceSkills,
        env: Env,
    ) -> None:
        self._list_workspace_skills = list_workspace_skills
        self._env = env
        self._conn = conn
        self._changes = changes
        self._personal: OrderedDict[UserId, tuple[Skill, ...]] = OrderedDict()
        self._generation = 0
        changes.subscribe(self.on_config_change)

    def on_config_change(self, change: ConfigChange | None) -> None:
        """A value that was read before the change is not kept."""
        if change is None or change.kind in ("settings", "user"):
            self._generation += 1
            self._personal.clear()

    async def index(self, chat: Chat) -> SkillIndex | None:
        """None if a part of them cannot be read now."""
        try:
            personal = await self._personal_skills(chat.owner_id)
        except ChatdError as error:
            self._env.emit("skills_unreadable", chat_id=chat.id, error_kind=error.code)
            return None
        found = await self._list_workspace_skills(chat)
        return None if found is None else SkillIndex.of((*found, *personal))

    async def read_body(self, chat: Chat, skill: Skill) -> str | None:
        """None if it is gone. That of a workspace is the one that the chat has pinned, so that it
        can be read while the workspace is down."""
        if skill.source == "personal":
            return await skills.read_body(self._conn, WORKER, chat.owner_id, skill.name)
        return await bindings.get_pinned_skill(self._conn, WORKER, chat.id, skill.name)

    async def _personal_skills(self, owner_id: UserId) -> tuple[Skill, ...]:
        if self._changes.is_current and (known := self._personal.get(owner_id)) is not None:
            return known
        generation = self._generation
        rows = await skills.list_of(self._conn, WORKER, owner_id)
        found = tuple(
            Skill(name=row.name, description=row.description, source="personal") for row in rows
        )
        if generation == self._generation:
            self._personal[owner_id] = found
            while len(self._personal) > MAX_CACHED_OWNERS:
                self._personal.popitem(last=False)
        return found


MAX_SKILL_FILE_BYTES: Final = 512 * 1024
MAX_LISTED_FILES: Final = 200
SKILL_FILE: Final = "SKILL.md"
UNKNOWN_TEXT: Final = "The skills of this chat cannot be read now. Try again in a moment."

_Name = Annotated[
    str, NOT_BLANK, argument("The name of the skill.", "one of the available skills.")
]


class ReadSkillArguments(Struct, frozen=True, kw_only=True):
    name: _Name


class ReadSkillFileArguments(Struct, frozen=True, kw_only=True):
    name: _Name
    path: Annotated[
        str,
        NOT_BLANK,
        argument("The file, relative to the directory of the skill.", "a file of the skill."),
    ]


class ReadSkill(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`files` are beside SKILL.md; names of directories end with a slash."""

    name: str
    body: str
    dir: str = ""
    files: tuple[str, ...] = ()


class ReadSkillFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    content: str
    truncated: bool = False


SKILL_TOOLS: Final = frozenset({"read_skill", "read_skill_file"})


class SkillTools:
    """Satisfies `ports.ToolFamily`. `access` is None without workspaces."""

    def __init__(self, directory: SkillDirectory, access: WorkspaceAccess | None) -> None:
        self._directory = directory
        self._personal_only = (read_skill(directory, access),)
        self._all = self._personal_only
        if access is not None:
            self._all = (*self._all, read_skill_file(directory, access))

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        index = await self._directory.index(chat)
        if index is None or not index.skills:
            return ()
        return self._all if index.has_workspace_skills else self._personal_only


def read_skill(directory: SkillDirectory, access: WorkspaceAccess | None) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ReadSkillArguments) -> ToolOutput:
        skill = await _find(directory, context.chat, args.name)
        text = await directory.read_body(context.chat, skill)
        if text is None:
            raise ToolError(f"The skill {skill.name!r} is gone.")
        files = () if access is None else await _list_files(access, context, skill)
        return json_output(
            ReadSkill(name=skill.name, dir=skill.directory, body=skill_body(text), files=files)
        )

    return workspace_tool(
        "read_skill",
        "Read a skill: instructions for a certain task. The available skills are listed in your"
        " instructions.",
        ReadSkillArguments,
        handle,
        effect="read",
    )


def read_skill_file(directory: SkillDirectory, access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ReadSkillFileArguments) -> ToolOutput:
        path = require_skill_path(args.path)
        skill = await _find(directory, context.chat, args.name)
        if skill.source == "personal":
            raise ToolError(f"The skill {skill.name!r} is personal and has no files.")
        conn = await access.connect(context)
        full = f"{skill.directory}/{path}"
        await _require_inside(conn, skill.directory, full)
        content = await conn.read_file(full, limit=MAX_SKILL_FILE_BYTES + 1)
        cut = content[:MAX_SKILL_FILE_BYTES]
        text = model_text(decode_lenient(cut))
        return json_output(ReadSkillFile(content=text, truncated=len(content) > len(cut)))

    return workspace_tool(
        "read_skill_file",
        "Read a file that belongs to a skill of the workspace. read_skill lists them.",
        ReadSkillFileArguments,
        handle,
        effect="read",
    )


async def _find(directory: SkillDirectory, chat: Chat, name: str) -> Skill:
    index = await directory.index(chat)
    if index is None:
        raise ToolError(UNKNOWN_TEXT)
    return index.find(name)


async def _list_files(
    access: WorkspaceAccess, context: ToolContext, skill: Skill
) -> tuple[str, ...]:
    """Best effort: a skill can be read while its workspace is down."""
    if skill.source == "personal":
        return ()
    try:
        conn = await access.connect(context)
        names = await conn.list_names(skill.directory)
    except (AgentRefused, AgentUnreachable, WorkspaceUnavailable):
        return ()
    shown = [name for name in names if name != SKILL_FILE and not name.startswith(".")]
    return tuple(shown[:MAX_LISTED_FILES])


async def _require_inside(conn: AgentClient, directory: str, path: str) -> None:
    """The agent resolves links. Raises ToolError."""
    base, found = await conn.resolve_path(directory), await conn.resolve_path(path)
    if not found.startswith(f"{base.rstrip('/')}/"):
        raise ToolError("path leads out of the directory of the skill by a link.")
