"""The settings documents as this replica knows them, and what they tell a chat's model.

A document is read once and kept until it changes. While this replica hears of no changes, every use
reads it again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.runtime_settings import DeploymentSettings, UserSettings
from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId
from chatd.domain.ports import Env, Tool, ToolContext, ToolSource
from chatd.domain.prompt.instructions import DEFAULT_SYSTEM_PROMPT, Instructions
from chatd.store.account import runtime_settings
from chatd.store.database.conn import Conn
from chatd.store.database.notifications import ConfigChanges

MAX_CACHED_USERS: Final = 10_000


class RuntimeSettings:
    def __init__(self, conn: Conn, changes: ConfigChanges) -> None:
        self._conn = conn
        self._changes = changes
        self._deployment: DeploymentSettings | None = None
        self._users: OrderedDict[UserId, UserSettings] = OrderedDict()
        self._generation = 0
        changes.subscribe(self.on_config_change)

    def on_config_change(self, change: ConfigChange | None) -> None:
        """A value that was read before the change is not kept."""
        if change is None or change.kind in ("settings", "user"):
            self._generation += 1
            self._deployment = None
            self._users.clear()

    async def deployment(self) -> DeploymentSettings:
        if self._changes.is_current and self._deployment is not None:
            return self._deployment
        generation = self._generation
        found = (await runtime_settings.get_deployment(self._conn, WORKER)).document
        if generation == self._generation:
            self._deployment = found
        return found

    async def user(self, user_id: UserId) -> UserSettings:
        if self._changes.is_current and (known := self._users.get(user_id)) is not None:
            return known
        generation = self._generation
        found = (await runtime_settings.get_user(self._conn, WORKER, user_id)).document
        if generation == self._generation:
            self._users[user_id] = found
            while len(self._users) > MAX_CACHED_USERS:
                self._users.popitem(last=False)
        return found

    async def allows_answer_links(self) -> bool:
        return (await self.deployment()).answer_links

    async def records_calls(self, owner_id: UserId) -> bool:
        """Whether the model calls of this user's chats are recorded for debugging."""
        mode = (await self.deployment()).debug_recording
        if mode == "allow_users":
            return (await self.user(owner_id)).debug_recording
        return mode == "forced"


def deployment_prompt(settings: DeploymentSettings) -> str:
    """The built-in prompt, unless it is switched off, and the administrator's text."""
    default = DEFAULT_SYSTEM_PROMPT if settings.include_default_prompt else ""
    return "\n\n".join(text for text in (default, settings.system_prompt) if text)


class PromptedTools:
    """Satisfies `ports.ToolSource`: the tools of another source, and its instructions with the
    prompts of the deployment and of the chat's owner."""

    def __init__(self, tools: ToolSource, settings: RuntimeSettings, env: Env) -> None:
        self._tools = tools
        self._settings = settings
        self._env = env

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return await self._tools.tools(chat)

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        return await self._tools.save_result(context, output)

    async def instructions(self, chat: Chat) -> Instructions:
        """Without prompts that cannot be read: what was told before stands, and a new chat begins
        with the built-in prompt."""
        found = await self._tools.instructions(chat)
        try:
            deployment = deployment_prompt(await self._settings.deployment())
            user = (await self._settings.user(chat.owner_id)).custom_prompt
        except ChatdError as error:
            self._env.emit("prompts_unreadable", chat_id=chat.id, error_kind=error.code)
            return replace(found, deployment=DEFAULT_SYSTEM_PROMPT)
        return replace(found, deployment=deployment, user=user)
