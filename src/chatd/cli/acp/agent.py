"""`chatd acp`: an agent of the Agent Client Protocol, for editors, over a server of chatd.

By default a session works in the directory that the editor names: with the runner of `--here`,
which is started for it and ends with this process. With `--remote` its chats have workspaces of the
server.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path
from typing import Final, cast
from uuid import UUID, uuid4

from msgspec import Struct

from chatd.cli.acp.peer import (
    AUTH_REQUIRED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    Json,
    Peer,
    RpcError,
)
from chatd.cli.acp.session import DIRECTORY_LABEL, MAX_LABEL_CHARS, SESSION_LABEL, Session
from chatd.cli.api_session import RESTART_PATIENCE_S
from chatd.cli.chats.here import HereChoice, HerePlace, NetworkChoice, open_here
from chatd.cli.mcp_stdio import InputLines, as_object
from chatd.client.connection import Connection
from chatd.client.errors import ApiError
from chatd.client.exchange import ServerAddress
from chatd.client.resources import Chat
from chatd.client.server import ServerApi, open_api
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.tool_modes import ModeChoice

PROTOCOL_VERSION: Final = 1
PAGE_SIZE: Final = 50
MAX_SESSIONS: Final = 100
LOGIN_METHOD: Final = "chatd-login"

_MODES: Final[Mapping[str, ModeChoice]] = {"default": "off", "plan": "plan"}
_MODE_NAMES: Final = (
    {"id": "default", "name": "Default", "description": "Works on what you ask for."},
    {
        "id": "plan",
        "name": "Plan",
        "description": "Looks around and proposes a plan; changes nothing else.",
    },
)


class DirectoryChoice(Struct, frozen=True, kw_only=True):
    """How sessions work in the editor's directory. None: in workspaces of the server."""

    network: NetworkChoice = "none"
    sandbox: bool = True
    agreed: bool = False
    hidden: tuple[Path, ...] = ()


