"""Bodies, queries and replies about chats.

`domain.chat` has the types of events, messages and chats. Unknown fields of a body are refused, so
that a misspelt name does not look like success. Docstrings here are part of the OpenAPI document.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from chatd.api.schemas.messages import (
    MAX_INT32,
    MAX_INT64,
    Content,
    CursorText,
    Id,
    McpServerIds,
    ModelSelection,
    NonBlankText,
)
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.public_chat import PublicChat
from chatd.domain.chat_views.search import ChatSource
from chatd.domain.chat_views.transfer import ExportFormat
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    MCP_SERVER_ID,
    PROJECT_ID,
    STREAM_CURSOR,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.ids import ChatId, MessageId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.tool_modes import ModeChoice
from chatd.domain.tool_policy.rules import MAX_RULES, ToolRule

MAX_CLIENT_TOOL_S: Final = 30 * 86_400.0
"""The longest time that a client tool may declare for its result."""

# Bodies of requests


class ClientTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs."""

    name: Annotated[
        str,
        Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$"),
        describe("Its name, for the model.", "open_page"),
    ]
    description: Annotated[
        str,
        Meta(max_length=16384),
        describe(
            "What it does and when to call it, for the model.",
            "Opens a page in the user's browser.",
        ),
    ]
    input_schema: Annotated[
        Raw,
        describe(
            "The JSON schema of its arguments, which are an object.",
            {"type": "object", "properties": {"url": {"type": "string"}}},
        ),
    ]
    timeout_s: Annotated[
        Annotated[float, Meta(ge=1, le=MAX_CLIENT_TOOL_S)] | None,
        describe("How many seconds its result may take; 300 if it is not given.", 900),
    ] = None


class CreateChatBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    """A chat and its first message."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "content": [{"type": "text", "text": "Fix the failing test"}],
        "labels": {"team": "blue"},
    }

    content: Annotated[
        Content,
        describe(
            "The parts of the first message.", [{"type": "text", "text": "Fix the failing test"}]
        ),
    ]
    system_prompt: Annotated[
        Annotated[str, Meta(max_length=131_072)] | None,
        describe("Instructions for the model, for this chat.", "Answer in German."),
    ] = None
    labels: Annotated[dict[str, str], describe("Labels to find the chat by.", {"team": "blue"})] = (
        field(default_factory=dict[str, str])
    )
    client_tools: Annotated[
        tuple[ClientTool, ...],
        Meta(max_length=250),
        describe("Tools that the client runs for the model."),
    ] = ()
    workspace_id: Annotated[
        UUID | None,
        describe(
            "The workspace in which the chat's tools act. Without one, the chat"
            " creates its own when it needs it.",
            WORKSPACE_ID,
        ),
    ] = None
    model_required: Annotated[
        bool,
        describe(
            "Fail a turn if the chat's model was removed. Otherwise the default model answers, and"
            " a notice in the chat says so."
        ),
    ] = False
    max_cost_micros: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_INT64)] | None,
        describe(
            "The budget of the chat and its subagents, in micros of a dollar. A model call that"
            " would pass it is not made, and an answer that reaches it is stopped.",
            500_000,
        ),
    ] = None
    tool_rules: Annotated[
        tuple[ToolRule, ...],
        Meta(max_length=MAX_RULES),
        describe(
            "Rules of the chat's tool policy: which calls run, are asked for or are denied.",
            [{"tool": "execute", "action": "ask"}],
        ),
    ] = ()
    mode: Annotated[
        Literal["plan"] | None,
        describe(
            "The mode in which the chat begins. In `plan` mode the model looks around and proposes"
            " a plan, and changes nothing else.",
            "plan",
        ),
    ] = None
    mcp_server_ids: Annotated[
        McpServerIds | None,
        describe(
            "The MCP servers whose tools the chat may call; null: those that are on by default."
            " Servers that are forced on are used anyway.",
            [MCP_SERVER_ID],
        ),
    ] = None
    project_id: Annotated[
        UUID | None,
        describe(
            "The project that the chat belongs to: you are its owner or a writer of it. Its"
            " members read the chat. Without a model, the default model of the project answers.",
            PROJECT_ID,
        ),
    ] = None


class UpdateChatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a chat; all or nothing."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "title": "Fix the failing test",
        "labels": {"team": "blue"},
    }

    title: Annotated[
        NonBlankText | UnsetType,
        describe("A new title of 1 to 200 characters.", "Fix the failing test"),
    ] = UNSET
    archived: Annotated[
        bool | UnsetType,
        describe("Archive the chat with its subagents, or take it out of the archive."),
    ] = UNSET
    pin_order: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_INT32)] | UnsetType,
        describe("The place among the pinned chats; 0 unpins it.", 1),
    ] = UNSET
    labels: Annotated[
        dict[str, str] | UnsetType,
        describe("All labels that the chat has from now on.", {"team": "blue"}),
    ] = UNSET
    workspace_id: Annotated[
        UUID | UnsetType | None,
        describe("The workspace in which the chat's tools act; null: none.", WORKSPACE_ID),
    ] = UNSET
    mcp_server_ids: Annotated[
        McpServerIds | UnsetType | None,
        describe(
            "All MCP servers whose tools the chat may call from its next step on; null: those that"
            " are on by default.",
            [MCP_SERVER_ID],
        ),
    ] = UNSET
    project_id: Annotated[
        UUID | UnsetType | None,
        describe(
            "The project that the chat belongs to from now on, with its subagents; null: none. Its"
            " members read the chat.",
            PROJECT_ID,
        ),
    ] = UNSET
    mode: Annotated[
        ModeChoice | UnsetType,
        describe("The mode of a root chat, from the next step on; `off`: none.", "plan"),
    ] = UNSET
    model_required: Annotated[
        bool | UnsetType,
        describe("Whether a turn fails if the chat's model was removed; else the default answers."),
    ] = UNSET


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is copied into the new chat."""

    message_id: Annotated[
        Id | None, describe("The last message to copy; without it all messages are copied.", 7)
    ] = None
    workspace: Annotated[
        Literal["share", "copy"],
        describe(
            "`share`: both chats use the same workspace. `copy`: the new chat gets a new workspace"
            " with the files of the old one, which must run.",
            "copy",
        ),
    ] = "share"


class InterruptBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to the queue after an interrupt, and to the subagents."""

    queue: Annotated[
        Literal["continue", "hold"],
        describe("Whether the queue goes on by itself, or waits until it is resumed.", "hold"),
    ] = "continue"
    subagents: Annotated[
        Literal["continue", "stop"] | None,
        describe(
            "Whether the chat's subagents go on, or are stopped with it; their queues are held"
            " then. Without it: as the server's settings say.",
            "stop",
        ),
    ] = None


class ReadBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the caller has read the chat."""

    message_id: Annotated[
        Id, Meta(description="The last message that the user has read.", examples=[7])
    ]


# Queries


class ChatListQuery(ListQuery, frozen=True, kw_only=True):
    """Filters of the list of chats; all of them must match."""

    q: Annotated[
        str | None,
        describe(
            "Terms that must all match: `archived:true`, `status:error`, `source:shared`,"
            " `label:key:value`, `project:id`, `title:word` (the beginning of a word of the title),"
            ' and words or "quoted phrases" of'
            " one message or the title. With words or `title:` the chats come by the time of their"
            " newest hit, with a `match`; a new text can be found some seconds later.",
            'title:build "out of memory"',
        ),
    ] = None
    label: Annotated[
        tuple[str, ...],
        Meta(max_length=50),
        describe(
            "Only chats with this label, as `key:value`. Several must all match.", ["team:blue"]
        ),
    ] = ()
    status: Annotated[PublicStatus | None, describe("Only chats with this status.", "running")] = (
        None
    )
    archived: Annotated[
        bool | None, describe("Whether to list the archived chats; without it the others.")
    ] = None
    source: Annotated[
        ChatSource | None,
        describe(
            "Your own chats (`mine`, the default), chats of other users that are shared with you"
            " (`shared`), or both (`all`).",
            "shared",
        ),
    ] = None
    project_id: Annotated[
        UUID | None,
        describe(
            "Only chats of this project: your own and, unless `source` says otherwise, those of"
            " its other members.",
            PROJECT_ID,
        ),
    ] = None
    pinned: Annotated[
        bool | None, describe("Only chats that are pinned, or only those that are not.")
    ] = None


class PromptQuery(ListQuery, frozen=True, kw_only=True):
    """A page of prompts."""

    prefix: Annotated[
        str,
        Meta(max_length=1000),
        describe("Only prompts that begin with this text, in the same letter case.", "Fix the"),
    ] = ""


