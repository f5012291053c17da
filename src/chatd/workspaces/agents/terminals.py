"""Terminals of a workspace, through its agent.

Output is a streamed reply; input and sizes are requests of their own, sent one after the other.
None of them is repeated: input that may have arrived must not be typed twice.
"""

import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.terminals import (
    TerminalEvent,
    TerminalExited,
    TerminalOutput,
    TerminalSize,
    TerminalTaken,
)
from chatd.workspaces.agents.client import API_PREFIX, ConnectedAgent
from chatd.workspaces.agents.files import OUTDATED_TEXT
from chatd.workspaces.agents.session import AgentRequest
from chatd.workspaces.agents.wire import ChatIdentity, decode_reply

TERMINAL_IDLE_TIMEOUT_S: Final = 45.0
"""Without a line for this long the stream has failed: the agent sends one every 15 seconds."""
TERMINAL_REQUEST_TIMEOUT_S: Final = 15.0
MAX_LINE_BYTES: Final = 256 * 1024


class _Opened(Struct, frozen=True):
    again: bool


class _Event(Struct, frozen=True, kw_only=True):
    type: str
    data: str = ""
    exit_code: int = -1


class AgentTerminal:
    """Satisfies `WorkspaceTerminal`. `on_use` is called at every input."""

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
        try:
            raw = await self._post("open", msgspec.json.encode(size))
        except AgentRefused as error:
            if error.code == "no_route":
                raise AgentRefused(OUTDATED_TEXT, status=404, code="agent_outdated") from None
            raise
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


def _read(line: bytes) -> TerminalEvent | None:
    event = decode_reply(line, _Event)
    match event.type:
        case "output":
            try:
                return TerminalOutput(b64decode(event.data, validate=True))
            except (binascii.Error, ValueError):
                raise AgentUnreachable("The workspace agent sent an unreadable line.") from None
        case "exit":
            return TerminalExited(event.exit_code)
        case "taken":
            return TerminalTaken()
        case _:
            return None
