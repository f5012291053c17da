"""The content of a message from its draft, the draft that a message came from, and how a chat goes
on."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.drafts import (
    CommandInput,
    Draft,
    EditBody,
    FileInput,
    FileReferenceInput,
    InputPart,
    TextInput,
)
from chatd.client.state import ShownChat
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.messages import PublicMessage, ends_early
from chatd.domain.chat.parts import (
    CommandPart,
    FilePart,
    FileReferencePart,
    KnownPart,
    TextPart,
    UnknownPart,
)
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import FileId, McpServerId, ProjectId, WorkspaceId
from chatd.terminal.composer.drafts import Attachment, WrittenDraft
from chatd.terminal.composer.text_box import MAX_TEXT_CHARS
from chatd.terminal.session import Session

CONTINUE_TEXT: Final = "Continue."
NOTHING_TO_CONTINUE: Final = "The chat waits for your message: there is nothing to continue."
CONTINUE_CUT_TEXT: Final = "Continue where you stopped."


def content_of(
    text: str, attachments: Sequence[Attachment], kept: Sequence[InputPart] = ()
) -> tuple[InputPart, ...]:
    """What the message is about first, then what it says. `kept` are parts of an edited message
    that the text box cannot show. A command is alone."""
    if command := command_in(text):
        return (CommandInput(command),)
    text = text.removeprefix("\\") if text.startswith("\\!") else text
    files = tuple(
        FileInput(FileId(UUID(one.file_id))) for one in attachments if one.state == "done"
    )
    words = (TextInput(text),) if text.strip() else ()
    return (*kept, *files, *words)


def command_in(text: str) -> str:
    """The command of a text that begins with an exclamation mark; empty: it is a message. With a
    backslash before it the mark is sent."""
    return text[1:].strip() if text.startswith("!") else ""


class SentContent(Struct, frozen=True):
    """A message as it can be edited: its text, and the other parts, which stay."""

    text: str
    kept: tuple[InputPart, ...]


def read_content(parts: Sequence[KnownPart | UnknownPart | InputPart]) -> SentContent:
    """Leaves out parts that cannot be sent again."""
    texts: list[str] = []
    kept: list[InputPart] = []
    for part in parts:
        match part:
            case TextPart() | TextInput():
                texts.append(part.text)
            case CommandPart() | CommandInput():
                texts.append(f"!{part.command}")
            case FilePart(file_id=str() as file_id):
                kept.append(FileInput(FileId(UUID(file_id))))
            case FileReferencePart() | FileReferenceInput():
                kept.append(
                    FileReferenceInput(
                        file_name=part.file_name,
                        start_line=part.start_line,
                        end_line=part.end_line,
                        content=part.content,
                    )
                )
            case FileInput():
                kept.append(part)
            case _:
                continue
    return SentContent("\n\n".join(texts), tuple(kept))


def refusal_of_text(text: str) -> str:
    """Why a text cannot be sent; empty: it can."""
    if len(text) <= MAX_TEXT_CHARS:
        return ""
    return (
        f"The message has {len(text):,} characters; {MAX_TEXT_CHARS:,} are possible. Put a part"
        " into a file and attach it with @path."
    )


def refusal_of_files(attachments: Sequence[Attachment], text: str) -> str:
    if attachments and command_in(text):
        return "A command takes no files. Remove them, or write a message."
    failed = [one for one in attachments if one.state == "failed"]
    if failed:
        return f"{failed[0].name} is not attached: {failed[0].error} Remove {failed[0].word}."
    if any(one.state != "done" for one in attachments):
        return "Wait until the files are uploaded."
    return ""


def make_draft(written: WrittenDraft, text: str, behaviour: WhenBusy, *, is_new: bool) -> Draft:
    """What the outbox sends. Mode, workspace and MCP servers are chosen with a new chat; those of
    a chat that exists are its own."""
    servers = written.mcp_server_ids if is_new else None
    return Draft(
        content=content_of(text, written.attachments),
        busy_behavior=behaviour,
        model_config_id=written.model_id,
        reasoning_effort=written.effort,
        mode="plan" if is_new and written.is_plan else None,
        workspace_id=WorkspaceId(UUID(place))
        if is_new and (place := written.workspace_id)
        else None,
        project_id=ProjectId(UUID(project)) if is_new and (project := written.project_id) else None,
        mcp_server_ids=None
        if servers is None
        else tuple(McpServerId(UUID(one)) for one in servers),
    )


def edit_body(written: WrittenDraft, content: tuple[InputPart, ...]) -> EditBody:
    """The edit with the chosen model; without one it runs with the same model as before."""
    return EditBody(
        content=content,
        model_config_id=written.model_id,
        reasoning_effort=written.effort,
    )


async def continue_chat(session: Session, chat: ShownChat, written: WrittenDraft) -> bool:
    """Go on after an error, a cut answer or a held queue, with the model of the draft. As the
    page's «Try again», «Continue» and «Resume» do. False: there is nothing to continue.

    Raises ApiError, ServerUnreachable and OutboxFull."""
    match how_to_continue(chat.status, chat.messages, len(chat.queue)):
        case None:
            return False
        case "resume":
            await session.api.resume_chat(chat.chat_id)
        case str() as text:
            draft = make_draft(replace(written, attachments=()), text, "queue", is_new=False)
            session.outbox.send(chat.chat_id, draft)
        case PublicMessage() as message:
            found = read_content(message.content)
            edit = edit_body(written, content_of(found.text, (), found.kept))
            await session.api.edit_message(chat.chat_id, message.id, edit)
    return True


def how_to_continue(
    status: PublicStatus, messages: tuple[PublicMessage, ...], queued: int
) -> PublicMessage | str | None:
    """The message that runs again because nothing answered it; `resume` for a held queue; or what
    is said to the model."""
    if status not in ("waiting", "error"):
        return None
    if queued > 0:
        return "resume"
    newest = messages[-1] if messages else None
    last = next((one for one in reversed(messages) if one.role != "system"), None)
    if newest is None or last is None:
        return None
    if status == "waiting" and ends_early(newest):
        return CONTINUE_CUT_TEXT
    if last.role == "user":
        return last if status == "error" else None
    if status == "error":
        return CONTINUE_TEXT
    return CONTINUE_CUT_TEXT if last.finish_reason in ("length", "error", None) else None