async def run_agent(
    server: ServerAddress, choice: DirectoryChoice | None, *, model: str | None = None
) -> None:
    """Until the input ends, or nobody reads the output."""
    async with open_api(server, patience_s=RESTART_PATIENCE_S) as api, AsyncExitStack() as places:
        connection, peer = Connection(api), Peer()
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(connection.run())
                agent = AcpAgent(api, connection, peer, group, places, choice=choice, model=model)
                await peer.run(InputLines().start(), agent)
                agent.close()
                running.cancel()
        except* BrokenPipeError:
            # Python would report it once more when it flushes the output at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class AcpAgent:
    def __init__(
        self,
        api: ServerApi,
        connection: Connection,
        peer: Peer,
        group: asyncio.TaskGroup,
        places: AsyncExitStack,
        *,
        choice: DirectoryChoice | None,
        model: str | None,
    ) -> None:
        self._api = api
        self._connection = connection
        self._peer = peer
        self._group = group
        self._places = places
        self._choice = choice
        self._model = model
        self._opened: dict[Path, HerePlace] = {}
        self._opening = asyncio.Lock()
        self._sessions: dict[str, Session] = {}
        self._can_fill_forms = False
        self._methods: Mapping[str, Callable[[Json], Awaitable[Json]]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/prompt": self._prompt,
        }

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    async def answer(self, method: str, params: Json) -> Json:
        if (found := self._methods.get(method)) is None:
            raise RpcError(METHOD_NOT_FOUND, f"There is no method {method!r}.")
        try:
            return await found(params)
        except ApiError as error:
            raise _refusal(error) from None
        except ChatdError as error:
            raise RpcError(INTERNAL_ERROR, error.message) from None

    async def hear(self, method: str, params: Json) -> None:
        if method != "session/cancel":
            return
        session = self._sessions.get(str(params.get("sessionId")))
        if session is not None:
            self._start(session.cancel())

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return self._group.create_task(_reported(work))

    # Connection

    async def _initialize(self, params: Json) -> Json:
        capabilities = as_object(params.get("clientCapabilities"))
        self._can_fill_forms = "form" in as_object(capabilities.get("elicitation"))
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            },
            "authMethods": [
                {
                    "id": LOGIN_METHOD,
                    "name": "chatd login",
                    "description": "Run chatd login in a terminal, then try again.",
                }
            ],
            "agentInfo": {
                "name": "chatd",
                "title": "chatd",
                "version": metadata.version("chatd"),
            },
        }

    async def _authenticate(self, params: Json) -> Json:
        if params.get("methodId") != LOGIN_METHOD:
            raise RpcError(INVALID_PARAMS, f"The only method is {LOGIN_METHOD}.")
        await self._api.get_me()
        return {}

    # Sessions

    async def _new(self, params: Json) -> Json:
        await self._api.get_me()
        session = await self._open(str(uuid4()), params)
        return {"sessionId": session.id, "modes": _modes(session.mode)}

    async def _load(self, params: Json) -> Json:
        return await self._reopen(params, replay=True)

    async def _resume(self, params: Json) -> Json:
        return await self._reopen(params, replay=False)

    async def _reopen(self, params: Json, *, replay: bool) -> Json:
        session_id = str(params.get("sessionId"))
        chat = await self._find_chat(session_id)
        if (known := self._sessions.pop(session_id, None)) is not None:
            known.close()
        session = await self._open(session_id, params)
        session.mode = "plan" if chat.mode == "plan" else "off"
        await session.open_chat(chat.id, replay=replay)
        return {"modes": _modes(session.mode)}

    async def _find_chat(self, session_id: str) -> Chat:
        """By the label of the session; a chat that no editor began has its own id. Raises
        RpcError."""
        missing = RpcError(RESOURCE_NOT_FOUND, f"There is no session {session_id[:100]!r}.")
        try:
            chat_id = ChatId(UUID(session_id))
        except ValueError:
            raise missing from None
        found = await self._api.list_chats(label=[f"{SESSION_LABEL}:{session_id}"], limit=1)
        if found.items:
            return found.items[0]
        try:
            return await self._api.get_chat(chat_id)
        except ApiError as error:
            if error.status == 404:
                raise missing from None
            raise

    async def _open(self, session_id: str, params: Json) -> Session:
        if len(self._sessions) >= MAX_SESSIONS:
            raise RpcError(INVALID_PARAMS, f"There are {MAX_SESSIONS} sessions. Close one first.")
        cwd = params.get("cwd")
        if not isinstance(cwd, str) or not Path(cwd).is_absolute():
            raise RpcError(INVALID_PARAMS, "cwd must be an absolute path.")
        session = Session(
            session_id,
            cwd,
            api=self._api,
            connection=self._connection,
            peer=self._peer,
            start=self._start,
            can_fill_forms=self._can_fill_forms,
            model=self._model,
        )
        if self._choice is not None:
            session.workspace_id = (await self._place(Path(cwd), self._choice)).workspace_id
        self._sessions[session_id] = session
        return session

    async def _place(self, directory: Path, choice: DirectoryChoice) -> HerePlace:
        """The workspace of the directory, with a runner until this process ends."""
        async with self._opening:
            directory = await asyncio.to_thread(directory.resolve)
            if (known := self._opened.get(directory)) is not None:
                return known
            here = HereChoice(
                directory=directory,
                network=choice.network,
                sandbox=choice.sandbox,
                agreed=choice.agreed,
            )
            opened = open_here(self._api, here, hidden=choice.hidden)
            place = await self._places.enter_async_context(opened)
            self._opened[directory] = place
            return place

    async def _list(self, params: Json) -> Json:
        cwd, cursor = params.get("cwd"), params.get("cursor")
        label = [f"{DIRECTORY_LABEL}:{cwd}"] if cwd and len(str(cwd)) <= MAX_LABEL_CHARS else []
        page = await self._api.list_chats(
            label=label, limit=PAGE_SIZE, cursor=str(cursor) if cursor else None
        )
        sessions = [
            {
                "sessionId": chat.labels.get(SESSION_LABEL, str(chat.id)),
                "cwd": chat.labels.get(DIRECTORY_LABEL, "/"),
                "title": chat.title,
                "updatedAt": chat.updated_at.isoformat(),
            }
            for chat in page.items
        ]
        more = {"nextCursor": page.next_cursor} if page.next_cursor else {}
        return {"sessions": sessions, **more}

    async def _close(self, params: Json) -> Json:
        session = self._sessions.pop(str(params.get("sessionId")), None)
        if session is not None:
            session.close()
        return {}

    async def _set_mode(self, params: Json) -> Json:
        mode = _MODES.get(str(params.get("modeId")))
        if mode is None:
            raise RpcError(INVALID_PARAMS, f"There are the modes {', '.join(_MODES)}.")
        await self._session(params).set_mode(mode)
        return {}

    async def _prompt(self, params: Json) -> Json:
        session, given = self._session(params), params.get("prompt")
        blocks = cast("list[object]", given) if isinstance(given, list) else []
        return await session.prompt([as_object(one) for one in blocks])

    def _session(self, params: Json) -> Session:
        found = self._sessions.get(str(params.get("sessionId")))
        if found is None:
            raise RpcError(RESOURCE_NOT_FOUND, "There is no such session; load it first.")
        return found


async def _reported(work: Coroutine[None, None, None]) -> None:
    """An error of one session must not end the others."""
    try:
        await work
    except (ChatdError, RpcError) as error:
        print(f"chatd acp: {error}", file=sys.stderr)


def _modes(mode: ModeChoice) -> Json:
    current = "plan" if mode == "plan" else "default"
    return {"currentModeId": current, "availableModes": list(_MODE_NAMES)}


def _refusal(error: ApiError) -> RpcError:
    if error.is_signed_out:
        return RpcError(AUTH_REQUIRED, f"{error.message} Run chatd login in a terminal.")
    code = RESOURCE_NOT_FOUND if error.status == 404 else INTERNAL_ERROR
    return RpcError(INVALID_PARAMS if error.status == 400 else code, error.message)
