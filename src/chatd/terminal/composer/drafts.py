"""Messages that are being written, by chat. They survive a change of the chat and a restart."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.ids import ChatId, ModelConfigId
from chatd.domain.model.protocol import Effort

MAX_STORED_DRAFTS: Final = 40
"""Drafts kept on disk for one server; the oldest go first."""
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

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()


def draft_key(chat_id: ChatId | None) -> str:
    return NEW_CHAT if chat_id is None else str(chat_id)


def state_directory(root: Path, server_url: str) -> Path:
    """File ids and the new chat belong to one server."""
    return root / "drafts" / hashlib.sha256(server_url.encode()).hexdigest()[:16]


class DraftStore:
    """One file for each draft, so that two terminals do not overwrite each other's. Without a
    directory drafts last as long as the terminal; so they do if the disk refuses."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
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
        """What was written is gone; the model stays chosen."""
        self.change(key, lambda was: WrittenDraft(model_id=was.model_id, effort=was.effort))
        self.save()

    def save(self) -> None:
        """Writes what has changed since. Short and rare: at a pause in typing and at the end."""
        unsaved, self._unsaved = self._unsaved, set()
        for key in unsaved:
            with suppress(OSError):
                self._write(key, self._drafts[key])

    def _path(self, key: str) -> Path | None:
        return None if self._directory is None else self._directory / f"{key}.json"

    def _stored(self, key: str) -> WrittenDraft:
        path = self._path(key)
        if path is None:
            return WrittenDraft()
        try:
            return msgspec.json.decode(path.read_bytes(), type=WrittenDraft)
        except (OSError, msgspec.MsgspecError):
            return WrittenDraft()

    def _write(self, key: str, draft: WrittenDraft) -> None:
        path = self._path(key)
        if path is None:
            return
        kept = msgspec.structs.replace(
            draft, attachments=tuple(one for one in draft.attachments if one.state == "done")
        )
        if kept == WrittenDraft() or len(kept.text) > MAX_STORED_CHARS:
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
