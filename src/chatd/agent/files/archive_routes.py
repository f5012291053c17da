"""Routes that send a directory as a tar archive and that take one.

An archive is sent as a streamed reply: a line of facts, lines of data in base64, and a line that
says that it is complete. It is taken in requests of bounded size; each names its transfer and its
offset, so that a repeated one changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.archive_pack import (
    ArchiveCount,
    ArchiveLimits,
    pack,
    survey,
)
from chatd.agent.files.archive_unpack import Unpacking
from chatd.agent.files.file_paths import printable_name
from chatd.agent.files.file_routes import API_PREFIX, opened_inside, resolve_inside
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import WorkerThreads

MAX_UNPACK_PIECE_BYTES = 1 << 20
MAX_TRANSFERS = 4
"""Limit for each direction at once."""
MAX_ENDED_TRANSFERS = 8
"""How many ended transfers are kept for repeated requests."""
MAX_TRANSFER_S = 3600.0
UNPACK_IDLE_S = 120.0
_KEY = re.compile(r"[0-9A-Za-z_-]{8,64}")
_TOO_MANY = AgentError(
    429, "The workspace already has too many copies under way. Try again later.", code="copies_busy"
)


@dataclass(frozen=True)
class ArchivePlace:
    """A directory below the home directory or the directory in which commands run: `base` is that
    one, `path` the directory after all links."""

    base: str
    path: str

    def open(self) -> int:
        with opened_inside(self.base, self.path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            return os.dup(fd)

    def make_and_open(self) -> int:
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, f"make {printable_name(self.path)}") from error
        return self.open()


def find_place(home: str, directory: str, path: str) -> ArchivePlace:
    """Relative paths begin in the home directory."""
    try:
        return ArchivePlace(home, resolve_inside(home, path))
    except AgentError:
        if not path.startswith("/"):
            raise
    return ArchivePlace(directory, resolve_inside(directory, path))


class ArchiveRoutes:
    def __init__(
        self,
        *,
        home: str,
        directory: str,
        threads: WorkerThreads,
        limits: ArchiveLimits | None = None,
    ) -> None:
        self._home = home
        self._directory = directory
        self._threads = threads
        self._limits = limits or ArchiveLimits()
        self._sending = 0
        self._transfers: dict[str, Unpacking] = {}
        self._ends: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{API_PREFIX}/files/archive", self._archive),
            AgentRoute(
                "POST",
                f"{API_PREFIX}/files/unpack",
                self._unpack,
                max_body=MAX_UNPACK_PIECE_BYTES,
            ),
        ]

    def close(self) -> None:
        for key in list(self._transfers):
            self._abort(key, "the workspace agent stops")

    async def _archive(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path, compress = query.text("path", ""), query.flag("gzip")
        query.reject_unknown()
        if self._sending >= MAX_TRANSFERS:
            raise _TOO_MANY
        source, count = await self._threads.run(partial(self._survey, path))
        lines = self._lines(source, count, compress=compress)
        return AgentHttpReply(200, content_type="application/x-ndjson", lines=lines)

    def _survey(self, path: str) -> tuple[ArchivePlace, ArchiveCount]:
        source = find_place(self._home, self._directory, path)
        return source, survey(source.open, self._limits)

    async def _lines(
        self, source: ArchivePlace, count: ArchiveCount, *, compress: bool
    ) -> AsyncGenerator[bytes, None]:
        """Packs the next piece when the last one was taken."""
        pieces = pack(source.open, self._limits, compress=compress)
        until = time.monotonic() + MAX_TRANSFER_S
        self._sending += 1
        try:
            name = printable_name(os.path.basename(source.path))
            yield _line("begin", name=name, **count.facts())
            while True:
                piece = await self._threads.run(partial(_next_piece, pieces))
                if isinstance(piece, ArchiveCount):
                    break
                if time.monotonic() > until:
                    raise AgentError(504, f"the copy took more than {MAX_TRANSFER_S:.0f} seconds")
                yield _line("data", data=b64encode(piece).decode())
            yield _line("end", **piece.facts())
        except AgentError as error:
            yield _line("error", status=error.status, **error.body())
        finally:
            self._sending -= 1
            # A thread that a slow disk blocks still runs it, and drops it afterwards.
            with suppress(ValueError):
                pieces.close()

    async def _unpack(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path, key = query.text("path", ""), query.text("key")
        offset, is_last = query.count("offset"), query.flag("last")
        keeps_links, is_abort = query.flag("keep_links"), query.flag("abort")
        query.reject_unknown()
        if not _KEY.fullmatch(key):
            raise AgentError(400, "the key of a transfer has 8 to 64 letters and digits")
        if is_abort:
            self._abort(key, "the transfer was given up")
            return json_reply({"ok": True})
        unpacking = self._find(key, path, offset, keeps_links=keeps_links)
        self._expire_later(key)
        work = partial(unpacking.take, offset, request.body, is_last=is_last)
        result = await self._threads.run(work)
        facts = {} if result is None else result.facts()
        return json_reply({"received": unpacking.received, **facts})

    def _find(self, key: str, path: str, offset: int, *, keeps_links: bool) -> Unpacking:
        """The transfer of this key; a new one for a first piece."""
        found = self._transfers.get(key)
        if found is not None:
            return found
        if offset:
            text = "This transfer is not known: the workspace agent was restarted. Send all again."
            raise AgentError(409, text, code="unknown_transfer")
        ended = [each for each, transfer in self._transfers.items() if transfer.is_ended]
        if len(self._transfers) - len(ended) >= MAX_TRANSFERS:
            raise _TOO_MANY
        for each in ended[:-MAX_ENDED_TRANSFERS]:
            self._abort(each, "the transfer has ended")
        made = Unpacking(partial(self._open_target, path), self._limits, keeps_links=keeps_links)
        self._transfers[key] = made
        loop = asyncio.get_running_loop()
        self._ends[key] = loop.time() + MAX_TRANSFER_S
        return made

    def _open_target(self, path: str) -> int:
        return find_place(self._home, self._directory, path).make_and_open()

    def _expire_later(self, key: str) -> None:
        """Give up a transfer that is not continued, or that never ends."""
        loop = asyncio.get_running_loop()
        if (before := self._timers.pop(key, None)) is not None:
            before.cancel()
        at = min(loop.time() + UNPACK_IDLE_S, self._ends[key])
        reason = "the transfer was not continued in time"
        self._timers[key] = loop.call_at(at, self._abort, key, reason)

    def _abort(self, key: str, reason: str) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        self._ends.pop(key, None)
        if (transfer := self._transfers.pop(key, None)) is not None:
            transfer.abort(AgentError(409, reason, code="unknown_transfer"))


def _next_piece(pieces: Generator[bytes, None, ArchiveCount]) -> bytes | ArchiveCount:
    """The next piece; after the last, the counts: a thread cannot pass on a StopIteration."""
    try:
        return next(pieces)
    except StopIteration as end:
        return cast("ArchiveCount", end.value)


def _line(kind: str, **facts: object) -> bytes:
    return json.dumps({"type": kind, **facts}, separators=(",", ":")).encode()
