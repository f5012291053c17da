"""The desktop of a chat's workspace for people: its state, taking over mouse and keyboard, and the
WebSocket by which it is watched.

Only the owner of the chat may, as with terminals. The WebSocket carries RFB, the protocol of VNC,
in binary frames. What the client sends of mouse, keyboard and clipboard is dropped by the workspace
agent unless this person has taken over.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from secrets import token_hex
from typing import Annotated, Final

from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import DESKTOP_CODES
from chatd.api.errors import error_reply
from chatd.api.request import (
    ApiCaller,
    ApiReply,
    ApiRequest,
    Receive,
    Scope,
    Send,
    read_uuid,
    reply,
)
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.routes.workspace.builds import require_workspaces
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.streams import ClientStream, StreamEnd, StreamRegistry, end_for_error
from chatd.domain.access.permissions import Permission
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, Conflict, InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import (
    MAX_DESKTOP_INPUT_BYTES,
    AgentRefused,
    AgentUnreachable,
    DesktopState,
)
from chatd.services.workspaces.people_access import AgentDesktop
from chatd.store.account import audit
from chatd.store.chat import chats

DESKTOP_STREAM_PATH: Final = "/chats/{chat_id}/desktop/stream"
_PATH: Final = re.compile(rf"{PREFIX}/chats/([^/]+)/desktop/stream/?")
MAX_WAITING_MESSAGES: Final = 64
DESKTOP_ENDED: Final = StreamEnd("desktop_ended", "The desktop has ended.", 1001)


class DesktopReply(Struct, frozen=True, kw_only=True):
    """The desktop of a chat's workspace."""

    enabled: Annotated[bool, describe("Whether the workspace's template has a desktop.")]
    running: Annotated[bool, describe("Whether it has been started: the first use does.")]
    width: Annotated[int, describe("Pixels of its screen.", 1280)]
    height: Annotated[int, describe("Pixels of its screen.", 720)]
    missing: Annotated[
        tuple[str, ...],
        describe("Debian packages that the workspace lacks.", ["tigervnc-standalone-server"]),
    ]
    taken: Annotated[
        bool, describe("A person has mouse and keyboard; agents wait until they are given back.")
    ]
    taken_by_you: Annotated[bool, describe("That person is the caller.")]


class DesktopRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/desktop",
                permission="workspaces.write",
                summary="Get the desktop of a chat's workspace",
                handle=self.get_desktop,
                replies={200: DesktopReply},
                errors=DESKTOP_CODES,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/desktop/take",
                permission="workspaces.write",
                summary="Take over mouse and keyboard of a desktop",
                description=(
                    "Starts the desktop if needed. Agents stop in the middle of their actions, are"
                    " told, and wait. Ten minutes without any input give both back."
                ),
                handle=self.take_desktop,
                replies={200: DesktopReply},
                errors=DESKTOP_CODES,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/desktop/release",
                permission="workspaces.write",
                summary="Give mouse and keyboard of a desktop back to the agents",
                description="Does nothing if the caller has not taken over.",
                handle=self.release_desktop,
                replies={200: DesktopReply},
                errors=DESKTOP_CODES,
            ),
        )

    async def get_desktop(self, request: ApiRequest) -> ApiReply:
        return await self._answer(request, lambda desktop: desktop.state())

    async def take_desktop(self, request: ApiRequest) -> ApiReply:
        chat = await read_chat(self._deps, request.caller, request.chat_id)
        author = self._deps.author(request)
        await _record(self._deps, request.caller, chat, "desktop.take", author.ip)
        return await self._answer(request, lambda desktop: desktop.take())

    async def release_desktop(self, request: ApiRequest) -> ApiReply:
        return await self._answer(request, lambda desktop: desktop.release())

    async def _answer(
        self, request: ApiRequest, act: Callable[[AgentDesktop], Awaitable[DesktopState]]
    ) -> ApiReply:
        chat = await read_chat(self._deps, request.caller, request.chat_id)
        person = _person(request.caller)
        try:
            state = await act(await require_workspaces(self._deps).desktop(chat, person))
        except AgentRefused as error:
            raise _explain(error) from error
        return reply(
            DesktopReply(
                enabled=state.enabled,
                running=state.running,
                width=state.width,
                height=state.height,
                missing=state.missing,
                taken=bool(state.taken_by),
                taken_by_you=state.taken_by == person,
            )
        )


def _explain(error: AgentRefused) -> ChatdError:
    code = error.code if error.code in DESKTOP_CODES else "agent_refused"
    return Conflict(error.message, code=code)


