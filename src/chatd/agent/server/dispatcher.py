"""Between the server and the routes: who asks, on whose behalf, and which route answers.

Every reply to a rightly signed request is signed, whatever it says; anything else gets a bare
refusal and its connection is ended. Owns no route and no socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.server.auth import RequestClaim, RequestVerifier, digest
from chatd.agent.server.http_messages import (
    AgentHttpReply,
    RequestFields,
    RequestHead,
    error_reply,
    parse_json,
)
from chatd.agent.server.server import RequestExchange, log_exception

MAX_JSON_BYTES = 4 << 20
MAX_ANCESTORS = 64
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_EPOCH = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class AgentCaller:
    """On whose behalf a request comes. Without a chat it comes from the server itself."""

    chat_id: str = ""
    ancestors: tuple[str, ...] = ()
    epoch: int | None = None
    key: str = ""

    @property
    def chat_and_ancestors(self) -> tuple[str, ...]:
        """The chat and those above it: whoever is to know which files were touched."""
        return (self.chat_id, *self.ancestors) if self.chat_id else ()


@dataclass(frozen=True)
class AgentRouteRequest:
    head: RequestHead
    caller: AgentCaller
    body: bytes
    parameter: str = ""
    """What stood in the path where the route has a gap."""

    def query(self) -> RequestFields:
        return RequestFields(self.head.query)

    def json(self) -> RequestFields:
        return parse_json(self.body)


@dataclass(frozen=True)
class AgentRoute:
    """`path` may have one `{}`, which stands for an id. `waits`: it only waits for news."""

    method: str
    path: str
    handle: Callable[[AgentRouteRequest], Awaitable[AgentHttpReply]]
    max_body: int = MAX_JSON_BYTES
    is_long_poll: bool = False
    any_boot: bool = False

    def match(self, path: str) -> str | None:
        """What stands in the gap; None if this is not the path."""
        before, gap, after = self.path.partition("{}")
        if not gap:
            return "" if path == before else None
        middle = path[len(before) : len(path) - len(after)]
        is_it = path.startswith(before) and path.endswith(after) and _ID.fullmatch(middle)
        return middle if is_it else None


class Dispatcher:
    """Satisfies `http.Answers`."""

    def __init__(self, gate: RequestVerifier, routes: Sequence[AgentRoute]) -> None:
        self._gate = gate
        self._routes = tuple(routes)

    def begin(self, head: RequestHead) -> RequestExchange:
        claim = self._gate.read_claim(head.method, head.target, head.headers)
        try:
            route, parameter = self._find(head)
            self._gate.verify(claim, any_boot=route.any_boot)
            caller = read_caller(head)
        except AgentError as error:
            return _Refused(self._gate, claim, error)
        return _Admitted(self._gate, claim, route, AgentRouteRequest(head, caller, b"", parameter))

    def _find(self, head: RequestHead) -> tuple[AgentRoute, str]:
        status = 404
        for route in self._routes:
            parameter = route.match(head.path)
            if parameter is None:
                continue
            if route.method == head.method:
                return route, parameter
            status = 405
        raise AgentError(status, f"there is no {head.method} {head.path} here", code="no_route")


class _Refused:
    waits = False
    max_body = MAX_JSON_BYTES

    def __init__(self, gate: RequestVerifier, claim: RequestClaim, error: AgentError) -> None:
        self._gate = gate
        self._claim = claim
        self._error = error

    async def run(self, body: bytes) -> AgentHttpReply:
        del body
        return self.refuse(self._error)

    def refuse(self, error: AgentError) -> AgentHttpReply:
        return _sealed(self._gate, self._claim, error_reply(error))


class _Admitted:
    def __init__(
        self,
        gate: RequestVerifier,
        claim: RequestClaim,
        route: AgentRoute,
        request: AgentRouteRequest,
    ) -> None:
        self._gate = gate
        self._claim = claim
        self._route = route
        self._request = request

    @property
    def max_body(self) -> int:
        return self._route.max_body

    @property
    def waits(self) -> bool:
        return self._route.is_long_poll

    async def run(self, body: bytes) -> AgentHttpReply:
        try:
            if digest(body) != self._claim.body:
                raise AgentError(401, "the body is not the one that was signed", code="bad_mac")
            reply = await self._route.handle(replace(self._request, body=body))
        except AgentError as error:
            reply = error_reply(error)
        except Exception as error:  # noqa: BLE001 - the last wall: one bad request is one bad reply
            log_exception(f"{self._route.method} {self._route.path}")
            name = type(error).__name__
            reply = error_reply(AgentError(500, f"the agent has failed: {name}", code="bug"))
        return _sealed(self._gate, self._claim, reply)

    def refuse(self, error: AgentError) -> AgentHttpReply:
        return _sealed(self._gate, self._claim, error_reply(error))


def _sealed(gate: RequestVerifier, claim: RequestClaim, reply: AgentHttpReply) -> AgentHttpReply:
    seal = gate.sign_reply(claim, reply.status, reply.body)
    lines = None if reply.lines is None else _sealed_lines(gate, claim, reply.lines)
    return replace(reply, headers={**reply.headers, **seal}, lines=lines)


async def _sealed_lines(
    gate: RequestVerifier, claim: RequestClaim, lines: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Each text as `{"mac":"..","event":<text>}` and a line end."""
    number = 0
    try:
        async for text in lines:
            number += 1
            mac = gate.sign_line(claim, number, text).encode()
            yield b'{"mac":"%b","event":%b}\n' % (mac, text)
    finally:
        await lines.aclose()


def read_caller(head: RequestHead) -> AgentCaller:
    """A chat that cannot be read is refused: taken for none, it would see every chat's things.
    An ancestor that cannot be read is only one less to be told."""
    headers = head.headers
    chat_id = headers.get("chatd-chat-id", "")
    if chat_id and not _ID.fullmatch(chat_id):
        raise AgentError(400, "the chat's id is malformed")
    epoch = headers.get("chatd-epoch")
    if epoch is not None and not _EPOCH.fullmatch(epoch):
        raise AgentError(400, "the epoch is malformed")
    key = headers.get("idempotency-key", "")
    if len(key) > 512:
        raise AgentError(400, "the idempotency key is too long")
    return AgentCaller(
        chat_id=chat_id,
        ancestors=_ancestors(headers.get("chatd-ancestor-chat-ids", "")),
        epoch=None if epoch is None else int(epoch),
        key=key,
    )


def _ancestors(text: str) -> tuple[str, ...]:
    try:
        value: object = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    if not isinstance(value, list):
        return ()
    names = cast("list[object]", value)[:MAX_ANCESTORS]
    return tuple(name for name in names if isinstance(name, str) and _ID.fullmatch(name))
