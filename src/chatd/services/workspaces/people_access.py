"""What people do in a workspace through its agent: read files, signal processes, revert changes,
use terminals.

The request comes from the server, not from a chat: a person needs no proof that a worker owns the
chat.
"""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from secrets import token_hex
from typing import Final
from urllib.parse import quote, urlencode
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.domain.text import clip
from chatd.domain.workspace.agent_api import (
    MAX_PIECE_BYTES,
    AgentRefused,
    AgentUnreachable,
    ArchiveFacts,
    DesktopState,
    DiffScope,
    FilePiece,
    ProcessInfo,
    ProcessSignal,
    SavedFile,
    TerminalEvent,
    TerminalExited,
    TerminalOutput,
    TerminalSize,
    TerminalTaken,
    UnpackedFiles,
    WorkspaceDirectory,
)
from chatd.domain.workspace.network import MAX_HOST_CHARS, Refusal, read_refusals
from chatd.workspaces.agents.agent_client import (
    API_PREFIX,
    AgentClient,
    AgentErrorBody,
    ChatIdentity,
    ConnectedAgent,
    RequestSender,
    decode_effect_reply,
    decode_reply,
    explain_outdated,
    refusal,
)
from chatd.workspaces.agents.agent_session import AgentRequest

# Files

MAX_FACTS_BYTES: Final = 64 << 10
BROWSE_TIMEOUT_S: Final = 30.0
"""Longer than the agent waits for its disk."""
ARCHIVE_IDLE_TIMEOUT_S: Final = 45.0
MAX_LINE_BYTES: Final = 256 * 1024
MAX_PIECE_ATTEMPTS: Final = 5
PIECE_RETRY_DELAY_S: Final = 2.0
ABORT_TIMEOUT_S: Final = 2.0


class _Facts(Struct, frozen=True, kw_only=True):
    path: str
    size: int
    version: str
    modified_at: datetime | None = None


class _ArchiveLine(Struct, frozen=True, kw_only=True):
    type: str
    data: str = ""
    status: int = 500


MAX_REFUSALS_BYTES: Final = 256 * 1024


