"""What a person does to a chat and to its queue: one request each. All raise ApiError and
ServerUnreachable; events of the chat show the result."""

import asyncio
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import BinaryIO, Final, Literal

from msgspec import Struct

from chatd.client.choice_resources import Directory
from chatd.client.drafts import InputPart
from chatd.client.errors import ApiError
from chatd.client.resources import Chat
from chatd.client.server import ServerApi, new_key
from chatd.domain.ids import ChatId, MessageId, QueueId

MAX_FOUND_READERS: Final = 20
MAX_EXPORT_BYTES: Final = 256 * 1024 * 1024

Body = Mapping[str, object]


class TitleReply(Struct, frozen=True, kw_only=True):
    title: str = ""


class NotDone(Exception):
    """The command cannot be done; the text says why and what to do."""


class ChatActions:
    def __init__(self, api: ServerApi, chat_id: ChatId) -> None:
        self._api = api
        self.chat_id = chat_id
        self._path = f"/chats/{chat_id}"

    async def update(self, body: Body) -> None:
        await self._api.patch(self._path, body, NoneType)

    async def name_by_model(self) -> str:
        reply = await self._api.post(f"{self._path}/title/regenerate", None, TitleReply)
        return reply.title

    async def fork(self) -> ChatId:
        reply = await self._api.post(f"{self._path}/fork", {}, Chat, key=new_key())
        return reply.id

    async def compact(self) -> None:
        await self._api.post(f"{self._path}/compact", None, NoneType)

    async def interrupt(self, queue: Literal["continue", "hold"] = "continue") -> None:
        await self._api.post(f"{self._path}/interrupt", {"queue": queue}, NoneType)

    async def resume(self) -> None:
        await self._api.post(f"{self._path}/resume", None, NoneType)

    async def edit_message(
        self, message_id: MessageId, content: tuple[InputPart, ...], choice: Body
    ) -> None:
        body = {"content": content, **choice}
        path = f"{self._path}/messages/{message_id}"
        await self._api.patch(path, body, NoneType, key=new_key())

    async def readers(self) -> Directory:
        return await self._api.get(f"{self._path}/acl", Directory)

    async def share(self, name: str) -> str:
        """With the user or group of that name; returns the name. Raises NotDone."""
        found = await self._api.get("/directory", Directory, q=name, limit=MAX_FOUND_READERS)
        kind, identity, known = _find_reader(found, name)
        await self._api.patch(f"{self._path}/acl", {kind: {identity: "read"}}, Directory)
        return known

    async def unshare(self, name: str) -> str:
        kind, identity, known = _find_reader(await self.readers(), name)
        await self._api.patch(f"{self._path}/acl", {kind: {identity: ""}}, Directory)
        return known

    async def export(self, path: Path) -> int:
        """Writes a file that does not exist yet. Raises NotDone."""
        kind = "jsonl" if path.suffix == ".jsonl" else "markdown"
        try:
            file = await asyncio.to_thread(_create, path)
        except OSError as error:
            raise NotDone(f"{path} was not written: {error.strerror or error}.") from None
        try:
            with file:
                return await self._api.download_to(
                    f"{self._path}/export?format={kind}", file.write, max_bytes=MAX_EXPORT_BYTES
                )
        except BaseException:
            os.unlink(path)
            raise


def _create(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _find_reader(found: Directory, name: str) -> tuple[str, str, str]:
    """The exact name, else the only one that was found."""
    wanted = name.strip().lower()
    named = [("user_roles", str(one.id), one.username, one.name) for one in found.users]
    named += [("group_roles", str(one.id), one.name, one.name) for one in found.groups]
    exact = [one for one in named if wanted in (one[2].lower(), one[3].lower())]
    fitting = [one for one in named if wanted in one[2].lower() or wanted in one[3].lower()]
    chosen = exact or fitting
    if len(chosen) == 1:
        kind, identity, shown, _ = chosen[0]
        return kind, identity, shown
    if not chosen:
        raise NotDone(f"There is no user or group {name!r}.")
    others = ", ".join(one[2] for one in chosen[:5])
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
        self._path = f"/chats/{chat_id}/queue"

    async def edit(self, message: QueueId, content: tuple[InputPart, ...]) -> None:
        with _still_queued():
            await self._api.patch(f"{self._path}/{message}", {"content": content}, NoneType)

    async def promote(self, message: QueueId) -> None:
        with _still_queued():
            await self._api.post(f"{self._path}/{message}/promote", None, NoneType)

    async def move(self, message: QueueId, before: QueueId | None) -> None:
        with _still_queued():
            await self._api.post(f"{self._path}/{message}/move", {"before": before}, NoneType)

    async def remove(self, message: QueueId) -> None:
        with _still_queued():
            await self._api.delete(f"{self._path}/{message}")


@contextmanager
def _still_queued() -> Generator[None]:
    try:
        yield
    except ApiError as error:
        if error.code == "queued_message_gone" or error.status == 404:
            raise SentMeanwhile from error
        raise
