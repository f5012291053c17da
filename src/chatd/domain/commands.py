"""What people and workers ask of a chat. Values only; the moves decide."""

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct

from chatd.domain.chat import ChatError, Fence, RetryState
from chatd.domain.ids import ChatId, ModelConfigId, QueueId, ToolCallId, UserId, WorkspaceId
from chatd.domain.messages import Draft, Message, Prompt, UsageEntry
from chatd.domain.parts import Json
from chatd.domain.states import Move

WhenBusy = Literal["queue", "steer", "interrupt", "rollback", "reject"]

SEND_MOVES: Mapping[WhenBusy, Move] = {
    "queue": Move.SEND_QUEUE,
    "steer": Move.SEND_STEER,
    "interrupt": Move.SEND_INTERRUPT,
    "rollback": Move.SEND_ROLLBACK,
    "reject": Move.SEND_REJECT,
}


class CreateChat(Struct, frozen=True, kw_only=True):
    """`before` are messages that stand ahead of the prompt: system text, instructions."""

    id: ChatId
    owner_id: UserId
    title: str
    before: tuple[Draft, ...] = ()
    prompt: Prompt | None = None
    parent_chat_id: ChatId | None = None
    root_chat_id: ChatId | None = None
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    labels: Mapping[str, str] = {}
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    client_tools: Json = UNSET


class SendMessage(Struct, frozen=True, kw_only=True):
    prompt: Prompt
    when_busy: WhenBusy = "queue"


class EditMessage(Struct, frozen=True, kw_only=True):
    """`target` is the message as stored, or None if there is none with that id."""

    target: Message | None
    prompt: Prompt


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
    prompt: Prompt


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


class Failure(Struct, frozen=True, kw_only=True):
    step: Step
    error: ChatError


class Retry(Struct, frozen=True, kw_only=True):
    """`usage`: also a call that failed may have cost something."""

    fence: Fence
    state: RetryState
    usage: tuple[UsageEntry, ...] = ()
