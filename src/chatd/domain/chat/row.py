"""The chat row with its fence and episode, and the hint that a replica sends after a commit.

A hint is lossy and may come late, twice or out of order: a receiver reads the row before it acts.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import eq
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.states import PublicStatus, State, Status
from chatd.domain.chat.takeover import LostOwner, Takeover
from chatd.domain.description import UPDATED_AT, describe
from chatd.domain.errors import InvariantBroken, StaleFence
from chatd.domain.ids import (
    ChangeId,
    ChatId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    QueueId,
    UserId,
    WorkerId,
    WorkspaceId,
)
from chatd.domain.text import Json
from chatd.domain.workspace.pull_requests import PullRequest

MAX_QUEUED_MESSAGES = 20
MAX_RUNNABLE_DELAY_S = 75 * 60
"""A chat never waits longer for its next try. A later `runnable_at` means that the database's clock
went back."""
RECENT_CHANGES_KEPT = 8
MAX_KEPT_ATTEMPTS: Final = 32
"""How many uncommitted attempts at one step are read from the journal at once. Later attempts have
kept the output of older ones."""
UNKNOWN_CHANGE: Final = ChangeId(0)
"""The change id of a version that an earlier release of the server acquired or released."""


class ChatError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a chat stopped, as clients see it."""

    message: Annotated[str, describe("What happened, for people.", "The provider refused the key.")]
    kind: Annotated[str, describe("The kind of error, for programs.", "auth")] = "generic"
    detail: Annotated[
        str | None, describe("More about it, often in the provider's words.", "invalid x-api-key")
    ] = None
    provider: Annotated[str | None, describe("The provider that failed.", "anthropic")] = None
    retryable: Annotated[bool, describe("The same request may succeed later.")] = False
    status_code: Annotated[
        int | None, describe("The HTTP status that the provider replied.", 401)
    ] = None


class RetryState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failed model call that will be retried. Stored in the row, so that new viewers see it."""

    attempt: Annotated[int, describe("How many calls have failed in a row.", 2)]
    delay_ms: Annotated[int, describe("The delay before the next call, in milliseconds.", 4000)]
    error: Annotated[
        str, describe("Why the last call failed, for people.", "The provider is overloaded.")
    ]
    kind: Annotated[str, describe("The kind of error, for programs.", "overloaded")] = "generic"
    provider: Annotated[str | None, describe("The provider that failed.", "anthropic")] = None
    status_code: Annotated[
        int | None, describe("The HTTP status that the provider replied.", 529)
    ] = None
    detail: Annotated[
        str | None, describe("More about it, often in the provider's words.", "Overloaded")
    ] = None
    retrying_at: Annotated[datetime | None, describe("When the next call is made.", UPDATED_AT)] = (
        None
    )


class ChosenFallback(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model that has answered in place of the chat's own since that one failed. `is_temporary`:
    the failure may pass."""

    model_config_id: ModelConfigId
    reason: str
    since: datetime
    is_temporary: bool = False


class ModelSwitch(Struct, frozen=True, kw_only=True):
    """Which models have failed at this step, and which one answers in place of the chat's own.
    Empty: the chat's own model is tried again."""

    failed_models: tuple[ModelConfigId, ...] = ()
    fallback: ChosenFallback | None = None


