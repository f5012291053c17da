"""A chat as clients see it, in replies and in the chat list; the events of the list; and, in one
line,
what a chat that is `requires_action` waits for.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.chat.call_waits import (
    WaitKind,
    read_questions,
    wait_kinds,
    wait_of,
    waiting_calls,
)
from chatd.domain.chat.change import QUEUE_HELD_ERROR
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.row import Chat, ChatError, DiffStatus, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.description import (
    CHAT_ID,
    CHILD_CHAT_ID,
    CREATED_AT,
    MCP_SERVER_ID,
    MODEL_ID,
    PROJECT_ID,
    UPDATED_AT,
    USER_ID,
    WAITS_FOR,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.errors import ToolError
from chatd.domain.ids import (
    ChatId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    UserId,
    WorkspaceId,
)
from chatd.domain.text import clip
from chatd.domain.tool_policy.matching import COMMAND_ARGUMENT, read_arguments

MAX_SUMMARY_CHARS: Final = 120
UNLISTED: Final[Mapping[str, str]] = {"chatd/listed": "no"}
"""The label of chats that programs start by the hundred."""


def is_listed(chat: Chat) -> bool:
    """Whether the list of all chats has it, and the events of the list. Lists by label or status
    and searches have every chat. So does the list, while the chat waits for a person."""
    if not UNLISTED.items() <= chat.labels.items():
        return True
    asks = any(wait_of(call) != "client" for call in waiting_calls(chat))
    return chat.public_status == "requires_action" and asks


class ActionSummary(Struct, frozen=True, kw_only=True):
    """What a chat needs a person or a client for."""

    kinds: Annotated[
        tuple[WaitKind, ...],
        describe(
            "What its calls wait for: `approval`, `question` (answers of a person) or `client`"
            " (results of the client).",
            ["approval"],
        ),
    ]
    calls: Annotated[int, describe("How many calls wait.", 1)]
    summary: Annotated[str, describe("The first of them, in one line.", "Approve: git push")]


def action_summary(chat: Chat) -> ActionSummary | None:
    """None if the chat does not wait. What a person must do comes first."""
    if chat.public_status != "requires_action" or not (calls := waiting_calls(chat)):
        return None
    first = min(calls, key=lambda call: wait_of(call) == "client")
    return ActionSummary(
        kinds=wait_kinds(calls),
        calls=len(calls),
        summary=clip(" ".join(_summarize(first).split()), MAX_SUMMARY_CHARS),
    )


def _summarize(call: PendingCall) -> str:
    match wait_of(call):
        case "question":
            return _first_question(call)
        case "client":
            return f"Waits for the result of {call.name}"
        case _:
            return f"Approve: {_command(call) or call.name}"


def _first_question(call: PendingCall) -> str:
    try:
        return read_questions(call.args)[0].question
    except ToolError:
        return "Asks a question"


def _command(call: PendingCall) -> str:
    for key, value in read_arguments(call.args) or ():
        if key == COMMAND_ARGUMENT and isinstance(value, str):
            return value
    return ""


# A chat as clients see it, in replies and in the chat list, and the events of the chat list.

ChatListChange = Literal["created", "changed", "archived", "deleted", "title", "diff_status"]


class ForkOrigin(Struct, frozen=True, kw_only=True):
    """Where a chat was forked from. The chat may be deleted since."""

    chat_id: Annotated[ChatId, describe("The chat.", CHILD_CHAT_ID)]
    message_id: Annotated[MessageId, describe("The last message that was copied.", 7)]


class PublicChat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat. Fields without a default are always present."""

    id: Annotated[ChatId, describe("The chat's id.", CHAT_ID)]
    owner_id: Annotated[UserId, describe("The user it belongs to.", USER_ID)]
    owner_username: Annotated[
        str | None,
        describe("The name of that user. Absent in replies to an action on the chat.", "ada"),
    ] = None
    is_owner: Annotated[
        bool | UnsetType,
        describe(
            "Whether it belongs to you. If not, you read it because it is shared with you, or by"
            " your role. Absent in replies to an action on the chat."
        ),
    ] = UNSET
    shared: Annotated[
        bool | UnsetType,
        describe(
            "Whether it is shared with users or groups; subagents are with their root. Absent in"
            " replies to an action on the chat."
        ),
    ] = UNSET
    root_chat_id: Annotated[
        ChatId,
        describe("The chat at the root of its tree; its own id unless it is a subagent.", CHAT_ID),
    ]
    parent_chat_id: Annotated[
        ChatId | None, describe("Of a subagent: the chat that started it.", CHAT_ID)
    ] = None
    title: Annotated[str, describe("Its title.", "Fix the failing test")]
    status: Annotated[PublicStatus, describe("What it does or waits for.", "waiting")]
    action: Annotated[
        ActionSummary | None,
        describe("What it waits for, if its status is `requires_action`; else absent."),
    ] = None
    action_summary: Annotated[
        str | None,
        describe("The first of what it waits for, in one line; else absent.", "Approve: git push"),
    ] = None
    waits_for: Annotated[
        str | None,
        describe(
            "While it is `running` and cannot go on now, such as because its machine is not"
            " connected, or `pending`, because no worker has a slot for it: why, in a sentence;"
            " else absent. It goes on by itself.",
            WAITS_FOR,
        ),
    ] = None
    plan_ready: Annotated[
        bool,
        describe("Whether its last turn proposed a plan, and a person decides what becomes of it."),
    ] = False
    retry: Annotated[
        RetryState | None,
        describe(
            "While it waits to repeat a failed model call: which call, and when; else absent."
        ),
    ] = None
    archived: Annotated[bool, describe("Whether it is archived.")]
    last_error: Annotated[
        ChatError | None, describe("Why it stopped, if its status is `error`; else null.")
    ]
    pin_order: Annotated[
        int, describe("Its place among your pinned chats; 0 if it is not pinned.", 0)
    ]
    labels: Annotated[Mapping[str, str], describe("Its labels.", {"team": "blue"})]
    queue_len: Annotated[int, describe("How many messages wait in its queue.", 0)]
    queue_held: Annotated[
        bool,
        describe("Whether its queue waits until it is resumed, because an interrupt held it."),
    ] = False
    version: Annotated[
        int,
        describe(
            "Counts its changes. A copy with a lower version is older; a stream resumes from it.",
            12,
        ),
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    last_model_config_id: Annotated[
        ModelConfigId | None, describe("The model of the last message.", MODEL_ID)
    ] = None
    reasoning_effort: Annotated[
        str | None, describe("The reasoning effort of the last message.", "medium")
    ] = None
    model_required: Annotated[
        bool,
        describe("Whether its turns fail if its model was removed; else the default answers."),
    ] = False
    workspace_id: Annotated[
        WorkspaceId | None, describe("The workspace in which its tools act.", WORKSPACE_ID)
    ] = None
    mode: Annotated[
        str | None,
        describe(
            "The mode it is in: `plan`, or `explore` for some subagents. Absent: none.", "plan"
        ),
    ] = None
    max_cost_micros: Annotated[
        int | None,
        describe("The budget of the chat and its subagents, in micros of a dollar.", 500_000),
    ] = None
    mcp_server_ids: Annotated[
        tuple[McpServerId, ...] | None,
        describe(
            "The MCP servers that were chosen for it; absent if those are used that are on by"
            " default. Servers that are forced on are used anyway.",
            [MCP_SERVER_ID],
        ),
    ] = None
    project_id: Annotated[
        ProjectId | None, describe("The project it belongs to; absent: none.", PROJECT_ID)
    ] = None
    last_message_id: Annotated[MessageId | None, describe("The id of its newest message.", 7)] = (
        None
    )
    last_read_message_id: Annotated[
        MessageId | None,
        describe("The newest message that you have read; absent where `has_unread` is.", 5),
    ] = None
    has_unread: Annotated[
        bool | UnsetType,
        describe(
            "Whether an answer follows the last message that you have read and your last prompt."
            " Absent in replies to an action on the chat."
        ),
    ] = UNSET
    diff_status: Annotated[
        DiffStatus | None, describe("What it has changed in git repositories, as last seen.")
    ] = None
    forked_from: Annotated[ForkOrigin | None, describe("Of a fork: where it comes from.")] = None


class ChatListReady(Struct, frozen=True, kw_only=True, tag_field="type", tag="ready"):
    """Changes are sent from now on: list the chats. Sent at the start, and again after changes
    may have been lost."""


class ChatListEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="chat"):
    """Insert the chat, or replace the one with its id. `kind` is the likely change; there may be
    several. Remove a chat that is "deleted"."""

    kind: Annotated[ChatListChange, describe("The likely change; there may be several.", "changed")]
    chat: Annotated[PublicChat, describe("The chat after the change.")]


