"""What a chat's model is told about its workspace.

Read once per turn with a timeout, so that a workspace never delays a turn: one that does not
answer is described from its rows, and asked again some seconds later. A pinned context is used
while the workspace is down.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from msgspec import Struct

from chatd.domain.chat.parts import ContextFilePart
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.prompt.instructions import Instructions, Skill, context_block, one_line
from chatd.domain.workspace.agent_api import PinnedContext, WorkspaceContext
from chatd.domain.workspace.entities import AgentId
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_monitor import ContextSync
from chatd.workspaces.agents.agent_resolver import WORKSPACE_DELETED, BindingStore

_T = TypeVar("_T")

INSTRUCTIONS_TIMEOUT_S: Final = 5.0
FAILED_BRIEFING_KEPT_S: Final = 15.0
"""A workspace that did not answer is asked again after this time, even within a turn."""
MAX_CACHED_CHATS: Final = 1000

NO_WORKSPACE_TEXT: Final = (
    "This chat has no workspace yet. Files and commands need one: call list_templates, then"
    " create_workspace, when the task calls for it. Answer without one when it does not."
)
NO_WORKSPACE_CHILD_TEXT: Final = "This chat has no workspace: files and commands cannot be used."
ATTACHED_TEXT: Final = (
    "This chat has a workspace: files are read and commands are run there, and nowhere else."
)
STOPPED_TEXT: Final = (
    "This chat's workspace is stopped. Start it with start_workspace before you use files or"
    " commands."
)
STOPPED_CHILD_TEXT: Final = (
    "This chat's workspace is stopped: files and commands cannot be used until the user starts it."
)
DELETED_TEXT: Final = (
    "This chat's workspace was deleted, and its files with it. Files and commands need another"
    " one: call list_templates, then create_workspace, when the task calls for it."
)


class _Briefing(Struct, frozen=True, kw_only=True):
    """`skills` is None if they are not known now."""

    instructions: Instructions
    skills: tuple[Skill, ...] | None = ()


class _CachedBriefing(Struct, frozen=True, kw_only=True):
    epoch: int
    briefing: _Briefing
    read_at: float

    def is_usable(self, epoch: int, now: float) -> bool:
        is_complete = self.briefing.skills is not None
        return self.epoch == epoch and (is_complete or now - self.read_at < FAILED_BRIEFING_KEPT_S)


class WorkspaceInstructions:
    """`connect` returns the agent of a chat's workspace."""

    def __init__(
        self,
        bindings: BindingStore,
        contexts: ContextSync,
        connect: Callable[[Chat], Awaitable[AgentClient]],
        env: Env,
    ) -> None:
        self._bindings = bindings
        self._contexts = contexts
        self._connect = connect
        self._env = env
        self._cached: OrderedDict[ChatId, _CachedBriefing] = OrderedDict()
        self._bound: OrderedDict[ChatId, None] = OrderedDict()

    async def instructions(self, chat: Chat) -> Instructions:
        return (await self._brief(chat)).instructions

    async def skills(self, chat: Chat) -> tuple[Skill, ...] | None:
        """The skills of the pinned context; None if they are not known now."""
        return (await self._brief(chat)).skills

    async def _brief(self, chat: Chat) -> _Briefing:
        cached, clock = self._cached.get(chat.id), self._env.clock
        if cached is not None and cached.is_usable(chat.epoch, clock.monotonic()):
            return cached.briefing
        briefing = await self._read(chat)
        read = _CachedBriefing(epoch=chat.epoch, briefing=briefing, read_at=clock.monotonic())
        _cache(self._cached, chat.id, read)
        return briefing

    def on_bound(self, chat_id: ChatId) -> None:
        """Called when the chat's workspace has changed, or can be used now."""
        self._cached.pop(chat_id, None)
        _cache(self._bound, chat_id, None)

    async def _read(self, chat: Chat) -> _Briefing:
        # A chat without a workspace needs no read. The turn's copy of the row does not show a
        # workspace that was created in this turn: `on_bound` does.
        if chat.workspace_id is None and chat.id not in self._bound:
            is_root = chat.parent_chat_id is None
            return _without_files(NO_WORKSPACE_TEXT if is_root else NO_WORKSPACE_CHILD_TEXT)
        try:
            async with asyncio.timeout(INSTRUCTIONS_TIMEOUT_S):
                return await self._read_workspace(chat)
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("instructions_failed", chat_id=chat.id, error_kind=kind)
            return _Briefing(instructions=Instructions(workspace=ATTACHED_TEXT), skills=None)

    async def _read_workspace(self, chat: Chat) -> _Briefing:
        binding = await self._bindings.binding(chat.id)
        is_root = chat.parent_chat_id is None
        if binding is None or binding.workspace_id is None:
            return _without_files(NO_WORKSPACE_TEXT if is_root else NO_WORKSPACE_CHILD_TEXT)
        try:
            agent_id = await self._agent(binding.workspace_id, binding.agent_id)
        except NoAgent as error:
            if error.code == WORKSPACE_DELETED:
                return _without_files(DELETED_TEXT if is_root else NO_WORKSPACE_CHILD_TEXT)
            stopped = STOPPED_TEXT if is_root else STOPPED_CHILD_TEXT
            return _joined(stopped, await self._contexts.pinned(chat.id, None))
        except AmbiguousAgent:
            # The workspace runs. Tools report the ambiguity when they use it.
            return _joined(ATTACHED_TEXT, await self._contexts.pinned(chat.id, None))
        pinned = await self._contexts.pinned(chat.id, agent_id)
        if pinned is None or pinned.agent_id != agent_id:
            await self._read_context(chat, agent_id)
            pinned = await self._contexts.pinned(chat.id, agent_id)
        return _joined(ATTACHED_TEXT, pinned)

    async def _agent(self, workspace_id: WorkspaceId, bound: AgentId | None) -> AgentId:
        """Usually reads the bound agent's row only. A build that ends an agent sets its lifecycle
        to off; then the latest build names the agent."""
        seen = None if bound is None else await self._bindings.agent(bound)
        agent = None if seen is None else seen.agent
        if agent is not None and agent.workspace_id == workspace_id and agent.lifecycle != "off":
            return agent.id
        return (await self._bindings.latest_agent(workspace_id)).agent.id

    async def _read_context(self, chat: Chat, agent_id: AgentId) -> None:
        try:
            conn = await self._connect(chat)
            await self._contexts.sync_context(agent_id, conn, initial=True)
        except ChatdError as error:
            # Nothing is pinned, so the next turn reads it again.
            self._env.emit("context_read_failed", chat_id=chat.id, error_kind=error.code)


