"""Messages that are being written, by chat, and their files on the way to the server. They survive
a change of the chat and a restart."""

import asyncio
import hashlib
import io
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from textual.widget import Widget
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId, ModelConfigId
from chatd.domain.model.protocol import Effort
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

MAX_STORED_DRAFTS: Final = 40
"""How many drafts are kept on disk for one server; the oldest are dropped first."""
MAX_STORED_CHARS: Final = 200_000
NEW_CHAT: Final = "new"

AttachmentState = Literal["waiting", "uploading", "done", "failed"]


class Attachment(Struct, frozen=True, kw_only=True):
    """A file of a draft. `word` stands for it in the text: without the word it is not sent."""

    word: str
    name: str
    size: int = 0
    state: AttachmentState = "waiting"
    file_id: str = ""
    error: str = ""


class WrittenDraft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text with its files, and the choices for it. None: that of the chat, or the default."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    model_id: ModelConfigId | None = None
    effort: Effort | None = None
    is_plan: bool = False
    workspace_id: str = ""
    workspace_name: str = ""
    mcp_server_ids: tuple[str, ...] | None = None
    project_id: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()


def draft_key(chat_id: ChatId | None) -> str:
    return NEW_CHAT if chat_id is None else str(chat_id)


def state_directory(root: Path, server_url: str, workspace_id: str = "") -> Path:
    """File ids and the new chat belong to one server, and to the workspace of new chats."""
    key = f"{server_url} {workspace_id}" if workspace_id else server_url
    return root / "drafts" / hashlib.sha256(key.encode()).hexdigest()[:16]


class DraftStore:
    """One file for each draft, so that two terminals do not overwrite each other's. Without a
    directory drafts last as long as the terminal; so they do if the disk refuses. `new_chat` is
    what the draft of a new chat begins with."""

    def __init__(
        self,
        directory: Path | None,
        new_chat: WrittenDraft = WrittenDraft(),  # noqa: B008
    ) -> None:
        self._directory = directory
        self._new_chat = new_chat
        self._drafts: dict[str, WrittenDraft] = {}
        self._unsaved: set[str] = set()

    def read(self, key: str) -> WrittenDraft:
        if key not in self._drafts:
            self._drafts[key] = self._stored(key)
        return self._drafts[key]

    def change(self, key: str, change: Callable[[WrittenDraft], WrittenDraft]) -> WrittenDraft:
        before = self.read(key)
        after = change(before)
        if after != before:
            self._drafts[key] = after
            self._unsaved.add(key)
        return after

    def clear(self, key: str) -> None:
        """Clear what was written; the model stays chosen."""
        empty = self._empty(key)
        self.change(key, lambda was: replace(empty, model_id=was.model_id, effort=was.effort))
        self.save()

    def _empty(self, key: str) -> WrittenDraft:
        return self._new_chat if key == NEW_CHAT else WrittenDraft()

    def save(self) -> None:
        """Write what has changed since. Short and rare: at a pause in typing and at the end."""
        unsaved, self._unsaved = self._unsaved, set()
        for key in unsaved:
            with suppress(OSError):
                self._write(key, self._drafts[key])

    def _path(self, key: str) -> Path | None:
        return None if self._directory is None else self._directory / f"{key}.json"

    def _stored(self, key: str) -> WrittenDraft:
        path = self._path(key)
        if path is None:
            return self._empty(key)
        try:
            return msgspec.json.decode(path.read_bytes(), type=WrittenDraft)
        except (OSError, msgspec.MsgspecError):
            return self._empty(key)

    def _write(self, key: str, draft: WrittenDraft) -> None:
        path = self._path(key)
        if path is None:
            return
        kept = replace(
            draft, attachments=tuple(one for one in draft.attachments if one.state == "done")
        )
        if kept == self._empty(key) or len(kept.text) > MAX_STORED_CHARS:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(kept))
        new.replace(path)
        self._drop_oldest(path.parent)

    def _drop_oldest(self, directory: Path) -> None:
        files = sorted(directory.glob("*.json"), key=_changed_at)
        for path in files[:-MAX_STORED_DRAFTS]:
            path.unlink(missing_ok=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


UNKNOWN_TYPE: Final = "application/octet-stream"
"""The server finds out the type from the content."""
_NAME_CELLS: Final = 60


async def upload_mention(api: ServerApi, mention: Mention, path: Path) -> Attachment:
    """The file with its id, or with the reason why it is not attached. Never raises for a file."""
    name = safe_line(path.name, _NAME_CELLS) or "file"
    size, refusal = await asyncio.to_thread(check_file, path)
    empty = Attachment(word=mention.word, name=name, size=size)
    if refusal:
        return replace(empty, state="failed", error=refusal)
    try:
        with await asyncio.to_thread(_open, path) as file:
            return await _upload(api, empty, UNKNOWN_TYPE, file)
    except OSError as error:
        reason = f"It cannot be read: {reason_of(error)}."
        return replace(empty, state="failed", error=reason)


async def upload_bytes(
    api: ServerApi, word: str, name: str, media_type: str, data: bytes
) -> Attachment:
    empty = Attachment(word=word, name=name, size=len(data))
    return await _upload(api, empty, media_type, io.BytesIO(data))


async def _upload(api: ServerApi, empty: Attachment, media_type: str, file: BinaryIO) -> Attachment:
    try:
        stored = await api.upload_file(empty.name, media_type, file)
    except (ApiError, ServerUnreachable) as error:
        return replace(empty, state="failed", error=error.message)
    return replace(empty, size=stored.size_bytes, state="done", file_id=str(stored.id))


def _open(path: Path) -> BinaryIO:
    """Open without waiting, in case a pipe has taken the file's place since it was checked."""
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


class DraftFiles:
    """Uploads the files of the drafts in `store`, by the keys of these. They go on while another
    chat is open."""

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
        """Begin to upload a file, once however often it is named."""
        path = resolve(mention.path, self._machine.working_directory, self._machine.home)
        waiting = Attachment(word=mention.word, name=path.name, state="uploading")
        if self._add(key, waiting):
            self._run(key, mention.word, lambda: upload_mention(self._api, mention, path))

    def attach_text(self, key: str, word: str, name: str, text: str) -> None:
        self.attach_bytes(key, word, name, "text/plain", text.encode(errors="replace"))

    def attach_bytes(self, key: str, word: str, name: str, media_type: str, data: bytes) -> None:
        if self._add(key, Attachment(word=word, name=name, state="uploading")):
            self._run(key, word, lambda: upload_bytes(self._api, word, name, media_type, data))

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
        self._store.change(key, lambda was: replace(was, attachments=attachments))
        self._on_change()
