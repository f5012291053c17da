"""The words of a workspace agent's API: what is sent, what comes back, and how a refusal is read.

Pure: asking is the client's business.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    FileDiff,
    FileEdits,
    ProcessInfo,
    RepositoryDiff,
)
from chatd.workspaces.asking import Answer

T = TypeVar("T")

MAX_WORDS: Final = 16 * 1024
"""Of a refusal, which is read by a model."""
CODES: Final = frozenset(
    {
        "agent_rebooted",
        "bad_mac",
        "bug",
        "busy",
        "clock_skew",
        "context_not_ready",
        "disk_busy",
        "disk_timeout",
        "key_reused",
        "no_resources",
        "no_route",
        "no_shell",
        "no_such_workdir",
        "not_noted",
        "not_running",
        "outcome_unknown",
        "replayed",
        "result_not_kept",
        "stale_epoch",
        "too_many_processes",
        "unsigned",
        "wrong_agent",
    }
)
"""Failures are counted by their codes: whoever is in a workspace must not make up new ones."""


class Hello(Struct, frozen=True, kw_only=True):
    """What an agent says of itself when it is greeted."""

    agent_id: str
    boot_id: str
    version: str = ""
    started_at: int = 0
    ready: bool = False
    directory: str = ""


class OnBehalf(Struct, frozen=True, kw_only=True):
    """The chat for which an agent is asked. The epoch says which owner of the chat asks: a later
    one shuts out those before it."""

    chat_id: ChatId
    ancestors: tuple[ChatId, ...] = ()
    epoch: int = 0

    def headers(self) -> dict[str, str]:
        headers = {"Chatd-Chat-Id": str(self.chat_id), "Chatd-Epoch": str(self.epoch)}
        if self.ancestors:
            names = [str(chat_id) for chat_id in self.ancestors]
            headers["Chatd-Ancestor-Chat-Ids"] = msgspec.json.encode(names).decode()
        return headers


class Failure(Struct, frozen=True, kw_only=True):
    message: str = ""
    code: str | None = None


class Diffs(Struct, frozen=True, kw_only=True):
    files: tuple[FileDiff, ...] = ()


class Processes(Struct, frozen=True, kw_only=True):
    processes: tuple[ProcessInfo, ...] = ()


class Edits(Struct, frozen=True, kw_only=True):
    files: tuple[FileEdits, ...]
    include_diff: bool = True


class Start(Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: str
    workdir: str | None = None
    env: Mapping[str, str] = {}
    background: bool = False


class GitEvent(Struct, frozen=True, kw_only=True):
    type: str
    scanned_at: str = ""
    repositories: tuple[RepositoryDiff, ...] = ()


def accepted(answer: Answer) -> bytes:
    if answer.status == 200:
        return answer.body
    try:
        failure = msgspec.json.decode(answer.body, type=Failure)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        failure = Failure()
    message = failure.message or f"the workspace agent has refused with status {answer.status}"
    if len(message) > MAX_WORDS:
        message = f"{message[:MAX_WORDS]} [cut]"
    code = failure.code if failure.code in CODES else None
    raise AgentRefused(message, status=answer.status, code=code)


def decode(raw: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    raise AgentUnreachable("The workspace agent gives answers that cannot be read.")
