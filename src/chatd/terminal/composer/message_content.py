"""The parts of a message from its draft, and the draft that a message came from. Pure."""

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct

from chatd.client.drafts import (
    FileInput,
    FileReferenceInput,
    InputPart,
    TextInput,
)
from chatd.domain.chat.parts import FilePart, FileReferencePart, KnownPart, TextPart, UnknownPart
from chatd.domain.ids import FileId
from chatd.terminal.attachments.pasted_text import MAX_TEXT_CHARS
from chatd.terminal.composer.drafts import Attachment


def content_of(
    text: str, attachments: Sequence[Attachment], kept: Sequence[InputPart] = ()
) -> tuple[InputPart, ...]:
    """What the message is about first, then what it says. `kept` are parts of an edited message
    that the text box cannot show."""
    files = tuple(
        FileInput(FileId(UUID(one.file_id))) for one in attachments if one.state == "done"
    )
    words = (TextInput(text),) if text.strip() else ()
    return (*kept, *files, *words)


class SentContent(Struct, frozen=True):
    """A message as it can be edited: its text, and the other parts, which stay."""

    text: str
    kept: tuple[InputPart, ...]


def read_content(parts: Sequence[KnownPart | UnknownPart | InputPart]) -> SentContent:
    """Parts that cannot be sent again are left out."""
    texts: list[str] = []
    kept: list[InputPart] = []
    for part in parts:
        match part:
            case TextPart() | TextInput():
                texts.append(part.text)
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


def refusal_of_files(attachments: Sequence[Attachment]) -> str:
    failed = [one for one in attachments if one.state == "failed"]
    if failed:
        return f"{failed[0].name} is not attached: {failed[0].error} Remove {failed[0].word}."
    if any(one.state != "done" for one in attachments):
        return "Wait until the files are uploaded."
    return ""