class ChatListRemoved(Struct, frozen=True, kw_only=True, tag_field="type", tag="removed"):
    """A chat of another user is no longer shared with you: remove it, with its subagents."""

    chat_id: Annotated[ChatId, describe("The root chat.", CHAT_ID)]


class ProjectsChanged(Struct, frozen=True, kw_only=True, tag_field="type", tag="projects"):
    """Your projects have changed: another one, one less, or what one of them has. List them
    again."""


PLAN_READY: Final = "A plan is ready to read"
NOTHING_READ: Final = MessageId(0)
DIFF_HINT_KIND: Final = "diff"
"""The kind of a changed diff status."""
SHARE_HINT_KIND: Final = "share"
"""The kind of a change of a chat's readers."""


class ReaderView(Struct, frozen=True, kw_only=True):
    """What a user sees of a chat beside its row. `read_up_to` is the last message that the user has
    read, or NOTHING_READ."""

    is_owner: bool
    owner_username: str
    shared: bool = False
    read_up_to: MessageId = NOTHING_READ


WAITS_FOR_WORKER: Final = "No worker has a free slot yet."


def has_unread(chat: Chat, read_up_to: MessageId) -> bool:
    """Whether an answer follows both the last message that the user has read and the message that
    started the last turn."""
    return chat.next_message_id - 1 > max(read_up_to, chat.turn_message_id or 0)