def _cache(into: OrderedDict[ChatId, _T], chat_id: ChatId, value: _T) -> None:
    into[chat_id] = value
    into.move_to_end(chat_id)
    while len(into) > MAX_CACHED_CHATS:
        into.popitem(last=False)


def _without_files(state: str) -> _Briefing:
    return _Briefing(instructions=Instructions(workspace=state, files=""))


def _joined(state: str, pinned: PinnedContext | None) -> _Briefing:
    """Says nothing about files that could not be read."""
    if pinned is None:
        return _Briefing(instructions=Instructions(workspace=state), skills=None)
    block = context_block(_files(pinned.context))
    if block is None and pinned.context.os:
        state = f"{state} Its operating system is {one_line(pinned.context.os)}."
    if block is None and pinned.context.directory:
        state = f"{state} Commands run in {pinned.context.directory} unless a call says otherwise."
    instructions = Instructions(workspace=state, files=block or "")
    return _Briefing(instructions=instructions, skills=tuple(_skills(pinned.context)))


def _skills(context: WorkspaceContext) -> Iterator[Skill]:
    for resource in context.resources:
        if resource.kind == "skill" and resource.status == "ok":
            yield Skill(
                name=resource.name,
                description=resource.description,
                source="workspace",
                directory=resource.source.rpartition("/")[0],
            )


def _files(context: WorkspaceContext) -> list[ContextFilePart]:
    return [
        ContextFilePart(
            context_file_path=resource.source,
            context_file_content=resource.content,
            context_file_os=context.os,
            context_file_directory=context.directory,
            context_file_truncated=resource.status == "oversize",
        )
        for resource in context.resources
        if resource.kind == "instruction_file" and resource.status in ("ok", "oversize")
    ]
