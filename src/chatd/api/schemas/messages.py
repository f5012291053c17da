"""Bodies, queries and replies about messages and the queue.

Unknown fields of a body are refused, so that a misspelt name does not look like success. Docstrings
and descriptions here are part of the OpenAPI document.
"""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Raw, Struct

from chatd.api.schemas.lists import ListPage, ListQuery
from chatd.api.schemas.values import Id, LineNumber, NonBlankText, Version
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.public_messages import PublicMessage, PublicQueuedMessage
from chatd.domain.ids import ChatId, MessageId, QueueId
from chatd.domain.model.protocol import Effort


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


class ModelSelection(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The model, by name or by id, and its reasoning effort."""

    model: str | None = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class SendMessageBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    content: Content
    busy_behavior: WhenBusy = "queue"
    mcp_server_ids: Annotated[tuple[UUID, ...], Meta(max_length=100)] | None = None


class EditMessageBody(ModelSelection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are not given stay unchanged."""

    content: Content


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


class MessageListQuery(ListQuery, frozen=True, kw_only=True):
    """Only messages below `before_id` and above `after_id`. Newest first; with `after_id`, oldest
    first."""

    before_id: Id | None = None
    after_id: Version | None = None


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
