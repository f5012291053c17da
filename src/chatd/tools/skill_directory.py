"""Which skills a chat has: those of its workspace, and those of its owner.

The skills of an owner are read once and kept until they change. While this replica hears of no
changes, every use reads them again.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId
from chatd.domain.ports import Env
from chatd.domain.prompt.instructions import Skill, SkillIndex
from chatd.store.account import skills
from chatd.store.conn import Conn
from chatd.store.notifications import ConfigChanges
from chatd.store.workspace import bindings

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