class ExportQuery(Struct, frozen=True, kw_only=True):
    """The form of an export."""

    format: Annotated[
        ExportFormat, describe("JSON lines, which can be imported, or Markdown.", "markdown")
    ] = "jsonl"


class ImportQuery(Struct, frozen=True, kw_only=True):
    """What an import takes of a file."""

    client_tools: Annotated[
        Literal["leave_out", "keep"],
        describe(
            "The tools that a client runs. Keep them only if you know the file and answer their"
            " calls: the model reads their descriptions, and people do not.",
            "keep",
        ),
    ] = "leave_out"


class ImportedChat(PublicChat, frozen=True, kw_only=True):
    """The root chat of an import."""

    changes: Annotated[
        Mapping[str, int],
        describe(
            "How often the file had to be changed, by what was done. Empty if it was stored as it"
            " is.",
            {"instructions_left_out": 2, "notices_marked": 1},
        ),
    ]


class AfterQuery(Struct, frozen=True, kw_only=True):
    """The last cursor that the client has, or the last version alone. The header `Last-Event-ID`
    takes precedence."""

    after: Annotated[
        CursorText | None,
        describe(
            "The last cursor that the client has, or the last version alone. The header"
            " `Last-Event-ID` takes precedence.",
            STREAM_CURSOR,
        ),
    ] = None


# Replies


class SearchMatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest hit of a search in a chat: in a message, or in the title."""

    chat_id: Annotated[ChatId, describe("The chat or the subagent with the message.", CHAT_ID)]
    message_id: Annotated[
        MessageId | None, describe("The message; absent for a hit in the title.", 7)
    ] = None
    text: Annotated[
        str, describe("The part of the text around the first word.", "ran out of memory again")
    ]
    highlights: Annotated[
        tuple[tuple[int, int], ...],
        describe("Where the words are in `text`: start and end, in characters.", [[4, 7]]),
    ] = ()


class ListedChat(PublicChat, frozen=True, kw_only=True, omit_defaults=True):
    """A root chat with its subagents."""

    children: Annotated[tuple[PublicChat, ...], describe("Its subagents.")]
    match: Annotated[SearchMatch | None, describe("Of a search: its newest hit in this chat.")] = (
        None
    )


class ChatPage(ListPage[ListedChat], frozen=True, kw_only=True):
    """A page of chats."""

    indexing: Annotated[
        bool,
        describe("Of a search: older chats are still being indexed after an upgrade, and missing."),
    ] = False


class FindQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked for in the messages of one chat."""

    q: Annotated[
        str,
        describe(
            'Words or `"quoted phrases"`, as in a search of the list: a message must have all.',
            "out of memory",
        ),
    ]


class FoundMessages(Struct, frozen=True, kw_only=True):
    """The messages of a chat in which the words were found."""

    count: Annotated[int, describe("How many messages were found.", 2)]
    message_ids: Annotated[
        tuple[MessageId, ...], describe("The messages, oldest first.", [3, 1207])
    ]
    has_more: Annotated[bool, describe("Other messages may have the words too: a limit was met.")]


class SubagentListQuery(ListQuery, frozen=True, kw_only=True):
    """Which page of the subagents."""


class SubagentPage(ListPage[PublicChat], frozen=True, kw_only=True):
    """A page of the subagents of a chat."""


class ListedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt that the user has sent."""

    chat_id: Annotated[ChatId, describe("The chat it was sent to.", CHAT_ID)]
    message_id: Annotated[MessageId, describe("Its message in that chat.", 7)]
    text: Annotated[str, describe("Its text.", "Fix the failing test")]
    created_at: Annotated[datetime, describe("When it was sent.", CREATED_AT)]


class PromptPage(ListPage[ListedPrompt], frozen=True, kw_only=True):
    """A page of prompts, newest first. It has each text once; a later page may repeat one. It may
    have fewer items than `limit` although there are more."""


class TitleReply(Struct, frozen=True, kw_only=True):
    """The title of a chat."""

    title: Annotated[str, describe("The title.", "Fix the failing test")]


class HealthReply(Struct, frozen=True, kw_only=True):
    """`reason` is an error code, such as `database_full`."""

    status: Annotated[
        Literal["ok", "draining", "unavailable"],
        describe("Whether the server accepts requests.", "ok"),
    ]
    reason: Annotated[
        str | UnsetType, describe("An error code that says why not.", "database_full")
    ] = UNSET
    message: Annotated[
        str | UnsetType, describe("The reason, for people.", "the database's disk is full")
    ] = UNSET
