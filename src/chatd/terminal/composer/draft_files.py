"""Sends files of this machine, and long pasted texts, to the server."""

import asyncio
import io
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace
from textual.widget import Widget
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.terminal.composer.drafts import Attachment, DraftStore, WrittenDraft
from chatd.terminal.composer.local_files import (
    MAX_MESSAGE_FILES,
    Mention,
    check_file,
    existing_mentions,
    reason_of,
    resolve,
)
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import Machine

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
        stored = await api.upload_file(empty.name, media_type, file)
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


# The files of drafts on their way to the server. A draft shows how far they are; they go on while
# another chat is open.


class DraftFiles:
    """Of the drafts in `store`, by the keys of these."""

    def __init__(
        self,
        host: Widget,
        api: ServerApi,
        machine: Machine,
        store: DraftStore,
        on_change: Callable[[], None],
    ) -> None:
        self._host = host
        self._api = api
        self._machine = machine
        self._store = store
        self._on_change = on_change
        self._running: dict[tuple[str, str], Worker[None]] = {}

    def attach(self, key: str, mention: Mention) -> None:
        """Begins to upload a file; once, however often it is named."""
        path = resolve(mention.path, self._machine.working_directory, self._machine.home)
        waiting = Attachment(word=mention.word, name=path.name, state="uploading")
        if self._add(key, waiting):
            self._run(key, mention.word, lambda: upload_mention(self._api, mention, path))

    def attach_text(self, key: str, word: str, name: str, text: str) -> None:
        if self._add(key, Attachment(word=word, name=name, state="uploading")):
            self._run(key, word, lambda: upload_text(self._api, word, name, text))

    def drop_unnamed(self, key: str, text: str) -> None:
        """A file whose word was deleted from the text is not sent."""
        for one in self._store.read(key).attachments:
            if one.word not in text:
                self._remove(key, one.word)

    async def find_unattached(self, key: str, text: str) -> tuple[Mention, ...]:
        """Files of this machine that the text names and that are not attached, or could not be. The
        text may be pasted, recalled or somebody else's."""
        found = await asyncio.to_thread(
            existing_mentions, text, self._machine.working_directory, self._machine.home
        )
        attached = self._store.read(key).attachments
        known = {one.word for one in attached if one.state != "failed"}
        return tuple(one for one in found if one.word not in known)

    async def attach_all(self, key: str, mentions: Sequence[Mention]) -> None:
        """These are attached, or say why they are not; all of the draft have arrived then."""
        for mention in mentions:
            self.attach(key, mention)
        for worker in [one for at, one in self._running.items() if at[0] == key]:
            try:
                await worker.wait()
            except (WorkerFailed, WorkerCancelled):
                continue

    def _add(self, key: str, attachment: Attachment) -> bool:
        known = self._store.read(key).attachments
        if any(one.word == attachment.word and one.state != "failed" for one in known):
            return False
        others = tuple(one for one in known if one.word != attachment.word)
        if len(others) >= MAX_MESSAGE_FILES:
            reason = f"A message can have {MAX_MESSAGE_FILES} files."
            failed = replace(attachment, state="failed", error=reason)
            self._put(key, (*others, failed))
            return False
        self._put(key, (*others, attachment))
        return True

    def _run(self, key: str, word: str, upload: Callable[[], Awaitable[Attachment]]) -> None:
        async def run() -> None:
            try:
                done = await upload()
            finally:
                self._running.pop((key, word), None)
            known = self._store.read(key).attachments
            self._put(key, tuple(done if one.word == word else one for one in known))

        self._running[key, word] = self._host.run_worker(run, group="uploads")

    def _remove(self, key: str, word: str) -> None:
        if (worker := self._running.pop((key, word), None)) is not None:
            worker.cancel()
        known = self._store.read(key).attachments
        self._put(key, tuple(one for one in known if one.word != word))

    def _put(self, key: str, attachments: tuple[Attachment, ...]) -> None:
        self._store.change(key, lambda was: _with_files(was, attachments))
        self._on_change()


def _with_files(draft: WrittenDraft, attachments: tuple[Attachment, ...]) -> WrittenDraft:
    return replace(draft, attachments=attachments)
