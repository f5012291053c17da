"""Commands: what a user or a worker asks of a chat, as values, and the permission that each needs.

`chat.transitions` maps each to its transition function.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.access.permissions import Permission
from chatd.domain.chat.call_waits import CallWait, QuestionReply
from chatd.domain.chat.messages import CallHooks, Draft, UsageEntry, UserInput
from chatd.domain.chat.row import AgentWait, ChatError, Episode, Fence, ModelSwitch, RetryState
from chatd.domain.chat.states import Transition
from chatd.domain.chat.takeover import DeathNotice
from chatd.domain.ids import (
    ChatId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    QueueId,
    ToolCallId,
    UserId,
    WorkerId,
    WorkspaceId,
)
from chatd.domain.text import Json
from chatd.domain.tool_modes import ModeChoice
from chatd.domain.tool_policy.rules import ToolRule

WhenBusy = Literal["queue", "steer", "interrupt", "rollback", "reject"]

SEND_TRANSITIONS: Mapping[WhenBusy, Transition] = {
    "queue": Transition.SEND_QUEUE,
    "steer": Transition.SEND_STEER,
    "interrupt": Transition.SEND_INTERRUPT,
    "rollback": Transition.SEND_ROLLBACK,
    "reject": Transition.SEND_REJECT,
}


class CreateChat(Struct, frozen=True, kw_only=True):
    """`before` are the messages ahead of the user's: system text, instructions. `rules` begin the
    tool policy of the chat."""

    id: ChatId
    owner_id: UserId
    title: str
    before: tuple[Draft, ...] = ()
    prompt: UserInput | None = None
    parent_chat_id: ChatId | None = None
    root_chat_id: ChatId | None = None
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    model_required: bool = False
    labels: Mapping[str, str] = {}
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    client_tools: Json = UNSET
    max_cost_micros: int | None = None
    rules: tuple[ToolRule, ...] = ()
    mcp_server_ids: tuple[McpServerId, ...] | None = None
    project_id: ProjectId | None = None
    """Set for root chats only: a subagent is in its root's project."""
    parent_fence: Fence | None = None
    """For a subagent, the fence that its parent's worker holds. A stale one creates nothing."""


class SendMessage(Struct, frozen=True, kw_only=True):
    """`mcp_server_ids` replaces those of the chat; None keeps them."""

    prompt: UserInput
    when_busy: WhenBusy = "queue"
    mcp_server_ids: tuple[McpServerId, ...] | None = None


class MessageCommand(Struct, frozen=True, kw_only=True):
    """A command that replaces one message. Its transition reads the message."""

    message_id: MessageId


class EditMessage(MessageCommand, frozen=True, kw_only=True):
    prompt: UserInput


class RegenerateTurn(MessageCommand, frozen=True, kw_only=True):
    """Replace a user message by itself, so that it is answered again: by another model, or with
    another effort, if one is given."""

    created_by: UserId
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None


class ChooseVersion(Struct, frozen=True, kw_only=True):
    """Show another version of a message, with all that followed it."""

    message_id: MessageId


class InterruptChat(Struct, frozen=True, kw_only=True):
    """`hold_queue`: queued messages do not start until a user resumes the queue."""

    hold_queue: bool = False


class ResumeQueue(Struct, frozen=True, kw_only=True):
    """Start the next turn with the head of a queue that waits behind an error or was held."""


class ClientResult(Struct, frozen=True, kw_only=True):
    """`output` is JSON text."""

    tool_call_id: ToolCallId
    output: str
    is_error: bool = False


class SubmitToolResults(Struct, frozen=True, kw_only=True):
    results: tuple[ClientResult, ...]


class CallAnswer(Struct, frozen=True, kw_only=True):
    """A person's answer to one call. `reason` is passed to the model. With `always` the chat stops
    asking about calls like this one; `rule_args` are the patterns of its rule, if not the usual
    ones. With `fingerprint` the answer counts only if the call is still the one that
    `call_waits.call_fingerprint` identifies."""

    tool_call_id: ToolCallId
    decision: Literal["approve", "deny", "answer"]
    reason: str = ""
    always: bool = False
    rule_args: Mapping[str, str] | None = None
    replies: tuple[QuestionReply, ...] = ()
    fingerprint: str | None = None


class AnswerCalls(Struct, frozen=True, kw_only=True):
    answered_by: UserId
    answers: tuple[CallAnswer, ...]


class RequestCompaction(Struct, frozen=True, kw_only=True):
    """`compactable`: an answer exists after the last boundary, or the boundary keeps messages."""

    compactable: bool


class QueueCommand(Struct, frozen=True, kw_only=True):
    """A command on one queued message. Its transition reads the whole queue."""

    id: QueueId


class EditQueued(QueueCommand, frozen=True, kw_only=True):
    prompt: UserInput


class MoveQueued(QueueCommand, frozen=True, kw_only=True):
    """Put the message ahead of `before`; None puts it last among its kind."""

    before: QueueId | None


class PromoteQueued(QueueCommand, frozen=True, kw_only=True):
    pass


class DeleteQueued(QueueCommand, frozen=True, kw_only=True):
    pass


class UpdateChat(Struct, frozen=True, kw_only=True):
    """Values to set on a chat, all or none. None leaves a value unchanged, except `workspace_id`,
    where it removes the workspace, `mcp_server_ids`, where the default ones are used again, and
    `project_id`, where the chat leaves its project. Archiving a root chat archives its chat tree,
    and its subagents follow it into a project."""

    title: str | None = None
    labels: Mapping[str, str] | None = None
    pin_order: int | None = None
    archived: bool | None = None
    workspace_id: WorkspaceId | UnsetType | None = UNSET
    mcp_server_ids: tuple[McpServerId, ...] | UnsetType | None = UNSET
    project_id: ProjectId | UnsetType | None = UNSET
    mode: ModeChoice | None = None
    model_required: bool | None = None


