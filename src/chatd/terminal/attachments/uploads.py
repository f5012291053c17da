"""Sends files of this machine, and long pasted texts, to the server."""

import asyncio
import io
import os
from pathlib import Path
from typing import BinaryIO, Final

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import StoredFile
from chatd.client.server import ServerApi
from chatd.terminal.attachments.local_files import Mention, check_file, reason_of
from chatd.terminal.composer.drafts import Attachment
from chatd.terminal.safe_text import safe_line

UNKNOWN_TYPE: Final = "application/octet-stream"
"""The server tells the type by the content."""
_NAME_CELLS: Final = 60


async def upload_mention(api: ServerApi, mention: Mention, path: Path) -> Attachment:
    """The file with its id, or with the reason why it is not attached. Never raises for a file."""
    name = safe_line(path.name, _NAME_CELLS) or "file"
    size, refusal = await asyncio.to_thread(check_file, path)
    empty = Attachment(word=mention.word, name=name, size=size)
    if refusal:
        return _failed(empty, refusal)
    try:
        with await asyncio.to_thread(_open, path) as file:
            return await _upload(api, empty, UNKNOWN_TYPE, file)
    except OSError as error:
        return _failed(empty, f"It cannot be read: {reason_of(error)}.")


async def upload_text(api: ServerApi, word: str, name: str, text: str) -> Attachment:
    data = text.encode(errors="replace")
    empty = Attachment(word=word, name=name, size=len(data))
    return await _upload(api, empty, "text/plain", io.BytesIO(data))


async def _upload(api: ServerApi, empty: Attachment, media_type: str, file: BinaryIO) -> Attachment:
    try:
        stored = await api.upload("/files", empty.name, media_type, file, StoredFile)
    except (ApiError, ServerUnreachable) as error:
        return _failed(empty, error.message)
    return Attachment(
        word=empty.word,
        name=empty.name,
        size=stored.size_bytes,
        state="done",
        file_id=str(stored.id),
    )


def _open(path: Path) -> BinaryIO:
    """Without waiting, should a pipe have taken the file's place since it was checked."""
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _failed(attachment: Attachment, reason: str) -> Attachment:
    return Attachment(
        word=attachment.word,
        name=attachment.name,
        size=attachment.size,
        state="failed",
        error=reason,
    )
