"""The JSON of a workspace agent's API: requests, replies and refusals. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, MessageId
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    FileDiff,
    FileEdits,
    ProcessInfo,
    RepositoryDiff,
    ScopedDiff,
)
from chatd.workspaces.agents.session import AgentResponse

T = TypeVar("T")

EPOCH_HEADER: Final = "Chatd-Epoch"
MAX_ERROR_CHARS: Final = 16 * 1024
"""Of an agent's error message, which the model reads."""
KNOWN_ERROR_CODES: Final = frozenset(
    {
        "agent_rebooted",
        "bad_mac",
        "bug",
        "busy",
        "clock_skew",
        "context_not_ready",
        "disk_busy",
        "disk_timeout",
        "input_unread",
        "key_reused",
        "no_resources",
        "no_route",
        "no_shell",
        "no_such_terminal",
        "no_such_workdir",
        "no_terminal",
        "not_noted",
        "not_reverted",
        "not_running",
        "outcome_unknown",
        "outside_workspace",
        "replayed",
        "result_not_kept",
        "stale_epoch",
        "terminal_ended",
        "too_many_processes",
        "too_many_terminals",
        "unsigned",
        "wrong_agent",
    }
)
"""Failures are counted by code. Other codes are dropped, so that a workspace cannot create an
unbounded number of counters."""


UNKNOWN_OUTCOME_TEXT: Final = (
    "The outcome of this call is unknown: it may have taken effect. Once the workspace answers"
    " again, check that before you repeat the call."
)


class OutcomeUnknown(AgentRefused):
    """A request with an effect may have reached the agent, and chatd has no reply that it can
    read."""

    def __init__(self, reason: ChatdError) -> None:
        text = f"{reason.message} {UNKNOWN_OUTCOME_TEXT}"
        super().__init__(text, status=0, code="outcome_unknown")


class _DirectoryEntry(Struct, frozen=True, kw_only=True):
    name: str
    is_dir: bool


class DirectoryBody(Struct, frozen=True, kw_only=True):
    contents: tuple[_DirectoryEntry, ...]


class PathBody(Struct, frozen=True, kw_only=True):
    path: str


class AgentHello(Struct, frozen=True, kw_only=True):
    """The reply to a health check."""

    agent_id: str
    boot_id: str
    version: str = ""
    started_at: int = 0
    ready: bool = False
    directory: str = ""


class OwnerUnproven(AgentRefused):
    """The agent knows another owner of the chat, or none, and has done nothing. `fence` is the mark
    that a proof of ownership must name."""

    def __init__(self, message: str, fence: str) -> None:
        super().__init__(message, status=409, code="stale_epoch")
        self.fence = fence


class ChatIdentity(Struct, frozen=True, kw_only=True):
    """The chat that a request acts for, the epoch of its worker, and the message that began the
    turn: before its first effect the agent keeps the trees as they are."""

    chat_id: ChatId
    ancestors: tuple[ChatId, ...] = ()
    epoch: int = 0
    turn: MessageId | None = None

    def headers(self) -> dict[str, str]:
        headers = {"Chatd-Chat-Id": str(self.chat_id), EPOCH_HEADER: str(self.epoch)}
        if self.turn is not None:
            headers["Chatd-Turn"] = str(self.turn)
        if self.ancestors:
            names = [str(chat_id) for chat_id in self.ancestors]
            headers["Chatd-Ancestor-Chat-Ids"] = msgspec.json.encode(names).decode()
        return headers


class AgentErrorBody(Struct, frozen=True, kw_only=True):
    message: str = ""
    code: str | None = None
    fence: str = ""


class ScopedDiffsBody(Struct, frozen=True, kw_only=True):
    repositories: tuple[ScopedDiff, ...] = ()


class DiffsBody(Struct, frozen=True, kw_only=True):
    files: tuple[FileDiff, ...] = ()


class McpCallBody(Struct, frozen=True, kw_only=True):
    """`running`: the call goes on, and the same request asks again for its result."""

    running: bool = False
    result: Raw = Raw(b"{}")


class ProcessesBody(Struct, frozen=True, kw_only=True):
    processes: tuple[ProcessInfo, ...] = ()


class EditsBody(Struct, frozen=True, kw_only=True):
    files: tuple[FileEdits, ...]
    include_diff: bool = True


class StartProcessBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: str
    workdir: str | None = None
    env: Mapping[str, str] = {}
    background: bool = False


class GitEvent(Struct, frozen=True, kw_only=True):
    type: str
    scanned_at: str = ""
    repositories: tuple[RepositoryDiff, ...] = ()


def check_status(response: AgentResponse) -> bytes:
    """The body of a reply with status 200. Raises AgentRefused for every other status."""
    if response.status == 200:
        return response.body
    try:
        error = msgspec.json.decode(response.body, type=AgentErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = AgentErrorBody()
    message = error.message or f"the workspace agent refused with status {response.status}"
    if len(message) > MAX_ERROR_CHARS:
        message = f"{message[:MAX_ERROR_CHARS]} [cut]"
    if error.code == "stale_epoch" and error.fence:
        raise OwnerUnproven(message, error.fence)
    code = error.code if error.code in KNOWN_ERROR_CODES else None
    raise AgentRefused(message, status=response.status, code=code)


def decode_effect_reply(raw: bytes, type_: type[T]) -> T:
    """Raises OutcomeUnknown: the effect has happened, and what the agent says of it is lost."""
    try:
        return decode_reply(raw, type_)
    except AgentUnreachable as error:
        raise OutcomeUnknown(error) from error


def decode_reply(raw: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")
