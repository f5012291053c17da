"""What a chat knows of its workspace: whom to talk to there, and the instructions it goes by.

Owns how much an agent may say of instructions and skills. A chat goes by what it has pinned
until it pins anew; that it has fallen behind is for a person to see and to decide about.
"""

from datetime import datetime
from typing import Final

from msgspec import Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.hands import Context
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace import AgentId, BuildId

MOST_RESOURCES: Final = 1000
MOST_BODY: Final = 256 * 1024
MOST_TOTAL: Final = 4 * 1024 * 1024
MOST_SOURCE: Final = 1024
MOST_ERROR: Final = 4 * 1024


class Binding(Struct, frozen=True, kw_only=True):
    """The workspace is the chat's; build and agent are only remembered, and may be of old."""

    chat_id: ChatId
    workspace_id: WorkspaceId | None = None
    build_id: BuildId | None = None
    agent_id: AgentId | None = None


class Pinned(Struct, frozen=True, kw_only=True):
    """What a chat goes by. `dirty`: its agent has said something else since."""

    agent_id: AgentId
    context: Context
    pinned_at: datetime
    dirty: bool


def check_context(context: Context) -> None:
    """The agent has limits of its own, but it is on the other side. Raises InvalidInput."""
    if len(context.resources) > MOST_RESOURCES:
        raise InvalidInput("resources", f"there are more than {MOST_RESOURCES}")
    total = 0
    for index, resource in enumerate(context.resources):
        at = f"resources[{index}]"
        size = len(resource.content.encode(errors="replace"))
        total += size
        if size > MOST_BODY:
            raise InvalidInput(f"{at}.content", f"it is longer than {MOST_BODY} bytes")
        if len(resource.source.encode(errors="replace")) > MOST_SOURCE:
            raise InvalidInput(f"{at}.source", f"it is longer than {MOST_SOURCE} bytes")
        if len(resource.error.encode(errors="replace")) > MOST_ERROR:
            raise InvalidInput(f"{at}.error", f"it is longer than {MOST_ERROR} bytes")
    if total > MOST_TOTAL:
        raise InvalidInput("resources", f"together they are longer than {MOST_TOTAL} bytes")
    if context.version < 1 or not context.hash:
        raise InvalidInput("version", "a snapshot has a version from 1 and a hash")
