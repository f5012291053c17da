"""Sends what is written: to the open chat, to a new one, or in the place of a sent message."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.client.drafts import Draft, FileInput, InputPart
from chatd.client.outbox import Outbox
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.notices import ends_early
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, McpServerId, MessageId, QueueId, WorkspaceId
from chatd.terminal.composer.drafts import WrittenDraft
from chatd.terminal.composer.message_content import content_of

CONTINUE_TEXT: Final = "Continue."
CONTINUE_CUT_TEXT: Final = "Continue where you stopped."


class EditedMessage(Struct, frozen=True, kw_only=True):
    """A message of the history whose new text is being written; `kept` are its other parts."""

    message_id: MessageId
    kept: tuple[InputPart, ...] = ()


class EditedQueued(Struct, frozen=True, kw_only=True):
    """The same for a message of the queue."""

    queue_id: QueueId
    kept: tuple[InputPart, ...] = ()


Edited = EditedMessage | EditedQueued


def make_draft(written: WrittenDraft, text: str, behaviour: WhenBusy, *, is_new: bool) -> Draft:
    """What the outbox sends. Mode, workspace and MCP servers are chosen with a new chat; those of
    a chat that exists are its own."""
    return Draft(
        content=content_of(text, written.attachments),
        busy_behavior=behaviour,
        model_config_id=written.model_id,
        reasoning_effort=written.effort,
        mode="plan" if is_new and written.is_plan else None,
        workspace_id=_workspace(written) if is_new else None,
        mcp_server_ids=_servers(written) if is_new else None,
    )


def _workspace(written: WrittenDraft) -> WorkspaceId | None:
    return WorkspaceId(UUID(written.workspace_id)) if written.workspace_id else None


def _servers(written: WrittenDraft) -> tuple[McpServerId, ...] | None:
    ids = written.mcp_server_ids
    return None if ids is None else tuple(McpServerId(UUID(one)) for one in ids)


def edit_choice(written: WrittenDraft) -> Mapping[str, object]:
    """With which model an edited message runs; without one as before."""
    choice: dict[str, object] = {}
    if written.model_id is not None:
        choice["model_config_id"] = written.model_id
    if written.effort is not None:
        choice["reasoning_effort"] = written.effort
    return choice


def last_user_message(messages: tuple[PublicMessage, ...]) -> PublicMessage | None:
    return next((one for one in reversed(messages) if one.role == "user"), None)


class RunAgain(Struct, frozen=True):
    """The last message has no answer: it is sent in its own place."""

    message: PublicMessage


class SayContinue(Struct, frozen=True):
    text: str


class ResumeQueue(Struct, frozen=True):
    pass


def how_to_continue(
    status: PublicStatus, messages: tuple[PublicMessage, ...], queued: int
) -> RunAgain | SayContinue | ResumeQueue | None:
    """As the page's «Try again», «Continue» and «Resume» do. None: there is nothing to continue."""
    if status not in ("waiting", "error"):
        return None
    if queued > 0:
        return ResumeQueue()
    newest = messages[-1] if messages else None
    last = next((one for one in reversed(messages) if one.role != "system"), None)
    if newest is None or last is None:
        return None
    if status == "waiting" and ends_early(newest):
        return SayContinue(CONTINUE_CUT_TEXT)
    if last.role == "user":
        return RunAgain(last) if status == "error" else None
    if status == "error":
        return SayContinue(CONTINUE_TEXT)
    is_cut = last.finish_reason in ("length", "error", None)
    return SayContinue(CONTINUE_CUT_TEXT) if is_cut else None


def refused_sends(outbox: Outbox, chat_id: ChatId) -> list[str]:
    """Their keys, oldest first."""
    return [one.key for one in outbox.unsent if one.chat_id == chat_id and one.state == "refused"]


def has_files(content: tuple[InputPart, ...]) -> bool:
    return any(isinstance(part, FileInput) for part in content)
