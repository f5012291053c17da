"""What people and workers ask of a chat. Values only; the moves decide.

What people set on a chat beside its moves: title, labels, pin, its workspace, and whether it is
archived.

Owns which of that a chat refuses, all of it at once: an amendment is made whole or not at all.
What is so already is not refused: whoever asks twice wants no more than once.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.chat.messages import Draft, Message, UsageEntry, UserInput
from chatd.domain.chat.parts import Json
from chatd.domain.chat.row import Chat, ChatError, Fence, RetryState
from chatd.domain.chat.states import Transition
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, ModelConfigId, QueueId, ToolCallId, UserId, WorkspaceId

WhenBusy = Literal["queue", "steer", "interrupt", "rollback", "reject"]

SEND_TRANSITIONS: Mapping[WhenBusy, Transition] = {
    "queue": Transition.SEND_QUEUE,
    "steer": Transition.SEND_STEER,
    "interrupt": Transition.SEND_INTERRUPT,
    "rollback": Transition.SEND_ROLLBACK,
    "reject": Transition.SEND_REJECT,
}


class CreateChat(Struct, frozen=True, kw_only=True):
    """`before` are messages that stand ahead of the prompt: system text, instructions."""

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
    """`target` is the message as stored, or None if there is none with that id."""

    target: Message | None
    prompt: UserInput


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


class EditQueued(Struct, frozen=True, kw_only=True):
    id: QueueId
    prompt: UserInput


class MoveQueued(Struct, frozen=True, kw_only=True):
    """Put the message ahead of `before`; None puts it last among its kind."""

    id: QueueId
    before: QueueId | None


class Step(Struct, frozen=True, kw_only=True):
    """What one action produced: at most one answer, then tool results in call order."""

    fence: Fence
    messages: tuple[Draft, ...] = ()
    usage: tuple[UsageEntry, ...] = ()
    client_tools: frozenset[str] = frozenset()
    compacted: bool = False
    keep_owner: bool = True


class FailTurn(Struct, frozen=True, kw_only=True):
    step: Step
    error: ChatError


class RecordRetry(Struct, frozen=True, kw_only=True):
    """`usage`: also a call that failed may have cost something."""

    fence: Fence
    state: RetryState
    usage: tuple[UsageEntry, ...] = ()


class ChatUpdate(Struct, frozen=True, kw_only=True):
    """None leaves a thing as it is, but for the workspace: there it means none at all. Labels
    replace all labels."""

    title: str | None = None
    labels: Mapping[str, str] | None = None
    pin_order: int | None = None
    archived: bool | None = None
    workspace_id: WorkspaceId | UnsetType | None = UNSET


def check_chat_update(chat: Chat, wanted: ChatUpdate) -> None:
    """Raises InvalidInput."""
    if not wanted.pin_order:
        return
    if not chat.is_root:
        raise InvalidInput("pin_order", "only a root chat can be pinned")
    if chat.archived if wanted.archived is None else wanted.archived:
        raise InvalidInput("pin_order", "an archived chat cannot be pinned")