def _person(caller: ApiCaller) -> str:
    return str(caller.user_id)


async def read_chat(
    deps: ApiDeps,
    caller: ApiCaller,
    chat_id: ChatId,
    permission: Permission = "workspaces.write",
) -> Chat:
    chat = require_chat(await deps.read(chats.get_for_command, caller.actor, chat_id, permission))
    require_workspaces(deps)
    if chat.workspace_id is None:
        raise Conflict("The chat has no workspace.", code="no_workspace")
    return chat


async def _record(
    deps: ApiDeps, caller: ApiCaller, chat: Chat, action: str, ip: str | None
) -> None:
    detail: Mapping[str, object] = {"chat_id": str(chat.id)}
    await deps.retry(
        lambda: audit.record(
            deps.pool,
            caller.actor,
            action=action,
            object_type="workspace",
            object_id=chat.workspace_id,
            ip=ip,
            detail=detail,
        )
    )


# The stream


def desktop_chat(path: str) -> ChatId | None:
    """The chat that the path of a desktop's stream names; None for another path. Raises
    InvalidInput."""
    found = _PATH.fullmatch(path)
    return None if found is None else ChatId(read_uuid("chat_id", found[1]))


class DesktopSockets:
    def __init__(self, deps: ApiDeps, streams: StreamRegistry) -> None:
        self._deps = deps
        self._streams = streams

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, *, caller: ApiCaller, chat_id: ChatId
    ) -> None:
        deps = self._deps
        with self._streams.open(caller, "desktop", send) as stream:
            chat = await read_chat(deps, caller, chat_id)
            await _record(deps, caller, chat, "desktop.watch", deps.accounts.site.address(scope))
            await receive()
            await stream.write({"type": "websocket.accept"})
            socket = _DesktopSocket(deps, stream, receive, chat, _person(caller))
            end = await stream.run(*socket.parts, stream.watch)
            close = {"code": end.close_code, "reason": end.code}
            await stream.send_end({"type": "websocket.close", **close})


class _DesktopSocket:
    """One connection. Its parts run at once; the first that ends ends all. Nothing is buffered
    without a bound: the VNC server waits while the client does not read, and the other way round.
    """

    def __init__(
        self, deps: ApiDeps, stream: ClientStream, receive: Receive, chat: Chat, person: str
    ) -> None:
        self._deps = deps
        self._stream = stream
        self._receive = receive
        self._chat = chat
        self._person = person
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING_MESSAGES)
        self._opened: asyncio.Future[AgentDesktop] = asyncio.get_running_loop().create_future()

    @property
    def parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return (self._show, self._read, self._forward)

    async def _show(self) -> None:
        try:
            desktop = await require_workspaces(self._deps).desktop(self._chat, self._person)
            stream_id = token_hex(16)
            async with aclosing(desktop.watch(stream_id)) as pieces:
                async for piece in pieces:
                    if not self._opened.done():
                        self._opened.set_result(desktop)
                    await self._stream.write({"type": "websocket.send", "bytes": piece})
                    if self._stream.ended is not None:
                        return
            self._stream.end(DESKTOP_ENDED)
        except AgentRefused as error:
            self._stream.end(_end_of(_explain(error)))
        except ChatdError as error:
            self._stream.end(_end_of(error))

    async def _read(self) -> None:
        while (event := await self._receive())["type"] == "websocket.receive":
            data = event.get("bytes")
            if not isinstance(data, bytes) or len(data) > MAX_DESKTOP_INPUT_BYTES:
                error = InvalidInput("message", "must be binary and short")
                self._stream.end(end_for_error(error))
                return
            await self._waiting.put(data)

    async def _forward(self) -> None:
        """In order; what waits goes in one request."""
        desktop = await self._opened
        while True:
            pieces = bytearray(await self._waiting.get())
            while not self._waiting.empty() and len(pieces) < MAX_DESKTOP_INPUT_BYTES // 2:
                pieces += self._waiting.get_nowait()
            try:
                await desktop.send(bytes(pieces))
            except AgentRefused as error:
                self._stream.end(_end_of(_explain(error)))
                return
            except AgentUnreachable as error:
                self._stream.end(_end_of(error))
                return


def _end_of(error: ChatdError) -> StreamEnd:
    """A conflict lasts: the client waits for the user before it connects again."""
    if isinstance(error, Conflict):
        body = error_reply(error).body
        return StreamEnd(body.code, body.message, 1008)
    return end_for_error(error)
