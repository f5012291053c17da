"""The chat row: what should happen, who does it, and the versions viewers resume by."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct

from chatd.domain.errors import StaleFence
from chatd.domain.ids import (
    ChangeId,
    ChatId,
    MessageId,
    ModelConfigId,
    QueueId,
    UserId,
    WorkerId,
    WorkspaceId,
)
from chatd.domain.messages import PendingCall
from chatd.domain.parts import Json
from chatd.domain.states import PublicStatus, State, Status, classify, public_status

MAX_QUEUED = 20
MAX_ORPHANED = 3
RECENT_CHANGES = 8


class ChatError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a chat stopped, as clients see it."""

    message: str
    kind: str = "generic"
    detail: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class RetryState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model call failed and will be tried again. Kept in the row so that late viewers see it."""

    attempt: int
    delay_ms: int
    error: str
    kind: str = "generic"
    provider: str | None = None
    status_code: int | None = None
    retrying_at: datetime | None = None


class Chat(Struct, frozen=True, kw_only=True):
    id: ChatId
    owner_id: UserId
    root_chat_id: ChatId
    parent_chat_id: ChatId | None = None

    # Metadata: single updates, no version.
    title: str
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    labels: Mapping[str, str] = {}
    pin_order: int = 0
    last_read_message_id: MessageId | None = None
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    client_tools: Json = UNSET
    created_at: datetime
    updated_at: datetime

    # Kernel: written by transitions only.
    status: Status
    archived: bool = False
    last_error: ChatError | None = None
    snapshot_version: int
    history_version: int
    queue_version: int = 0
    retry_version: int = 0
    retry_state: RetryState | None = None
    attempt: int = 0
    next_message_id: MessageId = MessageId(1)
    next_queue_id: QueueId = QueueId(1)
    queue_len: int = 0
    steer_len: int = 0
    pending_calls: tuple[PendingCall, ...] = ()
    turn_message_id: MessageId | None = None
    compaction_requested: bool = False
    worker_id: WorkerId | None = None
    epoch: int = 0
    orphan_count: int = 0
    runnable_at: datetime | None = None
    action_deadline: datetime | None = None
    interrupt_deadline: datetime | None = None
    recent_changes: tuple[ChangeId, ...] = ()

    @property
    def state(self) -> State:
        return classify(
            self.status,
            queued=self.queue_len > 0,
            archived=self.archived,
            owned=self.worker_id is not None,
        )

    @property
    def public_status(self) -> PublicStatus:
        return public_status(self.status, archived=self.archived, owned=self.worker_id is not None)

    @property
    def under_way(self) -> bool:
        """A worker is at the next step, or was until it died or left. What it has shown must be
        saved before anything else may take the step's place."""
        return self.status == "running" and self.attempt > 0

    @property
    def is_root(self) -> bool:
        return self.parent_chat_id is None


class Episode(Struct, frozen=True, order=True):
    """Names the live parts of one attempt at one step."""

    chat_id: ChatId
    history_version: int
    attempt: int

    @staticmethod
    def of(chat: Chat) -> "Episode":
        return Episode(chat.id, chat.history_version, chat.attempt)


class Fence(Struct, frozen=True, kw_only=True):
    """What must still hold for a worker to write. Owner and epoch alone are not enough:
    without the history version a repeated commit would be applied twice."""

    worker_id: WorkerId
    epoch: int
    status: Literal["running", "interrupting"]
    history_version: int

    @staticmethod
    def of(chat: Chat) -> "Fence":
        if chat.worker_id is None or chat.status not in ("running", "interrupting"):
            raise StaleFence(f"Chat {chat.id} is not being worked on.")
        return Fence(
            worker_id=chat.worker_id,
            epoch=chat.epoch,
            status=chat.status,
            history_version=chat.history_version,
        )

    def check(self, chat: Chat) -> None:
        held = (chat.worker_id, chat.epoch, chat.status, chat.history_version)
        if held != (self.worker_id, self.epoch, self.status, self.history_version):
            raise StaleFence(f"Chat {chat.id} has moved on.")
