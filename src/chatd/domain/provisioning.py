"""What a chat can ask for when it needs a workspace, and what it is told.

The answers are read by models and shown by pages: a failure keeps its build's id, so that its
logs can be looked at, and says what to do next.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from chatd.domain.chat import Chat
from chatd.domain.ports import ToolContext
from chatd.domain.workspace import Lifecycle, Problem, TemplateId


class Wish(Struct, frozen=True, kw_only=True):
    """A workspace that is wanted. The key names the wish: asked again, it is the same one."""

    template_id: TemplateId
    name: str = ""
    parameters: Mapping[str, str] = {}
    key: str


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a workspace. Of the three flags at the front at most one is set; none with
    an `error`. What is wrong with the agent alone is no failure: it may still come."""

    created: bool = False
    started: bool = False
    stopped: bool = False
    already_exists: bool = False
    workspace_name: str = ""
    workspace_id: str = ""
    build_id: str = ""
    no_build: bool = False
    directory: str = ""
    isolation: str = ""
    agent_status: Literal["", "not_ready", "no_agent", "selection_error"] = ""
    agent_error: str = ""
    startup_scripts: Literal[
        "", "startup_scripts_failed", "startup_scripts_timeout", "startup_scripts_unknown"
    ] = ""
    lifecycle_state: Lifecycle | None = None
    message: str = ""
    error: str = ""
    error_code: str = ""
    validations: tuple[Problem, ...] = ()
    template_id: str = ""


class Provisioner(Protocol):
    """Acts for the owner of the chat. Raises ToolError for what the model asked wrongly; all
    waits are bounded, and being cancelled leaves a build to the build worker."""

    async def list_templates(self, chat: Chat, *, query: str, page: int) -> Struct: ...

    async def read_template(self, chat: Chat, template_id: TemplateId) -> Struct: ...

    async def create(self, context: ToolContext, wish: Wish) -> Outcome: ...

    async def start(self, context: ToolContext, parameters: Mapping[str, str]) -> Outcome: ...

    async def stop(self, context: ToolContext) -> Outcome: ...