class ArchiveIdleTree(Struct, frozen=True, kw_only=True):
    """Archive a chat tree if no chat of it was touched since `idle_since`."""

    idle_since: datetime


class InterruptTree(Struct, frozen=True, kw_only=True):
    """Interrupt a root chat and all of its subagents that are busy."""

    hold_queue: bool = False


class DeleteTree(Struct, frozen=True, kw_only=True):
    """Delete a root chat with its subagents. Running ones are stopped."""


class Step(Struct, frozen=True, kw_only=True):
    """The result of one action: at most one answer, then tool results in call order. `waits` says
    what the calls wait for that are still pending afterwards."""

    fence: Fence
    messages: tuple[Draft, ...] = ()
    usage: tuple[UsageEntry, ...] = ()
    client_tools: frozenset[str] = frozenset()
    waits: tuple[CallWait, ...] = ()
    compacted: bool = False
    keep_owner: bool = True


class CommitStep(Step, frozen=True, kw_only=True):
    pass


class FinishTurn(Step, frozen=True, kw_only=True):
    pass


class RequireAnswers(Step, frozen=True, kw_only=True):
    pass


class FinishInterrupt(Step, frozen=True, kw_only=True):
    pass


class FailTurn(Step, frozen=True, kw_only=True):
    error: ChatError


class SuspendTurn(Step, frozen=True, kw_only=True):
    """Release the chat until the subagents of `wait` are settled or its time is over. `messages`
    are the results of the step's other calls."""

    wait: AgentWait


class WakeTurn(Struct, frozen=True, kw_only=True):
    """The subagents that a suspended turn waits for are settled."""


class RecordRetry(Struct, frozen=True, kw_only=True):
    """`usage`: a failed model call may be charged too. `counted`: the call was made and failed; a
    call that was not made uses none of the chat's attempts. `keeps_previous`: the attempt said
    nothing, and the one before it, of a worker that died, left a partial answer. `switch`: another
    model makes the next call."""

    fence: Fence
    state: RetryState
    counted: bool = True
    keeps_previous: bool = False
    usage: tuple[UsageEntry, ...] = ()
    switch: ModelSwitch | None = None


class NoteCallWaits(Struct, frozen=True, kw_only=True):
    """Notes on pending calls: what running ones wait for (an empty text: the call continues), and
    what hooks answered about calls that have not run."""

    fence: Fence
    waits: Mapping[ToolCallId, str] = {}
    hooks: Mapping[ToolCallId, CallHooks] = {}


class ReleaseChat(Struct, frozen=True, kw_only=True):
    worker_id: WorkerId
    epoch: int


class ReapChat(Struct, frozen=True, kw_only=True):
    """Remove the owner if it is one of `worker_ids` and, if given, under this `epoch`.

    `blamed`: isolated chats for which the worker's death is evidence. `is_task_crash`: the worker
    lives, and only this chat's chat task ended. `jitter` is from 0 to 1. `notices` say how the
    deaths were noticed, `reaper` by which worker."""

    worker_ids: frozenset[WorkerId]
    epoch: int | None = None
    blamed: frozenset[ChatId] = frozenset()
    is_task_crash: bool = False
    jitter: float = 0.0
    notices: Mapping[WorkerId, DeathNotice] = {}
    reaper: WorkerId | None = None


class ExpireDeadline(Struct, frozen=True, kw_only=True):
    """End a wait with a deadline before `now`, the database's time. `messages` hold the live
    parts of `episode`; they are saved if the interrupt of that episode expires."""

    now: datetime
    episode: Episode | None = None
    messages: tuple[Draft, ...] = ()


UserCommand = (
    SendMessage
    | EditMessage
    | RegenerateTurn
    | ChooseVersion
    | InterruptChat
    | ResumeQueue
    | SubmitToolResults
    | AnswerCalls
    | RequestCompaction
    | EditQueued
    | MoveQueued
    | PromoteQueued
    | DeleteQueued
)
StartingCommand = (
    SendMessage
    | EditMessage
    | RegenerateTurn
    | InterruptChat
    | ResumeQueue
    | SubmitToolResults
    | AnswerCalls
    | RequestCompaction
    | PromoteQueued
)
"""Commands after which the chat may need a worker, so the caller reserves a slot."""
WorkerCommand = (
    CommitStep
    | FinishTurn
    | RequireAnswers
    | FinishInterrupt
    | FailTurn
    | SuspendTurn
    | WakeTurn
    | RecordRetry
    | NoteCallWaits
    | ReleaseChat
    | ReapChat
    | ExpireDeadline
)
TreeCommand = UpdateChat | ArchiveIdleTree | InterruptTree | DeleteTree
ChatCommand = UserCommand | WorkerCommand
Command = CreateChat | ChatCommand | TreeCommand


# The permission that a command on a chat needs.


def command_permission(command: Command) -> Permission:
    """`chats.control` for what stops a chat or puts it away, so that an administrator can do it to
    another user's chat."""
    match command:
        case CreateChat():
            return "chats.create"
        case InterruptChat() | InterruptTree() | DeleteTree() | ArchiveIdleTree():
            return "chats.control"
        case UpdateChat() if _only_archives(command):
            return "chats.control"
        case _:
            return "chats.write"


def _only_archives(command: UpdateChat) -> bool:
    others = (command.title, command.labels, command.pin_order)
    has_others = command.workspace_id is not UNSET or any(value is not None for value in others)
    return command.archived is not None and not has_others