class AgentFiles:
    """The files of one running workspace. Raises AgentRefused and AgentUnreachable. `on_use` is
    called while an archive is sent or received."""

    def __init__(self, agent: ConnectedAgent, clock: Clock, on_use: Callable[[], None]) -> None:
        self._agent = agent
        self._clock = clock
        self._on_use = on_use

    async def list_directory(self, path: str) -> WorkspaceDirectory:
        raw = await self._get("/files/list", {"path": path})
        return decode_reply(raw, WorkspaceDirectory)

    async def read_piece(self, path: str, *, offset: int, limit: int) -> FilePiece:
        """The reply is a line of facts, and the bytes."""
        most = min(limit, MAX_PIECE_BYTES)
        query = {"path": path, "offset": offset, "limit": most}
        raw = await self._get("/files/read", query, max_bytes=MAX_FACTS_BYTES + most)
        line, newline, content = raw.partition(b"\n")
        if not newline or len(content) > most:
            raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")
        facts = decode_reply(line, _Facts)
        return FilePiece(
            path=facts.path,
            size=max(facts.size, 0),
            version=facts.version,
            modified_at=facts.modified_at,
            content=content,
        )

    async def refusals(self) -> tuple[Refusal, ...]:
        """What the proxy of the workspace has refused. None of it is trusted: an agent sends it."""
        raw = await self._get("/network/refusals", {}, max_bytes=MAX_REFUSALS_BYTES)
        found = read_refusals(raw)
        return tuple(replace(each, host=clip(each.host, MAX_HOST_CHARS)) for each in found)

    async def save(self, path: str, content: bytes, *, version: str) -> SavedFile:
        """Replace a file that has this version, or create it if there is none. The agent refuses
        another version with `file_changed`."""
        self._on_use()
        request = AgentRequest(
            method="POST",
            target=_target("/files/save", {"path": path, "version": version}),
            body=content,
            timeout_s=BROWSE_TIMEOUT_S,
        )
        with explain_outdated():
            return decode_effect_reply(await self._agent.send(request), SavedFile)

    async def _get(
        self, path: str, query: Mapping[str, object], *, max_bytes: int = 4 << 20
    ) -> bytes:
        request = AgentRequest(
            method="GET",
            target=_target(path, query),
            timeout_s=BROWSE_TIMEOUT_S,
            max_body_bytes=max_bytes,
        )
        with explain_outdated():
            return await self._agent.send(request)

    async def archive(self, path: str, *, gzip: bool) -> tuple[ArchiveFacts, AsyncGenerator[bytes]]:
        """A tar archive of a directory. Close the generator even if it was not read."""
        query = {"path": path, "gzip": "true" if gzip else "false"}
        request = AgentRequest(
            method="GET",
            target=_target("/files/archive", query),
            timeout_s=BROWSE_TIMEOUT_S,
            max_body_bytes=MAX_LINE_BYTES,
        )
        lines = self._agent.stream_lines(request, idle_timeout_s=ARCHIVE_IDLE_TIMEOUT_S)
        try:
            with explain_outdated():
                first = await anext(lines, b"{}")
            facts = decode_reply(first, ArchiveFacts)
        except BaseException:
            await lines.aclose()
            raise
        return facts, self._archive_pieces(lines)

    async def _archive_pieces(self, lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        async with aclosing(lines):
            async for line in lines:
                self._on_use()
                event = decode_reply(line, _ArchiveLine)
                match event.type:
                    case "data":
                        yield _decode_base64(event.data)
                    case "end":
                        return
                    case _:
                        raise refusal(decode_reply(line, AgentErrorBody), event.status)
        raise AgentUnreachable("The workspace agent ended the archive before its end.")

    async def unpack(
        self, path: str, pieces: AsyncGenerator[bytes], *, keep_links: bool = False
    ) -> UnpackedFiles:
        """Write the files of a tar archive, which may be compressed with gzip, into a directory.
        Links that lead out of it are left out unless `keep_links` is set."""
        transfer = _Transfer(self._agent, self._clock, path, keep_links=keep_links)
        waiting = bytearray()
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    waiting += piece
                    while len(waiting) > MAX_PIECE_BYTES:
                        self._on_use()
                        await transfer.send(bytes(waiting[:MAX_PIECE_BYTES]))
                        del waiting[:MAX_PIECE_BYTES]
            raw = await transfer.send(bytes(waiting), is_last=True)
        except BaseException:
            await transfer.abort()
            raise
        return decode_reply(raw, UnpackedFiles)


class _Transfer:
    """Sends an archive in pieces. The agent knows a repeated piece by its offset."""

    def __init__(self, agent: ConnectedAgent, clock: Clock, path: str, *, keep_links: bool) -> None:
        self._agent = agent
        self._clock = clock
        self._query = {
            "path": path,
            "key": token_hex(16),
            "keep_links": "true" if keep_links else "false",
        }
        self._offset = 0

    async def send(self, piece: bytes, *, is_last: bool = False) -> bytes:
        query = self._query | {"offset": str(self._offset), "last": "true" if is_last else "false"}
        failures = 0
        while True:
            try:
                with explain_outdated():
                    raw = await self._agent.send(self._request(query, piece))
            except AgentUnreachable:
                failures += 1
                if failures == MAX_PIECE_ATTEMPTS:
                    raise
                await self._clock.sleep(PIECE_RETRY_DELAY_S, "unpack_retry")
                continue
            self._offset += len(piece)
            return raw

    async def abort(self) -> None:
        """Best effort: the agent gives up a transfer that is not continued."""
        with suppress(ChatdError, TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._agent.send(self._request(self._query | {"abort": "true"}, b""))

    def _request(self, query: Mapping[str, str], body: bytes) -> AgentRequest:
        return AgentRequest(
            method="POST",
            target=_target("/files/unpack", query),
            body=body,
            timeout_s=BROWSE_TIMEOUT_S,
        )


def _target(path: str, query: Mapping[str, object]) -> str:
    asked = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return f"{API_PREFIX}{path}{asked}"


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AgentUnreachable("The workspace agent sent an unreadable line.") from None


# Processes and changes

END_WAIT_S: Final = 2.0
"""After a signal: most commands end at once, and the reply says so."""
REVERT_TIMEOUT_S: Final = 60.0


class AgentEffects:
    """Lets a person stop a command of the chat or revert a file. Raises AgentRefused and
    AgentUnreachable within a minute."""

    def __init__(self, sender: RequestSender, clock: Clock, chat: Chat) -> None:
        self._sender = sender
        self._chat = chat
        self._server = AgentClient(sender, clock)
        self._own = AgentClient(sender, clock, ChatIdentity(chat_id=chat.id))

    async def processes(self) -> Sequence[ProcessInfo]:
        """The commands of this chat that the agent still knows."""
        return await self._own.processes()

    async def signal(self, process_id: str, signal: ProcessSignal) -> ProcessInfo:
        """The command as it is shortly after the signal. Refused with 404 for a command of another
        chat, and with `not_running`."""
        known = {process.id: process for process in await self._own.processes()}
        if process_id not in known:
            raise AgentRefused(f"This chat has no process {process_id}.", status=404)
        await self._server.signal(process_id, signal)
        after = await self._own.output(process_id, wait_s=END_WAIT_S)
        return replace(known[process_id], running=after.running, exit_code=after.exit_code)

    async def revert(self, scope: DiffScope, repo_root: str, paths: Sequence[str]) -> None:
        """Restore one file; a renamed file has two paths, the new one and the old one. Refused
        with `not_reverted`."""
        turn = self._chat.turn_message_id
        body = {
            "chat_id": str(self._chat.id),
            "scope": scope,
            "turn": "" if turn is None else str(turn),
            "repo_root": repo_root,
            **dict(zip(("path", "old_path"), paths, strict=False)),
        }
        request = AgentRequest(
            method="POST",
            target=f"{API_PREFIX}/git/revert",
            body=msgspec.json.encode(body),
            timeout_s=REVERT_TIMEOUT_S,
        )
        with explain_outdated():
            await self._sender.send(request)


# Terminals.
#
# Output is a streamed reply; each input and each new size is a request of its own, sent in order.
# None is repeated: input that may have arrived must not be typed twice.

TERMINAL_IDLE_TIMEOUT_S: Final = 45.0
"""Without a line for this long the stream has failed: the agent sends one every 15 seconds."""
TERMINAL_REQUEST_TIMEOUT_S: Final = 15.0


class _Opened(Struct, frozen=True):
    again: bool


class _Event(Struct, frozen=True, kw_only=True):
    type: str
    data: str = ""
    exit_code: int = -1


class AgentTerminal:
    """An open terminal. Raises AgentRefused and AgentUnreachable. `on_use` is called at every
    input. `is_again`: the terminal existed before, so its last output comes first."""

    def __init__(
        self,
        agent: ConnectedAgent,
        chat_id: ChatId,
        terminal_id: UUID,
        on_use: Callable[[], None],
    ) -> None:
        self._agent = agent
        self._path = f"{API_PREFIX}/terminals/{terminal_id}"
        self._headers = ChatIdentity(chat_id=chat_id).headers()
        self._on_use = on_use
        self.is_again = False

    async def open(self, size: TerminalSize) -> None:
        with explain_outdated():
            raw = await self._post("open", msgspec.json.encode(size))
        self.is_again = decode_reply(raw, _Opened).again
        self._on_use()

    async def follow(self) -> AsyncGenerator[TerminalEvent]:
        request = AgentRequest(
            method="GET",
            target=f"{self._path}/output",
            headers=self._headers,
            timeout_s=TERMINAL_REQUEST_TIMEOUT_S,
            max_body_bytes=MAX_LINE_BYTES,
        )
        lines = self._agent.stream_lines(request, idle_timeout_s=TERMINAL_IDLE_TIMEOUT_S)
        async with aclosing(lines):
            async for line in lines:
                if (event := _read(line)) is not None:
                    yield event

    async def write(self, data: bytes) -> None:
        self._on_use()
        await self._post("input", data)

    async def resize(self, size: TerminalSize) -> None:
        await self._post("resize", msgspec.json.encode(size))

    async def close(self) -> None:
        """End the shell."""
        await self._post("close", b"{}")

    async def _post(self, name: str, body: bytes) -> bytes:
        request = AgentRequest(
            method="POST",
            target=f"{self._path}/{name}",
            headers=self._headers,
            body=body,
            timeout_s=TERMINAL_REQUEST_TIMEOUT_S,
        )
        return await self._agent.send(request)


# The desktop. Output is a streamed reply of the VNC server's bytes; each input is a request of its
# own, sent in order and never repeated.

DESKTOP_START_TIMEOUT_S: Final = 30.0
_DESKTOP_PATH: Final = f"{API_PREFIX}/desktop"


class AgentDesktop:
    """The desktop of one running workspace, for one person. Raises AgentRefused and
    AgentUnreachable. `on_use` is called at every input."""

    def __init__(self, agent: ConnectedAgent, person: str, on_use: Callable[[], None]) -> None:
        self._agent = agent
        self._person = person
        self._on_use = on_use
        self._stream_id = ""

    async def state(self) -> DesktopState:
        request = AgentRequest(
            method="GET", target=_DESKTOP_PATH, timeout_s=TERMINAL_REQUEST_TIMEOUT_S
        )
        with explain_outdated():
            return decode_reply(await self._agent.send(request), DesktopState)

    async def take(self) -> DesktopState:
        """Take over mouse and keyboard."""
        self._on_use()
        return await self._change("take")

    async def release(self) -> DesktopState:
        return await self._change("release")

    async def _change(self, name: str) -> DesktopState:
        request = AgentRequest(
            method="POST",
            target=f"{_DESKTOP_PATH}/{name}",
            body=msgspec.json.encode({"person": self._person}),
            timeout_s=DESKTOP_START_TIMEOUT_S,
        )
        with explain_outdated():
            return decode_reply(await self._agent.send(request), DesktopState)

    async def watch(self, stream_id: str) -> AsyncGenerator[bytes]:
        """What the VNC server sends until the desktop ends. `send` works only while this runs."""
        self._stream_id = stream_id
        request = AgentRequest(
            method="GET",
            target=_target(f"/desktop/stream/{stream_id}/output", {"person": self._person}),
            timeout_s=DESKTOP_START_TIMEOUT_S,
            max_body_bytes=MAX_LINE_BYTES,
        )
        lines = self._agent.stream_lines(request, idle_timeout_s=TERMINAL_IDLE_TIMEOUT_S)
        async with aclosing(lines):
            with explain_outdated():
                async for line in lines:
                    event = decode_reply(line, _Event)
                    if event.type == "output":
                        yield _decode_base64(event.data)

    async def send(self, data: bytes) -> None:
        """Send bytes to the VNC server on the watched stream."""
        self._on_use()
        request = AgentRequest(
            method="POST",
            target=f"{_DESKTOP_PATH}/stream/{self._stream_id}/input",
            body=data,
            timeout_s=TERMINAL_REQUEST_TIMEOUT_S,
        )
        await self._agent.send(request)


def _read(line: bytes) -> TerminalEvent | None:
    event = decode_reply(line, _Event)
    match event.type:
        case "output":
            return TerminalOutput(_decode_base64(event.data))
        case "exit":
            return TerminalExited(event.exit_code)
        case "taken":
            return TerminalTaken()
        case _:
            return None