def public_chat(chat: Chat, view: ReaderView | None = None) -> PublicChat:
    """Without a view: for a user who has just acted on the chat."""
    last = MessageId(chat.next_message_id - 1)
    is_foreign = view is not None and not view.is_owner
    action = action_summary(chat)
    return PublicChat(
        id=chat.id,
        owner_id=chat.owner_id,
        owner_username=None if view is None else view.owner_username,
        is_owner=UNSET if view is None else view.is_owner,
        shared=UNSET if view is None else view.shared,
        root_chat_id=chat.root_chat_id,
        parent_chat_id=chat.parent_chat_id,
        title=chat.title,
        status=chat.public_status,
        action=action,
        action_summary=_needed(chat) if action is None else action.summary,
        waits_for=_waits_for(chat),
        plan_ready=chat.has_waiting_plan,
        retry=chat.retry_state,
        archived=chat.archived,
        last_error=chat.last_error if chat.status == "error" else None,
        pin_order=0 if is_foreign else chat.pin_order,
        labels=chat.labels,
        queue_len=chat.queue_len,
        queue_held=chat.queue_held or _is_held(chat.last_error),
        version=chat.snapshot_version,
        created_at=chat.created_at,
        updated_at=chat.updated_at,
        last_model_config_id=chat.model_config_id,
        reasoning_effort=chat.reasoning_effort,
        model_required=chat.model_required,
        workspace_id=chat.workspace_id,
        mode=chat.mode,
        max_cost_micros=chat.max_cost_micros,
        mcp_server_ids=chat.mcp_server_ids,
        project_id=chat.project_id,
        last_message_id=last if last > 0 else None,
        last_read_message_id=None if view is None else view.read_up_to or None,
        has_unread=UNSET if view is None else has_unread(chat, view.read_up_to),
        diff_status=chat.diff_status,
        forked_from=_origin(chat),
    )


def _waits_for(chat: Chat) -> str | None:
    if chat.public_status == "pending" and chat.retry_state is None:
        return WAITS_FOR_WORKER
    if chat.public_status != "running":
        return None
    return next((call.waits_for for call in chat.pending_calls if call.waits_for), None)


def _needed(chat: Chat) -> str | None:
    return PLAN_READY if chat.has_waiting_plan else None


def _is_held(error: ChatError | None) -> bool:
    return error is not None and error.kind == QUEUE_HELD_ERROR.kind


def _origin(chat: Chat) -> ForkOrigin | None:
    source, message = chat.forked_from_chat_id, chat.forked_from_message_id
    if source is None or message is None:
        return None
    return ForkOrigin(chat_id=source, message_id=message)


def chat_list_change(chat: Chat, hint_kind: str | None, *, is_owner: bool = True) -> ChatListChange:
    """Unknown kinds of hints count as "changed". A chat is created for a reader when it is
    shared."""
    if chat.deleted_at is not None:
        return "deleted"
    if hint_kind == "title":
        return "title"
    if chat.archived:
        return "archived"
    if hint_kind == DIFF_HINT_KIND:
        return "diff_status"
    if not is_owner:
        return "created" if hint_kind == SHARE_HINT_KIND else "changed"
    # A chat at its first version may still have got labels or a pin, which a kind announces.
    is_new = chat.snapshot_version == 1 and hint_kind in (None, "created")
    return "created" if is_new else "changed"
