"""The WebSocket of a terminal: binary frames of output, JSON frames of input and sizes.

Only the owner of the chat opens one, whatever role others have. Nothing is buffered without a
bound: output waits at the shell while the client does not read, input waits at the client while
the shell does not.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.errors import error_reply
from chatd.api.request import (
    ApiCaller,
    Message,
    Receive,
    Scope,
    Send,
    read_json,
    read_query,
    read_uuid,
)
from chatd.api.route import PREFIX
from chatd.api.routes.workspace.builds import require_workspaces
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.streams import ClientStream, StreamEnd, StreamRegistry, end_for_error
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, Conflict, InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import (
    MAX_INPUT_BYTES,
    MAX_TERMINAL_SIDE,
    AgentRefused,
    AgentUnreachable,
    TerminalEvent,
    TerminalExited,
    TerminalOutput,
    TerminalSize,
    TerminalTaken,
)
from chatd.services.workspaces.people_access import AgentTerminal
from chatd.store.account import audit
from chatd.store.chat import chats

# The query and the frames of a terminal's WebSocket.

_TERMINAL_ID = "0193c5a9-4b1e-7d3a-9c55-1e2f3a4b5c6d"

Side = Annotated[int, Meta(ge=1, le=MAX_TERMINAL_SIDE)]


class TerminalQuery(Struct, frozen=True, kw_only=True):
    terminal: Annotated[
        UUID, describe("The terminal: a new id, or that of one to see again.", _TERMINAL_ID)
    ]
    cols: Annotated[Side, describe("Characters in a line.", 80)] = 80
    rows: Annotated[Side, describe("Lines.", 24)] = 24


class _Tagged(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class TerminalInput(_Tagged, frozen=True, kw_only=True, tag="input"):
    """Type text into the terminal."""

    data: Annotated[
        str, Meta(max_length=MAX_INPUT_BYTES), describe("The text, with its line ends.", "ls\r")
    ]


class TerminalResize(_Tagged, frozen=True, kw_only=True, tag="resize"):
    """Give the terminal another size."""

    cols: Annotated[Side, describe("Characters in a line.", 120)]
    rows: Annotated[Side, describe("Lines.", 40)]


class TerminalClose(_Tagged, frozen=True, kw_only=True, tag="close"):
    """End the shell. A closed connection alone leaves it running."""


class TerminalPing(_Tagged, frozen=True, kw_only=True, tag="ping"):
    """Ask for a `pong`."""


class TerminalReady(_Tagged, frozen=True, kw_only=True, tag="ready"):
    """The shell runs; its output follows as binary frames."""

    again: Annotated[bool, describe("The terminal was there: its last output comes first.")] = False


class TerminalExit(_Tagged, frozen=True, kw_only=True, tag="exit"):
    """The shell has ended."""

    exit_code: Annotated[int, describe("Its exit code; -1: a signal ended it.", 0)]


class TerminalRefused(_Tagged, frozen=True, kw_only=True, tag="refused"):
    """A frame was refused, or the terminal could not be opened."""

    code: Annotated[str, describe("Why, for programs.", "no_agent")]
    message: Annotated[str, describe("Why, for people.", "The chat's workspace does not run.")]


class TerminalPong(_Tagged, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""


TerminalClientFrame = TerminalInput | TerminalResize | TerminalClose | TerminalPing
TerminalServerFrame = TerminalReady | TerminalExit | TerminalRefused | TerminalPong


TERMINAL_PATH: Final = "/chats/{chat_id}/terminal"
_PATH: Final = re.compile(rf"{PREFIX}/chats/([^/]+)/terminal/?")
MAX_WAITING_FRAMES: Final = 32
EXITED_END: Final = StreamEnd("exited", "The shell has ended.", 1000)
TAKEN_END: Final = StreamEnd("taken_over", "The terminal was opened elsewhere.", 1008)
_DECODER: Final = msgspec.json.Decoder(TerminalClientFrame)
_ENCODER: Final = msgspec.json.Encoder()


def terminal_chat(path: str) -> ChatId | None:
    """The chat that the path of a terminal names; None for another path. Raises InvalidInput."""
    found = _PATH.fullmatch(path)
    return None if found is None else ChatId(read_uuid("chat_id", found[1]))


class TerminalSockets:
    def __init__(self, deps: ApiDeps, streams: StreamRegistry) -> None:
        self._deps = deps
        self._streams = streams

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, *, caller: ApiCaller, chat_id: ChatId
    ) -> None:
        deps, query = self._deps, read_query(TerminalQuery, scope["query_string"])
        with self._streams.open(caller, "terminal", send) as stream:
            found = await deps.read(
                chats.get_for_command, caller.actor, chat_id, "workspaces.write"
            )
            chat = require_chat(found)
            require_workspaces(deps)
            await self._record(scope, caller, chat, query)
            await receive()
            await stream.write({"type": "websocket.accept"})
            socket = _TerminalSocket(deps, stream, receive, chat, query)
            end = await stream.run(*socket.parts, stream.watch)
            close = {"code": end.close_code, "reason": end.code}
            await stream.send_end({"type": "websocket.close", **close})

    async def _record(
        self, scope: Scope, caller: ApiCaller, chat: Chat, query: TerminalQuery
    ) -> None:
        deps = self._deps
        await deps.retry(
            lambda: audit.record(
                deps.pool,
                caller.actor,
                action="terminal.open",
                object_type="workspace",
                object_id=chat.workspace_id,
                ip=deps.accounts.site.address(scope),
                detail={"chat_id": str(chat.id), "terminal": str(query.terminal)},
            )
        )


class _TerminalSocket:
    """One connection. Its parts run at once; the first that ends ends all."""

    def __init__(
        self,
        deps: ApiDeps,
        stream: ClientStream,
        receive: Receive,
        chat: Chat,
        query: TerminalQuery,
    ) -> None:
        self._deps = deps
        self._stream = stream
        self._receive = receive
        self._chat = chat
        self._query = query
        self._frames: asyncio.Queue[TerminalInput | TerminalResize | TerminalClose] = asyncio.Queue(
            MAX_WAITING_FRAMES
        )
        self._opened: asyncio.Future[AgentTerminal] = asyncio.get_running_loop().create_future()

    @property
    def parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return (self._show, self._read, self._forward)

    async def _show(self) -> None:
        """Open the terminal and send what it prints."""
        query = self._query
        try:
            control = require_workspaces(self._deps)
            size = TerminalSize(cols=query.cols, rows=query.rows)
            terminal = await control.terminal(self._chat, query.terminal, size)
            await self._send(TerminalReady(again=terminal.is_again))
            self._opened.set_result(terminal)
            async with aclosing(terminal.follow()) as events:
                async for event in events:
                    await self._show_event(event)
                    if self._stream.ended is not None:
                        return
            raise AgentUnreachable("The workspace agent has ended the terminal's output.")
        except ChatdError as error:
            await self._refuse(error)
            self._stream.end(_end_of(error))

    async def _show_event(self, event: TerminalEvent) -> None:
        match event:
            case TerminalOutput():
                await self._stream.write({"type": "websocket.send", "bytes": event.data})
            case TerminalExited():
                await self._send(TerminalExit(exit_code=event.exit_code))
                self._stream.end(EXITED_END)
            case TerminalTaken():
                self._stream.end(TAKEN_END)

    async def _read(self) -> None:
        while (event := await self._receive())["type"] == "websocket.receive":
            try:
                frame = _read_frame(event)
            except ChatdError as error:
                await self._refuse(error)
                continue
            if isinstance(frame, TerminalPing):
                await self._send(TerminalPong())
            else:
                await self._frames.put(frame)

    async def _forward(self) -> None:
        """Input in its order; of several sizes in a row only the last."""
        terminal = await self._opened
        while True:
            frames = [await self._frames.get()]
            while not self._frames.empty():
                frames.append(self._frames.get_nowait())
            try:
                await _apply(terminal, frames)
            except AgentRefused as error:
                await self._refuse(error)

    async def _refuse(self, error: ChatdError) -> None:
        body = error_reply(error).body
        await self._send(TerminalRefused(code=body.code, message=body.message))

    async def _send(self, frame: Struct) -> None:
        text = _ENCODER.encode(frame).decode()
        await self._stream.write({"type": "websocket.send", "text": text})


async def _apply(
    terminal: AgentTerminal, frames: list[TerminalInput | TerminalResize | TerminalClose]
) -> None:
    sizes = [frame for frame in frames if isinstance(frame, TerminalResize)]
    if sizes:
        await terminal.resize(TerminalSize(cols=sizes[-1].cols, rows=sizes[-1].rows))
    texts = [frame.data for frame in frames if isinstance(frame, TerminalInput)]
    typed = "".join(texts).encode("utf-8", "replace")
    for first in range(0, len(typed), MAX_INPUT_BYTES):
        await terminal.write(typed[first : first + MAX_INPUT_BYTES])
    if any(isinstance(frame, TerminalClose) for frame in frames):
        await terminal.close()


def _end_of(error: ChatdError) -> StreamEnd:
    """A conflict lasts: the client waits for the user before it connects again."""
    if isinstance(error, Conflict):
        return StreamEnd(error.code, error.message, 1008)
    return end_for_error(error)


def _read_frame(event: Message) -> TerminalClientFrame:
    text = event.get("text")
    if not isinstance(text, str):
        raise InvalidInput("message", "must be text")
    return read_json(_DECODER, text.encode())
