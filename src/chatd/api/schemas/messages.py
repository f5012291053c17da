"""Bodies, queries and replies about messages and the queue.

Unknown fields of a body are refused, so that a misspelt name does not look like success. Docstrings
and descriptions here are part of the OpenAPI document.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeVar
from uuid import UUID

from msgspec import Meta, Raw, Struct

from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat_views.events import CURSOR_PATTERN
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    FILE_ID,
    MCP_SERVER_ID,
    MODEL_ID,
    USER_ID,
    describe,
)
from chatd.domain.ids import ChatId, MessageId, QueueId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice

S = TypeVar("S", bound=Struct)


def from_rows(kind: type[S], *rows: object, **given: Any) -> S:
    """A `kind` with the given values; its other fields are those of the rows under the same name,
    of the first row that has it."""
    for name in kind.__struct_fields__:
        row = None if name in given else next((row for row in rows if hasattr(row, name)), None)
        if row is not None:
            given[name] = getattr(row, name)
    return kind(**given)


# Types of single values in bodies and queries.

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
NonBlankText = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Id = Annotated[int, Meta(ge=1, le=MAX_INT64)]
Version = Annotated[int, Meta(ge=0, le=MAX_INT64)]
CursorText = Annotated[str, Meta(pattern=CURSOR_PATTERN)]
McpServerIds = Annotated[tuple[UUID, ...], Meta(max_length=100)]
MAX_COMMAND_CHARS: Final = 32 * 1024
"""Of a command that a person runs in the workspace of a chat."""
LineNumber = Annotated[int, Meta(ge=0, le=MAX_INT32)]


class _Input(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    pass


class InputText(_Input, frozen=True, kw_only=True, tag="text"):
    """Text."""

    text: Annotated[
        NonBlankText, describe("The text; it must not be blank.", "Fix the failing test")
    ]


class InputFile(_Input, frozen=True, kw_only=True, tag="file"):
    """An uploaded file."""

    file_id: Annotated[UUID, describe("The file's id.", FILE_ID)]


class InputFileReference(_Input, frozen=True, kw_only=True, tag="file-reference"):
    """Quoted lines of a file."""

    file_name: Annotated[
        NonBlankText, Meta(max_length=4096), describe("The path of the file.", "src/app.py")
    ]
    start_line: Annotated[LineNumber, describe("The first quoted line.", 3)]
    end_line: Annotated[LineNumber, describe("The last quoted line.", 4)]
    content: Annotated[str, describe("The quoted text.", "def total(xs):\n    return sum(xs, 1)")]


class InputCommand(_Input, frozen=True, kw_only=True, tag="command"):
    """A command that you run in the chat's workspace, as the only part of a message. It runs once,
    its output is in the chat, and the model reads both at its next call; no answer follows."""

    command: Annotated[
        NonBlankText,
        Meta(max_length=MAX_COMMAND_CHARS),
        describe("The command, for a shell.", "git status"),
    ]


InputPart = InputText | InputFile | InputFileReference | InputCommand
Content = Annotated[tuple[InputPart, ...], Meta(min_length=1, max_length=256)]


class ModelSelection(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The model, by name or by id, and its reasoning effort."""

    model: Annotated[str | None, describe("The model's name.", "sonnet")] = None
    model_config_id: Annotated[
        UUID | None, describe("The model's id, instead of its name.", MODEL_ID)
    ] = None
    reasoning_effort: Annotated[
        Effort | None,
        describe("How much the model thinks; within the range of the model.", "medium"),
    ] = None


class SendMessageBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    """A message to a chat."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "content": [{"type": "text", "text": "Fix the failing test"}],
        "busy_behavior": "steer",
    }

    content: Annotated[
        Content,
        describe("The parts of the message.", [{"type": "text", "text": "Fix the failing test"}]),
    ]
    busy_behavior: Annotated[WhenBusy, describe("What happens if the chat is busy.", "queue")] = (
        "queue"
    )
    mode: Annotated[
        ModeChoice | None,
        describe(
            "The chat's mode from this message on; without it the mode stays. In `plan` mode the"
            " model looks around and proposes a plan, and changes nothing else.",
            "plan",
        ),
    ] = None
    mcp_server_ids: Annotated[
        McpServerIds | None,
        describe(
            "All MCP servers whose tools the chat may call from now on; null: as before.",
            [MCP_SERVER_ID],
        ),
    ] = None


class EditMessageBody(ModelSelection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new content of a message. Fields that are not given stay unchanged."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "content": [{"type": "text", "text": "Fix the failing test"}]
    }

    content: Annotated[
        Content,
        describe(
            "The parts that replace those of the message.",
            [{"type": "text", "text": "Fix the failing test"}],
        ),
    ]
    mode: Annotated[
        ModeChoice | None,
        describe(
            "The chat's mode from this message on; without it the mode stays. In `plan` mode the"
            " model looks around and proposes a plan, and changes nothing else.",
            "plan",
        ),
    ] = None


class MoveQueuedBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a queued message goes."""

    before: Annotated[
        Id | None, describe("The queued message that it goes before; null: to the end.", 2)
    ]


class ToolResultIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one call of a client tool."""

    tool_call_id: Annotated[str, describe("The call that this answers.", "toolu_01A9")]
    output: Annotated[Raw, describe("What the tool returned, any JSON.", {"status": 200})]
    is_error: Annotated[bool, describe("The call failed; the output says why.")] = False


class ToolResultsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Results of client tools."""

    results: Annotated[
        tuple[ToolResultIn, ...],
        Meta(max_length=1000),
        describe("The results of all calls that the chat waits for."),
    ]


class MessageListQuery(ListQuery, frozen=True, kw_only=True):
    """Only messages below `before_id` and above `after_id`. Newest first; with `after_id`, oldest
    first."""

    before_id: Annotated[Id | None, describe("Only messages with a lower id.", 40)] = None
    after_id: Annotated[
        Version | None, describe("Only messages with a higher id, oldest first.", 12)
    ] = None


class MessagePage(ListPage[PublicMessage], frozen=True, kw_only=True):
    """A page of messages. Only the first page has `queued_messages`. A stream resumed from
    `version` continues from this page."""

    queued_messages: Annotated[
        tuple[PublicQueuedMessage, ...], describe("The queue, in order; empty on later pages.")
    ]
    version: Annotated[
        int, describe("The chat's version: a stream resumed from it continues from this page.", 12)
    ]


class QueueReply(ListPage[PublicQueuedMessage], frozen=True, kw_only=True):
    """A page of the queue of a chat, in order."""

    queued_messages: Annotated[
        tuple[PublicQueuedMessage, ...],
        describe("The whole queue, for clients of earlier versions. Use `items`."),
    ]
    version: Annotated[int, describe("The chat's version.", 12)]


class SentReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The message is in history (`message`) or in the queue (`queued_message`). Both are missing
    if the request was repeated and the message has moved on since. `messages` lists all messages
    that joined history with it, and `deleted_message_ids` those that were deleted."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "queued": True,
        "messages": [],
        "deleted_message_ids": [],
        "chat_id": CHAT_ID,
        "version": 12,
        "queued_message": {
            "id": 3,
            "chat_id": CHAT_ID,
            "content": [{"type": "text", "text": "And then?"}],
            "created_at": CREATED_AT,
            "created_by": USER_ID,
        },
        "queue_id": 3,
    }

    queued: Annotated[bool, describe("The message waits in the queue.")]
    messages: Annotated[
        tuple[PublicMessage, ...], describe("All messages that joined history with it.")
    ]
    deleted_message_ids: Annotated[
        tuple[MessageId, ...], describe("The messages that were deleted.", [5, 6])
    ]
    chat_id: Annotated[ChatId, describe("The chat.", CHAT_ID)]
    version: Annotated[int, describe("The chat's version after the change.", 12)]
    message: Annotated[PublicMessage | None, describe("The message, if it is in history.")] = None
    queued_message: Annotated[
        PublicQueuedMessage | None, describe("The message, if it is in the queue.")
    ] = None
    message_id: Annotated[MessageId | None, describe("The id of the message in history.", 7)] = None
    queue_id: Annotated[QueueId | None, describe("The id of the message in the queue.", 3)] = None


# Events of streams that are not events of a chat.


class StreamEnded(Struct, frozen=True, kw_only=True, tag_field="type", tag="end"):
    """The last event of a stream: why the server ends it."""

    code: Annotated[
        str,
        describe(
            "Why: `going_away`, `lagged`, `not_found`, `build_ended`, `over`, `signed_out`, or an"
            " error code.",
            "going_away",
        ),
    ]
    message: Annotated[
        str,
        describe(
            "Why, for people, and what to do.",
            "The server is shutting down; connect again with the last version seen.",
        ),
    ]
