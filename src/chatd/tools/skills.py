"""The tools that read skills. A chat has them only if it has skills."""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.ports import Tool, ToolContext, WorkspaceAccess
from chatd.domain.prompt.instructions import Skill, require_skill_path, skill_body
from chatd.domain.text import decode_lenient, model_text
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentRefused,
    AgentUnreachable,
    WorkspaceUnavailable,
)
from chatd.tools.arguments import NOT_BLANK, argument
from chatd.tools.skill_directory import SkillDirectory
from chatd.tools.tool import WorkspaceTool, json_output, workspace_tool

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


async def _require_inside(conn: AgentApi, directory: str, path: str) -> None:
    """The agent resolves links. Raises ToolError."""
    base, found = await conn.resolve_path(directory), await conn.resolve_path(path)
    if not found.startswith(f"{base.rstrip('/')}/"):
        raise ToolError("path leads out of the directory of the skill by a link.")
