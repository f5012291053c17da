"""The WebSockets of runners: one for control, and one for each exchange with an agent.

A runner shows its own token, which belongs to a pool, or the token of a user, who then runs
workspaces of their own on that machine. A pod shows the token of its build. What the messages mean
is decided in `services/workspaces/runners.py`. These sockets stay open while the replica finishes
its steps, whose tools need them.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.errors import Unauthorized
from chatd.api.request import Message, Receive, Scope, Send, header
from chatd.api.route import PREFIX
from chatd.domain.access.permissions import require_permission
from chatd.domain.access.secret_text import digest, is_runner_token, pod_token_build
from chatd.domain.errors import Conflict
from chatd.services.workspaces.runners import (
    EPOCH_HEADER,
    RUNNER_HEADER,
    RunnerIdentity,
    RunnerServices,
)
from chatd.store.workspace import runners

RUNNER_CONTROL_PATH: Final = f"{PREFIX}/runners/control"
RUNNER_EXCHANGE_PATH: Final = f"{PREFIX}/runners/exchange"
RUNNER_PATHS: Final = frozenset({RUNNER_CONTROL_PATH, RUNNER_EXCHANGE_PATH})
_BEARER: Final = "bearer "
CLOSE_TIMEOUT_S: Final = 2.0


class RunnerSockets:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Unauthorized and Forbidden before the handshake."""
        services = self._deps.runner_services
        if services is None:
            raise Conflict("Workspaces are disabled on this server.", code="workspaces_off")
        identity = await self._identify(scope, services)
        await receive()
        await send({"type": "websocket.accept"})
        messages = AsgiMessages(receive, send)
        if scope["path"] == RUNNER_CONTROL_PATH:
            await services.serve_control(messages, identity)
        else:
            await self._serve_exchange(services, scope, messages, identity)
        await messages.close()

    async def _serve_exchange(
        self,
        services: RunnerServices,
        scope: Scope,
        messages: "AsgiMessages",
        identity: RunnerIdentity,
    ) -> None:
        runner_id = header(scope, RUNNER_HEADER.lower().encode()) or ""
        epoch = header(scope, EPOCH_HEADER.lower().encode()) or ""
        await services.serve_exchange(messages, identity, runner_id, epoch)

    async def _identify(self, scope: Scope, services: RunnerServices) -> RunnerIdentity:
        authorization = header(scope, b"authorization") or ""
        token = authorization[len(_BEARER) :].strip()
        if authorization[: len(_BEARER)].lower() != _BEARER:
            raise Unauthorized("A runner sends its token: Authorization: Bearer <token>.")
        if is_runner_token(token):
            found = await self._deps.read(runners.find_token, digest(token))
            if found is None:
                raise Unauthorized(
                    "The runner's token is not valid: it was revoked or has expired. An"
                    " administrator makes a new one with chatd admin runners tokens create."
                )
            return RunnerIdentity(pool=found.pool, token_id=found.id)
        if pod_token_build(token) is not None:
            build_id = services.pods.find_build(token)
            if build_id is None:
                raise Unauthorized("The token of the pod is not valid on this server.")
            return RunnerIdentity(pod_of=build_id)
        caller = await self._deps.accounts.authenticator.caller(scope, is_stream=True)
        require_permission(caller.actor, "workspaces.write")
        return RunnerIdentity(owner_id=caller.user_id)


class AsgiMessages:
    """Satisfies `tunnels.wire.MessageSocket`."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_closed = False
        self._reading: asyncio.Timeout | None = None

    async def receive(self) -> str | bytes | None:
        if self._is_closed:
            return None
        event: Mapping[str, object]
        try:
            async with asyncio.timeout(None) as self._reading:
                event = await self._receive()
        except TimeoutError:
            return None
        finally:
            self._reading = None
        if event["type"] != "websocket.receive":
            self._is_closed = True
            return None
        text, data = event.get("text"), event.get("bytes")
        return text if isinstance(text, str) else data if isinstance(data, bytes) else b""

    async def send(self, message: str | bytes) -> None:
        if self._is_closed:
            raise ConnectionError("closed")
        kind = "text" if isinstance(message, str) else "bytes"
        frame: Message = {"type": "websocket.send", kind: message}
        try:
            await self._send(frame)
        except RuntimeError as error:  # uvicorn: the client has gone
            self._is_closed = True
            raise ConnectionError("closed") from error

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        # A client that is cut off does not answer the close, and a reader would wait for it.
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())
        # A client that reads nothing would delay it without end.
        with suppress(OSError, RuntimeError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._send({"type": "websocket.close", "code": code, "reason": reason[:100]})
