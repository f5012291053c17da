"""What a person does to a chat and to its queue: one request each. All raise ApiError and
ServerUnreachable; events of the chat show the result."""

import asyncio
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from chatd.client.drafts import InputPart
from chatd.client.errors import ApiError
from chatd.client.resources import Directory
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId, QueueId

MAX_FOUND_READERS: Final = 20
MAX_EXPORT_BYTES: Final = 256 * 1024 * 1024


class Reader(Struct, frozen=True):
    """A user or a group that may read a chat."""

    id: str
    shown: str
    name: str
    is_group: bool = False


class NotDone(Exception):
    """The command cannot be done; the text says why and what to do."""


class ChatRequests:
    def __init__(self, api: ServerApi, chat_id: ChatId) -> None:
        self._api = api
        self._chat_id = chat_id

    async def share(self, name: str) -> str:
        """With the user or group of that name; returns the name. Raises NotDone."""
        found = await self._api.search_directory(name, limit=MAX_FOUND_READERS)
        return await self._set_role(_find_reader(found, name), "read")

    async def unshare(self, name: str) -> str:
        readers = await self._api.get_acl(self._chat_id)
        return await self._set_role(_find_reader(readers, name), "")

    async def _set_role(self, found: Reader, role: str) -> str:
        roles = {found.id: role}
        if found.is_group:
            await self._api.change_acl(self._chat_id, group_roles=roles)
        else:
            await self._api.change_acl(self._chat_id, user_roles=roles)
        return found.shown

    async def export(self, path: Path) -> int:
        """Writes a file that does not exist yet. Raises NotDone."""
        kind = "jsonl" if path.suffix == ".jsonl" else "markdown"
        try:
            file = await asyncio.to_thread(_create, path)
        except OSError as error:
            raise NotDone(f"{path} was not written: {error.strerror or error}.") from None
        try:
            with file:
                exported = self._api.export_chat(self._chat_id, kind)
                return await exported.write_to(file.write, max_bytes=MAX_EXPORT_BYTES)
        except BaseException:
            os.unlink(path)
            raise


def _create(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _find_reader(found: Directory, name: str) -> Reader:
    """The exact name, else the only one that was found."""
    wanted = name.strip().lower()
    named = [Reader(str(one.id), one.username, one.name) for one in found.users]
    named += [Reader(str(one.id), one.name, one.name, is_group=True) for one in found.groups]
    exact = [one for one in named if wanted in (one.shown.lower(), one.name.lower())]
    fitting = [one for one in named if wanted in one.shown.lower() or wanted in one.name.lower()]
    chosen = exact or fitting
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise NotDone(f"There is no user or group {name!r}.")
    others = ", ".join(one.shown for one in chosen[:5])
    raise NotDone(f"{name!r} fits several: {others}. Write the whole name.")


def export_name(title: str) -> str:
    """A file name from a title; nothing that a shell or a file system minds."""
    words = re.findall(r"[\w-]+", title.lower())
    return ("-".join(words)[:60].strip("-") or "chat") + ".md"


class SentMeanwhile(Exception):
    """The message has left the queue."""


class QueueActions:
    """All raise SentMeanwhile too."""

    def __init__(self, api: ServerApi, chat_id: ChatId) -> None:
        self._api = api
        self._chat_id = chat_id

    async def edit(self, message: QueueId, content: tuple[InputPart, ...]) -> None:
        with _still_queued():
            await self._api.edit_queued(self._chat_id, message, content)

    async def promote(self, message: QueueId) -> None:
        with _still_queued():
            await self._api.promote_queued(self._chat_id, message)

    async def move(self, message: QueueId, before: QueueId | None) -> None:
        with _still_queued():
            await self._api.move_queued(self._chat_id, message, before)

    async def remove(self, message: QueueId) -> None:
        with _still_queued():
            await self._api.delete_queued(self._chat_id, message)


@contextmanager
def _still_queued() -> Generator[None]:
    try:
        yield
    except ApiError as error:
        if error.code == "queued_message_gone" or error.status == 404:
            raise SentMeanwhile from error
        raise
