"""Bodies, queries and replies about chats, messages and models.

`domain.chat` has the types of events, messages and chats. Unknown fields of a body are refused, so
that a misspelt name does not look like success. Docstrings here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from chatd.api.schemas.lists import ListPage, ListQuery
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.cursor import CURSOR_PATTERN
from chatd.domain.chat.events import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.public_chat import PublicChat
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, QueueId
from chatd.domain.model.protocol import Effort, EffortRange

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

NonBlankText = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Id = Annotated[int, Meta(ge=1, le=MAX_INT64)]
Version = Annotated[int, Meta(ge=0, le=MAX_INT64)]
CursorText = Annotated[str, Meta(pattern=CURSOR_PATTERN)]
LineNumber = Annotated[int, Meta(ge=0, le=MAX_INT32)]


# Parts of a message


class _Input(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    pass


class InputText(_Input, frozen=True, kw_only=True, tag="text"):
    text: NonBlankText


class InputFile(_Input, frozen=True, kw_only=True, tag="file"):
    """An uploaded file."""

    file_id: UUID


class InputFileReference(_Input, frozen=True, kw_only=True, tag="file-reference"):
    """Quoted lines of a file."""

    file_name: Annotated[NonBlankText, Meta(max_length=4096)]
    start_line: LineNumber
    end_line: LineNumber
    content: str


InputPart = InputText | InputFile | InputFileReference
Content = Annotated[tuple[InputPart, ...], Meta(min_length=1, max_length=256)]


# Bodies of requests


class ModelSelection(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The model, by name or by id, and its reasoning effort."""

    model: str | None = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class ClientTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs. `input_schema` is the JSON schema of an object."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=16384)]
    input_schema: Raw


class CreateChatBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    content: Content
    system_prompt: Annotated[str, Meta(max_length=131_072)] | None = None
    labels: dict[str, str] = {}
    client_tools: Annotated[tuple[ClientTool, ...], Meta(max_length=250)] = ()
    workspace_id: UUID | None = None
    mcp_server_ids: Annotated[tuple[UUID, ...], Meta(max_length=100)] | None = None


class SendMessageBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    content: Content
    busy_behavior: WhenBusy = "queue"
    mcp_server_ids: Annotated[tuple[UUID, ...], Meta(max_length=100)] | None = None


class EditMessageBody(ModelSelection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are not given stay unchanged."""

    content: Content


class UpdateChatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`labels` replaces all labels. A `pin_order` of 0 unpins the chat. A `workspace_id` of null
    or of zeros removes the chat from its workspace."""

    title: NonBlankText | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    pin_order: Annotated[int, Meta(ge=0, le=MAX_INT32)] | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    workspace_id: UUID | UnsetType | None = UNSET


class MoveQueuedBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Move the message before `before`, or to the end if it is null."""

    before: Id | None


class ToolResultIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`output` is any JSON value."""

    tool_call_id: str
    output: Raw
    is_error: bool = False


class ToolResultsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    results: Annotated[tuple[ToolResultIn, ...], Meta(max_length=1000)]


# Queries


class ChatListQuery(ListQuery, frozen=True, kw_only=True):
    """`q` is `archived:true` or `archived:false`. `label` is `key:value`; several must all
    match."""

    q: str | None = None
    label: Annotated[tuple[str, ...], Meta(max_length=50)] = ()


class MessageListQuery(ListQuery, frozen=True, kw_only=True):
    """Only messages below `before_id` and above `after_id`. Newest first; with `after_id`, oldest
    first."""

    before_id: Id | None = None
    after_id: Version | None = None


class AfterQuery(Struct, frozen=True, kw_only=True):
    """The last cursor that the client has, or the last version alone. The header `Last-Event-ID`
    takes precedence."""

    after: CursorText | None = None


class ModelsQuery(ListQuery, frozen=True, kw_only=True):
    """`include_disabled` also lists models that are no longer configured."""

    include_disabled: bool = False


# Replies


class ListedChat(PublicChat, frozen=True, kw_only=True, omit_defaults=True):
    """A root chat with its subagents."""

    children: tuple[PublicChat, ...]


class ChatPage(ListPage[ListedChat], frozen=True, kw_only=True):
    """A page of chats."""


class MessagePage(ListPage[PublicMessage], frozen=True, kw_only=True):
    """A page of messages. Only the first page has `queued_messages`. A stream resumed from
    `version` continues from this page."""

    queued_messages: tuple[PublicQueuedMessage, ...]
    version: int


class QueueReply(Struct, frozen=True, kw_only=True):
    queued_messages: tuple[PublicQueuedMessage, ...]
    version: int


class SentReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The message is in history (`message`) or in the queue (`queued_message`). Both are missing
    if the request was repeated and the message has moved on since. `messages` lists all messages
    that joined history with it, and `deleted_message_ids` those that were deleted."""

    queued: bool
    messages: tuple[PublicMessage, ...]
    deleted_message_ids: tuple[MessageId, ...]
    chat_id: ChatId
    version: int
    message: PublicMessage | None = None
    queued_message: PublicQueuedMessage | None = None
    message_id: MessageId | None = None
    queue_id: QueueId | None = None


class TitleReply(Struct, frozen=True, kw_only=True):
    title: str


class PriceList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """USD per million tokens or per thousand web searches, as decimal text."""

    input_price_per_million_tokens: str | None = None
    output_price_per_million_tokens: str | None = None
    cache_read_price_per_million_tokens: str | None = None
    cache_write_price_per_million_tokens: str | None = None
    web_search_price_per_thousand: str | None = None


class ModelParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a model call. Without a `cost` the public price list applies."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    cost: PriceList | None = None


Source = Literal["settings", "database"]


class ModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`provider` is the provider's name. A model that is not `enabled` was configured earlier:
    old chats refer to it, but it cannot be used. No price is known of an `unpriced` model: its
    calls count as nothing towards the spend limit."""

    id: ModelConfigId
    name: str
    provider: str
    model: str
    display_name: str
    enabled: bool
    is_default: bool
    source: Source
    created_at: datetime
    updated_at: datetime
    context_limit: int | None = None
    compression_threshold: int | None = None
    reasoning_effort: EffortRange | None = None
    unpriced: bool = False
    model_config: ModelParameters


class ProviderReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`provider` is the kind of API. The key is never returned."""

    id: UUID
    name: str
    provider: str
    display_name: str
    enabled: bool
    has_api_key: bool
    source: Source
    created_at: datetime
    updated_at: datetime
    base_url: str | None = None


class ModelPage(ListPage[ModelReply], frozen=True, kw_only=True):
    """A page of models."""


class ProviderPage(ListPage[ProviderReply], frozen=True, kw_only=True):
    """A page of providers."""


class ListedModel(Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    model: str
    display_name: str


class ProviderModels(Struct, frozen=True, kw_only=True, omit_defaults=True):
    provider: str
    available: bool
    models: tuple[ListedModel, ...]
    unavailable_reason: Literal["missing_api_key"] | None = None


class ModelsReply(Struct, frozen=True, kw_only=True):
    providers: tuple[ProviderModels, ...]


class HealthReply(Struct, frozen=True, kw_only=True):
    """`reason` is an error code, such as `database_full`."""

    status: Literal["ok", "draining", "unavailable"]
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
