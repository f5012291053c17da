"""Commands: what a user or a worker asks of a chat, as values.

`domain.transitions` says which transition function decides each of them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.chat.messages import Draft, UsageEntry, UserInput
from chatd.domain.text import Json
from chatd.domain.chat.row import ChatError, Episode, Fence, RetryState
from chatd.domain.chat.states import Transition
from chatd.domain.ids import (
    ChatId,
    MessageId,
    ModelConfigId,
    QueueId,
    ToolCallId,
    UserId,
    WorkerId,
    WorkspaceId,
)

WhenBusy = Literal["queue", "steer", "interrupt", "rollback", "reject"]

SEND_TRANSITIONS: Mapping[WhenBusy, Transition] = {
    "queue": Transition.SEND_QUEUE,
    "steer": Transition.SEND_STEER,
    "interrupt": Transition.SEND_INTERRUPT,
    "rollback": Transition.SEND_ROLLBACK,
    "reject": Transition.SEND_REJECT,
}


class CreateChat(Struct, frozen=True, kw_only=True):
    """`before` are the messages ahead of the prompt: system text, instructions."""

    id: ChatId
    owner_id: UserId
    title: str
    before: tuple[Draft, ...] = ()
    prompt: UserInput | None = None
    parent_chat_id: ChatId | None = None
    root_chat_id: ChatId | None = None
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    labels: Mapping[str, str] = {}
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    client_tools: Json = UNSET


class SendMessage(Struct, frozen=True, kw_only=True):
    prompt: UserInput
    when_busy: WhenBusy = "queue"


class EditMessage(Struct, frozen=True, kw_only=True):
    message_id: MessageId
    prompt: UserInput


class InterruptChat(Struct, frozen=True, kw_only=True):
    pass


class ClientResult(Struct, frozen=True, kw_only=True):
    """`output` is JSON text."""

    tool_call_id: ToolCallId
    output: str
    is_error: bool = False


class SubmitToolResults(Struct, frozen=True, kw_only=True):
    results: tuple[ClientResult, ...]


class RequestCompaction(Struct, frozen=True, kw_only=True):
    """`compactable`: an answer exists after the last boundary."""

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
    """What a user sets on a chat, all of it or nothing. None leaves a value as it is, except for
    the workspace, where it means none. Labels replace all labels. To archive a root chat archives
    its chat tree."""

    title: str | None = None
    labels: Mapping[str, str] | None = None
    pin_order: int | None = None
    archived: bool | None = None
    workspace_id: WorkspaceId | UnsetType | None = UNSET


class ArchiveIdleTree(Struct, frozen=True, kw_only=True):
    """Archive a chat tree if no chat of it was touched since `idle_since`."""

    idle_since: datetime


class Step(Struct, frozen=True, kw_only=True):
    """What one action produced: at most one answer, then tool results in call order."""

    fence: Fence
    messages: tuple[Draft, ...] = ()
    usage: tuple[UsageEntry, ...] = ()
    client_tools: frozenset[str] = frozenset()
    compacted: bool = False
    keep_owner: bool = True


class CommitStep(Step, frozen=True, kw_only=True):
    pass


class FinishTurn(Step, frozen=True, kw_only=True):
    pass


class RequireClientTools(Step, frozen=True, kw_only=True):
    pass


class FinishInterrupt(Step, frozen=True, kw_only=True):
    pass


class FailTurn(Step, frozen=True, kw_only=True):
    error: ChatError


class RecordRetry(Struct, frozen=True, kw_only=True):
    """`usage`: a failed model call may have cost something too."""

    fence: Fence
    state: RetryState
    usage: tuple[UsageEntry, ...] = ()


class ReleaseChat(Struct, frozen=True, kw_only=True):
    worker_id: WorkerId
    epoch: int


class ReapChat(Struct, frozen=True, kw_only=True):
    """Take the chat from a worker that is one of `worker_ids`; with an `epoch`, only under that."""

    worker_ids: frozenset[WorkerId]
    epoch: int | None = None


class ExpireDeadline(Struct, frozen=True, kw_only=True):
    """End a wait with a deadline before `now`, the database's time. `messages` are made of the
    live parts of `episode`; they are saved if an interrupt of that episode ends."""

    now: datetime
    episode: Episode | None = None
    messages: tuple[Draft, ...] = ()


UserCommand = (
    SendMessage
    | EditMessage
    | InterruptChat
    | SubmitToolResults
    | RequestCompaction
    | EditQueued
    | MoveQueued
    | PromoteQueued
    | DeleteQueued
)
WorkerCommand = (
    CommitStep
    | FinishTurn
    | RequireClientTools
    | FinishInterrupt
    | FailTurn
    | RecordRetry
    | ReleaseChat
    | ReapChat
    | ExpireDeadline
)
TreeCommand = UpdateChat | ArchiveIdleTree
ChatCommand = UserCommand | WorkerCommand
Command = CreateChat | ChatCommand | TreeCommand