class Setbacks(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong since the chat's history last changed. `waited_ms` is the sum of all retry
    delays. The answers of all attempts up to `discarded_attempt` were discarded; None: no call of
    this release has failed. `failed_models` are those that another model replaced at this step.
    `fallback` outlives the step, until the chat's own model answers again."""

    failed_calls: int = 0
    waited_ms: int = 0
    lone_deaths: int = 0
    discarded_attempt: int | None = None
    failed_models: tuple[ModelConfigId, ...] = ()
    fallback: ChosenFallback | None = None


NO_SETBACKS: Final = Setbacks()


class AgentWait(Struct, frozen=True, kw_only=True):
    """The subagents that a suspended turn waits for, and for how long."""

    chat_ids: tuple[ChatId, ...]
    delay_ms: int


class LineEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a line of messages that another line replaced, as its chat's row had it then."""

    turn_message_id: MessageId | None = None
    plan_message_id: MessageId | None = None
    pending_calls: tuple[PendingCall, ...] = ()
    error: ChatError | None = None

    @staticmethod
    def of(chat: "Chat") -> "LineEnd":
        """Leaves out an error that holds queued messages: it is not of the line alone."""
        return LineEnd(
            turn_message_id=chat.turn_message_id,
            plan_message_id=chat.plan_message_id,
            pending_calls=chat.pending_calls,
            error=None if chat.queue_len else chat.last_error,
        )


class StoredVersion(Struct, frozen=True, kw_only=True):
    """A version of a message: the first message of a line. `shown_id` is the version of the same
    message that history has now; None if it has none of them. `hidden` are the messages of this
    line if another one replaced it, else None; the content of all of them is still stored if
    `is_whole`."""

    message_id: MessageId
    shown_id: MessageId | None
    hidden: tuple[MessageId, ...] | None = None
    is_whole: bool = True
    end: LineEnd = LineEnd()


class DiffStatus(Struct, frozen=True, kw_only=True):
    """What a chat has changed in its repositories, as last seen."""

    branch: Annotated[str, describe("The branch that is checked out.", "fix-dispatch")]
    base: Annotated[
        str, describe("The default branch of the remote `origin`, if known.", "origin/main")
    ]
    additions: Annotated[int, describe("Added lines.", 48)]
    deletions: Annotated[int, describe("Deleted lines.", 12)]
    changed_files: Annotated[int, describe("Files with changes.", 3)]
    remote_url: Annotated[
        str, describe("The address of the remote `origin`.", "https://github.com/a/app.git")
    ] = ""
    ahead: Annotated[
        int | None,
        describe("Commits that the upstream lacks, as of the last fetch; null if unknown.", 2),
    ] = None
    behind: Annotated[int | None, describe("Commits of the upstream that the branch lacks.", 0)] = (
        None
    )
    pull_request: Annotated[
        PullRequest | None,
        describe("The pull request of the branch, if the owner's credential finds one."),
    ] = None
    new_pull_request_url: Annotated[
        str | None,
        describe(
            "Where a pull request for the branch is opened, if there is no open one.",
            "https://github.com/a/app/compare/main...fix-dispatch?expand=1",
        ),
    ] = None


# By status, archived, owned. The database schema refuses all other combinations.
_LETTERS: Final[Mapping[tuple[Status, bool, bool], str]] = {
    ("waiting", False, False): "W",
    ("error", False, False): "E",
    ("running", False, False): "P",
    ("running", False, True): "R",
    ("interrupting", False, False): "I",
    ("interrupting", False, True): "I",
    ("requires_action", False, False): "A",
    ("waiting", True, False): "XW",
    ("error", True, False): "XE",
}


# Built once, because every commit looks states up.
_STATES: Final[Mapping[tuple[Status, bool, bool, bool], State]] = {
    (status, archived, owned, queued): State("W" if letters == "W" else f"{letters}{queued:d}")
    for (status, archived, owned), letters in _LETTERS.items()
    for queued in (False, True)
    if not (letters == "W" and queued)
}


def state_of(status: Status, *, queued: bool, archived: bool, owned: bool) -> State:
    state = _STATES.get((status, archived, owned, queued))
    if state is None:
        raise InvariantBroken(
            f"No chat is {status} with {queued=}, {archived=}, {owned=}.",
        )
    return state


def public_status(status: Status, *, archived: bool, owned: bool) -> PublicStatus:
    if archived:
        return "archived"
    if status == "running" and not owned:
        return "pending"
    return status


class Chat(Struct, frozen=True, kw_only=True):
    id: ChatId
    owner_id: UserId
    root_chat_id: ChatId
    parent_chat_id: ChatId | None = None

    # Metadata: written by single updates, without a version.
    title: str
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    model_required: bool = False
    """Whether a turn fails if the model was removed, instead of being answered by the default."""
    labels: Mapping[str, str] = {}
    pin_order: int = 0
    workspace_id: WorkspaceId | None = None
    mode: str | None = None
    client_tools: Json = UNSET
    max_cost_micros: int | None = None
    mcp_server_ids: tuple[McpServerId, ...] | None = None
    """None: the servers that are on by default."""
    project_id: ProjectId | None = None
    diff_status: DiffStatus | None = None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    forked_from_chat_id: ChatId | None = None
    forked_from_message_id: MessageId | None = None

    # State: written by transitions only.
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
    queue_held: bool = False
    pending_calls: tuple[PendingCall, ...] = ()
    turn_message_id: MessageId | None = None
    plan_message_id: MessageId | None = None
    """The result of the last call that proposed a plan."""
    compaction_requested: bool = False
    agent_wait: AgentWait | None = None
    worker_id: WorkerId | None = None
    epoch: int = 0
    orphan_count: int = 0
    setbacks: Setbacks | None = None
    lost: LostOwner | None = None
    takeover: Takeover | None = None
    runnable_at: datetime | None = None
    action_deadline: datetime | None = None
    interrupt_deadline: datetime | None = None
    recent_changes: tuple[ChangeId, ...] = ()

    @property
    def state(self) -> State:
        return state_of(
            self.status,
            queued=self.queue_len > 0,
            archived=self.archived,
            owned=self.worker_id is not None,
        )

    @property
    def public_status(self) -> PublicStatus:
        has_owner = self.worker_id is not None or self.is_suspended
        return public_status(self.status, archived=self.archived, owned=has_owner)

    @property
    def has_step_in_progress(self) -> bool:
        """A worker runs the next step, or ran it until it died or released the chat. Its partial
        answer must be saved before another step replaces it. A chat that waits for its retry has
        none if the failed answer was discarded. A suspended one has none either."""
        has_answer = not self.waits_for_retry or self.attempt > self.discarded_attempt + 1
        return (
            self.status == "running" and self.attempt > 0 and has_answer and not self.is_suspended
        )

    @property
    def discarded_attempt(self) -> int:
        """The last attempt at this step whose answer was discarded; 0: none.

        The previous release discarded the answer of each failed call and did not store which. The
        failed calls had as many attempts at least; what a worker that died said came later."""
        setbacks = self.setbacks or NO_SETBACKS
        if setbacks.discarded_attempt is not None:
            return setbacks.discarded_attempt
        before = max(self.attempt - 1, 0)
        return before if self.waits_for_retry else min(setbacks.failed_calls, before)

    @property
    def fallback(self) -> ChosenFallback | None:
        return None if self.setbacks is None else self.setbacks.fallback

    @property
    def waits_for_retry(self) -> bool:
        """Whether it is without a worker until the time of the next model call."""
        return self.retry_state is not None and self.worker_id is None

    @property
    def is_suspended(self) -> bool:
        """Whether it is without a worker until its subagents are settled or the wait is over.
        Clients see it as running."""
        return self.agent_wait is not None and self.status == "running" and self.worker_id is None

    @property
    def is_settled(self) -> bool:
        """Whether it has ended its turn or waits for a person: no more output follows for now."""
        return self.archived or self.status in ("waiting", "error", "requires_action")

    @property
    def has_waiting_plan(self) -> bool:
        """Whether the last turn proposed a plan: a person decides what becomes of it."""
        is_of_turn = (self.plan_message_id or 0) > (self.turn_message_id or 0)
        return is_of_turn and self.status == "waiting" and not self.archived

    @property
    def is_root(self) -> bool:
        return self.parent_chat_id is None

    # Versions. After a failover that lost commits the same number can stand for another change,
    # so a version is known by its number and the id of its change.

    @property
    def change_id(self) -> ChangeId:
        """The change that wrote this version."""
        return self.recent_changes[0] if self.recent_changes else UNKNOWN_CHANGE

    def contains(self, version: int, change_id: ChangeId) -> bool:
        """Whether this row is that version or follows it, and its last change ids show it. A
        version without change id is taken by its number."""
        return self.may_contain(version, change_id) and (
            change_id == UNKNOWN_CHANGE or self.remembers(version)
        )

    def remembers(self, version: int) -> bool:
        """Whether the row has the change id of this version. Those of older versions are only in
        the messages."""
        return self.snapshot_version - version < len(self.recent_changes)

    def may_contain(self, version: int, change_id: ChangeId) -> bool:
        """Whether this row is that version or follows it, unless its last change ids show the
        opposite."""
        behind = self.snapshot_version - version
        if behind < 0:
            return False
        if change_id == UNKNOWN_CHANGE or behind >= len(self.recent_changes):
            return True
        return self.recent_changes[behind] in (change_id, UNKNOWN_CHANGE)

    def shares_past(self, version: int, changes: Sequence[ChangeId]) -> bool:
        """Whether this row can precede or follow the row with that version and those last
        changes."""
        behind = self.snapshot_version - version
        if behind >= 0:
            return all(map(eq, self.recent_changes[behind:], changes))
        return all(map(eq, self.recent_changes, changes[-behind:]))

    def follows(self, old: "Chat") -> bool:
        """Whether this row is the old one or a later state of it, and the last change ids show
        it."""
        return self.may_follow(old) and self.contains(old.snapshot_version, old.change_id)

    def may_follow(self, old: "Chat") -> bool:
        """Whether this row is the old one or a later state of it, unless the last change ids show
        the opposite."""
        return self.snapshot_version >= old.snapshot_version and self.shares_past(
            old.snapshot_version, old.recent_changes
        )


class Episode(Struct, frozen=True, order=True):
    """Names the live parts of one attempt at one step."""

    chat_id: ChatId
    history_version: int
    attempt: int

    @staticmethod
    def of(chat: Chat) -> "Episode":
        return Episode(chat.id, chat.history_version, chat.attempt)

    @staticmethod
    def kept_of(chat: Chat) -> "tuple[Episode, ...]":
        """The latest attempts at this step whose answers were not discarded, the newest last."""
        first = max(chat.discarded_attempt + 1, chat.attempt - MAX_KEPT_ATTEMPTS + 1, 1)
        return tuple(
            Episode(chat.id, chat.history_version, attempt)
            for attempt in range(first, chat.attempt + 1)
        )

    def is_kept(self, chat: Chat) -> bool:
        """Whether it is an attempt at the chat's step, and its answer was not discarded."""
        is_of_step = (self.chat_id, self.history_version) == (chat.id, chat.history_version)
        return is_of_step and self.attempt > chat.discarded_attempt


class Fence(Struct, frozen=True, kw_only=True):
    """What must still hold for a worker to write. The history version keeps a repeated commit
    from being applied twice. The version and its change keep a worker from continuing a past that
    the database has lost. Beyond the last change ids the other fields suffice: under one epoch
    only the owner changes the history."""

    worker_id: WorkerId
    epoch: int
    status: Literal["running", "interrupting"]
    history_version: int
    snapshot_version: int = 0
    change_id: ChangeId = UNKNOWN_CHANGE

    @staticmethod
    def of(chat: Chat) -> "Fence":
        if chat.worker_id is None or chat.status not in ("running", "interrupting"):
            raise StaleFence(f"Chat {chat.id} is not being worked on.")
        return Fence(
            worker_id=chat.worker_id,
            epoch=chat.epoch,
            status=chat.status,
            history_version=chat.history_version,
            snapshot_version=chat.snapshot_version,
            change_id=chat.change_id,
        )

    def check(self, chat: Chat) -> None:
        current = (chat.worker_id, chat.epoch, chat.status, chat.history_version)
        if current != (self.worker_id, self.epoch, self.status, self.history_version):
            raise StaleFence(f"Chat {chat.id} has moved on.")
        if not chat.may_contain(self.snapshot_version, self.change_id):
            raise StaleFence(f"Chat {chat.id} has another past: the database has lost changes.")


_HINT_KEYS = {
    "chat_id": "c",
    "owner_id": "o",
    "snapshot_version": "v",
    "history_version": "h",
    "queue_version": "q",
    "retry_version": "r",
    "attempt": "a",
    "status": "s",
    "worker_id": "w",
    "epoch": "e",
    "archived": "x",
    "delayed": "d",
    "kind": "k",
    "change_id": "i",
    "root_chat_id": "t",
}


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_HINT_KEYS):
    """The versions of one chat after a commit.

    `root_chat_id` is given for a subagent. `kind` ("created", "archived", "title", ...) is for chat
    lists. It and `status` are plain strings: during a deploy a newer replica may send values that
    this one does not know.
    """

    chat_id: ChatId
    owner_id: UserId
    snapshot_version: int
    history_version: int
    queue_version: int = 0
    retry_version: int = 0
    attempt: int = 0
    status: str
    worker_id: WorkerId | None = None
    epoch: int = 0
    archived: bool = False
    delayed: bool = False
    kind: str | None = None
    change_id: ChangeId = UNKNOWN_CHANGE
    root_chat_id: ChatId | None = None

    @staticmethod
    def of(chat: Chat, kind: str | None = None) -> "Hint":
        return Hint(
            chat_id=chat.id,
            owner_id=chat.owner_id,
            snapshot_version=chat.snapshot_version,
            history_version=chat.history_version,
            queue_version=chat.queue_version,
            retry_version=chat.retry_version,
            attempt=chat.attempt,
            status=chat.status,
            worker_id=chat.worker_id,
            epoch=chat.epoch,
            archived=chat.archived,
            delayed=chat.waits_for_retry or chat.is_suspended,
            kind=kind,
            change_id=chat.change_id,
            root_chat_id=None if chat.parent_chat_id is None else chat.root_chat_id,
        )

    @property
    def root_id(self) -> ChatId:
        return self.root_chat_id or self.chat_id

    @property
    def is_runnable(self) -> bool:
        """Whether it needs a worker now and has none: every worker with a free slot may try to
        acquire it. Heartbeats find the chats that wait for a retry."""
        is_active = self.status in ("running", "interrupting")
        return is_active and self.worker_id is None and not self.delayed


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Hint)


def encode_hint(hint: Hint) -> str:
    return _encoder.encode(hint).decode()


def decode_hint(payload: str) -> Hint | None:
    """None for an invalid payload: every database user can write to the channel."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
