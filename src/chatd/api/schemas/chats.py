"""Bodies, queries and replies about chats.

`domain.chat` has the types of events, messages and chats. Unknown fields of a body are refused, so
that a misspelt name does not look like success. Docstrings here are part of the OpenAPI document.
"""

from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from chatd.api.schemas.lists import ListPage, ListQuery
from chatd.api.schemas.messages import Content, ModelSelection
from chatd.api.schemas.values import MAX_INT32, CursorText, NonBlankText
from chatd.domain.chat.public_chat import PublicChat

# Bodies of requests


class ClientTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs. `input_schema` is the JSON schema of an object."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=16384)]
    input_schema: Raw


class CreateChatBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    content: Content
    system_prompt: Annotated[str, Meta(max_length=131_072)] | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    client_tools: Annotated[tuple[ClientTool, ...], Meta(max_length=250)] = ()
    workspace_id: UUID | None = None
    mcp_server_ids: Annotated[tuple[UUID, ...], Meta(max_length=100)] | None = None


class UpdateChatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`labels` replaces all labels. A `pin_order` of 0 unpins the chat. A `workspace_id` of null
    or of zeros removes the chat from its workspace."""

    title: NonBlankText | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    pin_order: Annotated[int, Meta(ge=0, le=MAX_INT32)] | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    workspace_id: UUID | UnsetType | None = UNSET


# Queries


class ChatListQuery(ListQuery, frozen=True, kw_only=True):
    """`q` is `archived:true` or `archived:false`. `label` is `key:value`; several must all
    match."""

    q: str | None = None
    label: Annotated[tuple[str, ...], Meta(max_length=50)] = ()


class AfterQuery(Struct, frozen=True, kw_only=True):
    """The last cursor that the client has, or the last version alone. The header `Last-Event-ID`
    takes precedence."""

    after: CursorText | None = None


# Replies


class ListedChat(PublicChat, frozen=True, kw_only=True, omit_defaults=True):
    """A root chat with its subagents."""

    children: tuple[PublicChat, ...]


class ChatPage(ListPage[ListedChat], frozen=True, kw_only=True):
    """A page of chats."""


class TitleReply(Struct, frozen=True, kw_only=True):
    """The title of a chat."""

    title: str


class HealthReply(Struct, frozen=True, kw_only=True):
    """`reason` is an error code, such as `database_full`."""

    status: Literal["ok", "draining", "unavailable"]
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
