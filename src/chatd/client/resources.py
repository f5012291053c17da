"""What clients show of a server beside the messages of a chat: only the fields that are used.

A reply is read leniently: a field that a server of another version does not send has its default,
and one that it sends in addition is ignored. `api_name` is the schema in the API's description: a
test compares the fields with it, and reads its example. Further modules of this kind are called
`*_resources`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar, Final, Generic, TypeVar

from msgspec import Raw, Struct

from chatd.domain.ids import (
    ChatId,
    CredentialId,
    FileId,
    McpServerId,
    MessageId,
    ModelConfigId,
    UserId,
    WorkspaceId,
)

T = TypeVar("T")
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    items: tuple[T, ...]
    has_more: bool = False
    next_cursor: str | None = None


class User(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "UserReply"

    id: UserId
    username: str = ""
    email: str | None = None
    name: str = ""
    role: str = ""


class Me(Struct, frozen=True, kw_only=True):
    """`scopes` of None: all that the user may."""

    api_name: ClassVar = "MeReply"

    user: User
    credential: str = ""
    scopes: tuple[str, ...] | None = None
    expires_at: datetime | None = None


class Token(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "TokenReply"

    id: CredentialId
    name: str = ""
    prefix: str = ""
    scopes: tuple[str, ...] | None = None
    created_at: datetime = NEVER
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


class CreatedToken(Token, frozen=True, kw_only=True):
    api_name: ClassVar = "CreatedTokenReply"

    token: str = ""


class Error(Struct, frozen=True, kw_only=True):
    """Why a chat stopped."""

    api_name: ClassVar = "ChatError"

    message: str = ""
    kind: str = "generic"
    detail: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class Action(Struct, frozen=True, kw_only=True):
    """What a chat waits for."""

    api_name: ClassVar = "ActionSummary"

    kinds: tuple[str, ...] = ()
    calls: int = 0
    summary: str = ""


class ChatDiff(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "DiffStatus"

    branch: str = ""
    base: str = ""
    additions: int = 0
    deletions: int = 0
    changed_files: int = 0


class Chat(Struct, frozen=True, kw_only=True):
    """`is_owner`, `shared` and `has_unread` of None: the reply does not say."""

    api_name: ClassVar = "PublicChat"

    id: ChatId
    owner_id: UserId | None = None
    owner_username: str | None = None
    is_owner: bool | None = None
    shared: bool | None = None
    root_chat_id: ChatId | None = None
    parent_chat_id: ChatId | None = None
    title: str = ""
    status: str = "waiting"
    action: Action | None = None
    action_summary: str | None = None
    archived: bool = False
    last_error: Error | None = None
    pin_order: int = 0
    labels: Mapping[str, str] = {}
    queue_len: int = 0
    queue_held: bool = False
    version: int = 0
    created_at: datetime = NEVER
    updated_at: datetime = NEVER
    last_model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    max_cost_micros: int | None = None
    mcp_server_ids: tuple[McpServerId, ...] | None = None
    last_message_id: MessageId | None = None
    last_read_message_id: MessageId | None = None
    has_unread: bool | None = None
    diff_status: ChatDiff | None = None


class SearchMatch(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "SearchMatch"

    chat_id: ChatId
    message_id: MessageId | None = None
    text: str = ""
    highlights: tuple[tuple[int, int], ...] = ()


class ListedChat(Chat, frozen=True, kw_only=True):
    """A chat of the list, with its subagents."""

    api_name: ClassVar = "ListedChat"

    children: tuple[Chat, ...] = ()
    match: SearchMatch | None = None


class Sent(Struct, frozen=True, kw_only=True):
    """The reply to a message."""

    api_name: ClassVar = "SentReply"

    chat_id: ChatId
    version: int = 0
    queued: bool = False
    message_id: int | None = None
    queue_id: int | None = None


class MessagePage(Struct, frozen=True, kw_only=True):
    """`items` may have parts that this client does not know: `event_reader.read_message`."""

    api_name: ClassVar = "MessagePage"

    items: tuple[Raw, ...]
    has_more: bool = False
    next_cursor: str | None = None
    version: int = 0


class StoredFile(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "FileReply"

    id: FileId
    name: str | None = None
    media_type: str = ""
    size_bytes: int = 0
    sha256: str = ""
    created_at: datetime = NEVER


class EffortRange(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "EffortRange"

    default: str | None = None
    max: str | None = None


class ListedModel(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "ModelReply"

    id: ModelConfigId
    name: str = ""
    provider: str = ""
    model: str = ""
    display_name: str = ""
    enabled: bool = True
    is_default: bool = False
    context_limit: int | None = None
    max_output_tokens: int | None = None
    reasoning_effort: EffortRange | None = None


class McpConnection(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "McpConnectionReply"

    state: str = ""
    reason: str | None = None
    connected_at: datetime | None = None
    expires_at: datetime | None = None


class McpServer(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "McpServerReply"

    id: McpServerId
    slug: str = ""
    display_name: str = ""
    description: str = ""
    availability: str = ""
    auth: str = ""
    allow_in_plan_mode: bool = False
    connection: McpConnection = McpConnection()


class McpConnectAnswer(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "McpConnectReply"

    authorization_url: str = ""


class McpDisconnectAnswer(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "McpDisconnectReply"

    revoked: bool = False
    failure: str | None = None
