"""What the API takes: messages that a user writes, changes of a chat, answers to calls."""

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType, convert
from msgspec.structs import replace

from chatd.domain.chat.call_waits import QuestionReply
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.ids import (
    ChatId,
    FileId,
    McpServerId,
    ModelConfigId,
    ProjectId,
    ToolCallId,
    WorkspaceId,
)
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice
from chatd.domain.tool_policy.rules import ToolRule

Decision = Literal["approve", "deny", "answer"]


class TextInput(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class FileInput(Struct, frozen=True, tag_field="type", tag="file"):
    """An uploaded file."""

    file_id: FileId


class FileReferenceInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="file-reference"):
    """Quoted lines of a file."""

    file_name: str
    start_line: int
    end_line: int
    content: str


class CommandInput(Struct, frozen=True, tag_field="type", tag="command"):
    """A command that runs in the chat's workspace; the only part of its message."""

    command: str


InputPart = TextInput | FileInput | FileReferenceInput | CommandInput


class Draft(Struct, frozen=True, kw_only=True):
    """A message, and what it changes about its chat. The last six are for a new chat only."""

    content: tuple[InputPart, ...]
    busy_behavior: WhenBusy = "queue"
    model: str | None = None
    model_config_id: ModelConfigId | None = None
    reasoning_effort: Effort | None = None
    mode: ModeChoice | None = None
    mcp_server_ids: tuple[McpServerId, ...] | None = None
    system_prompt: str | None = None
    labels: Mapping[str, str] = {}
    workspace_id: WorkspaceId | None = None
    max_cost_micros: int | None = None
    tool_rules: tuple[ToolRule, ...] = ()
    project_id: ProjectId | None = None


class SendBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /chats/{id}/messages`."""

    content: tuple[InputPart, ...]
    busy_behavior: WhenBusy = "queue"
    model: str | None = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    mode: ModeChoice | None = None
    mcp_server_ids: tuple[UUID, ...] | None = None


class CreateBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /chats`."""

    content: tuple[InputPart, ...]
    model: str | None = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    mode: Literal["plan"] | None = None
    mcp_server_ids: tuple[UUID, ...] | None = None
    system_prompt: str | None = None
    labels: Mapping[str, str] = {}
    workspace_id: UUID | None = None
    max_cost_micros: int | None = None
    tool_rules: tuple[ToolRule, ...] = ()
    project_id: UUID | None = None


def send_body(draft: Draft) -> SendBody:
    """The body must not change between tries: the key belongs to it."""
    return convert(draft, SendBody, from_attributes=True)


def create_body(draft: Draft) -> CreateBody:
    mode = None if draft.mode == "off" else draft.mode
    return convert(replace(draft, mode=mode), CreateBody, from_attributes=True)


class EditBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `PATCH /chats/{id}/messages/{id}`."""

    content: tuple[InputPart, ...]
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    mode: ModeChoice | None = None


class ChatChange(Struct, frozen=True, kw_only=True):
    """Body of `PATCH /chats/{id}`: what is set changes. A `pin_order` of 0 unpins the chat;
    `mcp_server_ids` None selects those that are on by default, `project_id` None no project."""

    title: str | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    pin_order: int | UnsetType = UNSET
    workspace_id: WorkspaceId | UnsetType | None = UNSET
    mcp_server_ids: Sequence[McpServerId] | UnsetType | None = UNSET
    project_id: ProjectId | UnsetType | None = UNSET
    mode: ModeChoice | UnsetType = UNSET


class CallAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one call that waits, of `POST /chats/{id}/answers`."""

    tool_call_id: ToolCallId
    decision: Decision
    reason: str = ""
    always: bool = False
    rule_args: Mapping[str, str] | None = None
    replies: tuple[QuestionReply, ...] = ()


SendState = Literal["waiting", "sending", "sent", "refused"]


class SendProblem(Struct, frozen=True, kw_only=True):
    """Why a message waits, or was refused. `code` is the server's, or `unreachable`."""

    code: str
    message: str


class PendingSend(Struct, frozen=True, kw_only=True):
    """A message on its way. `waiting`: for its turn, for the server or for the next try. `sent`:
    the server has it, and the events of `version` have not arrived yet. `refused`: the user
    decides. `key` is its Idempotency-Key and names it here. A new chat has no id before `sent`."""

    key: str
    chat_id: ChatId | None
    draft: Draft
    state: SendState = "waiting"
    failures: int = 0
    problem: SendProblem | None = None
    version: int | None = None

    def has_arrived(self, version: int) -> bool:
        return self.state == "sent" and self.version is not None and self.version <= version
