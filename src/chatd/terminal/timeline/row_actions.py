"""What a person does to a row: try again, go on, discard, edit, fork. Requests of the timeline."""

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Final
from uuid import UUID

from chatd.client.connection import FollowedChat
from chatd.client.drafts import (
    Draft,
    FileInput,
    FileReferenceInput,
    InputPart,
    PendingSend,
    TextInput,
)
from chatd.client.resources import Chat
from chatd.client.server import new_key
from chatd.domain.chat.parts import FilePart, FileReferencePart, TextPart
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.ids import ChatId, FileId
from chatd.terminal.session import Session
from chatd.terminal.timeline.rows.row import (
    FailedRow,
    HeldRow,
    MarkRow,
    NoteRow,
    NoticeMark,
    PendingNote,
    Row,
    UserRow,
)

CONTINUE_TEXT: Final = "Continue where you stopped."


class RowActions:
    """Everything that asks the server raises ApiError and ServerUnreachable."""

    def __init__(self, session: Session, chat: FollowedChat) -> None:
        self._session = session
        self._chat = chat

    @property
    def chat_id(self) -> ChatId:
        return self._chat.chat_id

    async def try_again(self, row: Row) -> bool:
        """What `r` does for this row. False: it has nothing to try again."""
        match row:
            case UserRow(pending=PendingNote(id=key)):
                return self._session.outbox.retry(key) is not None
            case FailedRow():
                await self._run_again()
            case HeldRow():
                await self._post("/resume")
            case (
                NoteRow(can_continue=True, note="length" | "error")
                | MarkRow(mark=NoticeMark(can_continue=True))
            ):
                self._send(CONTINUE_TEXT)
            case _:
                return False
        return True

    def discard(self, row: Row) -> bool:
        match row:
            case UserRow(pending=PendingNote(id=key)):
                return self._session.outbox.dismiss(key) is not None
            case _:
                return False

    async def fork(self, message_id: int) -> ChatId:
        path = f"/chats/{self._chat.chat_id}/fork"
        body = {"message_id": message_id}
        return (await self._session.api.post(path, body, Chat, key=new_key())).id

    async def _run_again(self) -> None:
        """The last message runs again if nothing answered it; else the model is to go on."""
        said = (one for one in reversed(self._chat.shown.messages) if one.role != "system")
        last = next(said, None)
        if last is None or last.role != "user" or self._chat.shown.queue:
            self._send("Continue.")
            return
        path = f"/chats/{self._chat.chat_id}/messages/{last.id}"
        body = {"content": tuple(input_parts(last))}
        await self._session.api.patch(path, body, object, key=new_key())

    async def _post(self, path: str) -> None:
        await self._session.api.post(f"/chats/{self._chat.chat_id}{path}", None, NoneType)

    def _send(self, text: str) -> None:
        self._session.outbox.send(self._chat.chat_id, Draft(content=(TextInput(text),)))


def input_parts(message: PublicMessage) -> Iterator[InputPart]:
    """The content of a user's message, as it is sent again."""
    for part in message.content:
        match part:
            case TextPart(text=text):
                yield TextInput(text)
            case FilePart(file_id=str() as file_id):
                yield FileInput(FileId(UUID(file_id)))
            case FileReferencePart():
                yield FileReferenceInput(
                    file_name=part.file_name,
                    start_line=part.start_line,
                    end_line=part.end_line,
                    content=part.content,
                )
            case _:
                pass


def pending_rows(pending: Sequence[PendingSend], *, is_busy: bool) -> list[UserRow]:
    """Messages on their way. Those that a busy chat takes go to its queue, which shows them."""
    return [
        _pending_row(item)
        for item in pending
        if not is_busy or item.state == "refused" or item.problem is not None
    ]


def _pending_row(item: PendingSend) -> UserRow:
    parts = item.draft.content
    problem = "" if item.problem is None else item.problem.message
    return UserRow(
        key=f"send-{item.key}",
        text="\n\n".join(part.text for part in parts if isinstance(part, TextInput)),
        files=tuple(
            FilePart(media_type="", name="file") for part in parts if isinstance(part, FileInput)
        ),
        references=tuple(
            FileReferencePart(
                file_name=part.file_name,
                start_line=part.start_line,
                end_line=part.end_line,
                content=part.content,
            )
            for part in parts
            if isinstance(part, FileReferenceInput)
        ),
        pending=PendingNote(
            id=item.key,
            is_kept=item.problem is not None and item.state != "refused",
            refusal=problem if item.state == "refused" else "",
        ),
    )
