"""Between the HTTP server and the routes: verify the request, read its caller, find its route.

Every reply to a correctly signed request is signed. Any other request gets an unsigned refusal
and its connection is closed.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from chatd.agent.effect_guards import OwnerClaim, parse_claim
from chatd.agent.errors import AgentError
from chatd.agent.server.agent_server import RequestExchange, log_exception
from chatd.agent.server.auth import RequestClaim, RequestVerifier, digest
from chatd.agent.server.http_messages import (
    AgentHttpReply,
    RequestFields,
    RequestHead,
    error_reply,
    parse_json,
)

MAX_JSON_BYTES = 4 << 20
MAX_ANCESTORS = 64
_CHAT_OR_PROCESS_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True)
class AgentCaller:
    """The chat that a request acts for. Without a chat it acts for the server itself."""

    chat_id: str = ""
    ancestors: tuple[str, ...] = ()
    owner: OwnerClaim | None = None
    key: str = ""
    turn: str = ""

    @property
    def chat_and_ancestors(self) -> tuple[str, ...]:
        return (self.chat_id, *self.ancestors) if self.chat_id else ()


@dataclass(frozen=True)
class AgentRouteRequest:
    """`parameter` is the id in the path, if the route has one."""

    head: RequestHead
    caller: AgentCaller
    body: bytes
    parameter: str = ""

    def query(self) -> RequestFields:
        return RequestFields(self.head.query)

    def json(self) -> RequestFields:
        return parse_json(self.body)


@dataclass(frozen=True)
class AgentRoute:
    """`path` may contain one `{}`, which stands for an id."""

    method: str
    path: str
    handle: Callable[[AgentRouteRequest], Awaitable[AgentHttpReply]]
    max_body: int = MAX_JSON_BYTES
    is_long_poll: bool = False
    any_boot: bool = False

    def match(self, path: str) -> str | None:
        """The id in the path ("" if the route has none); None if the path does not match."""
        before, gap, after = self.path.partition("{}")
        if not gap:
            return "" if path == before else None
        middle = path[len(before) : len(path) - len(after)]
        matches = (
            path.startswith(before)
            and path.endswith(after)
            and _CHAT_OR_PROCESS_ID.fullmatch(middle)
        )
        return middle if matches else None


class Dispatcher:
    """Implements `RequestDispatcher`. `later` makes the routes below a path at the first request
    for one of them: what few workspaces use is not imported when an agent starts."""

    def __init__(
        self,
        verifier: RequestVerifier,
        routes: Sequence[AgentRoute],
        later: Mapping[str, Callable[[], Sequence[AgentRoute]]],
    ) -> None:
        self._verifier = verifier
        self._routes = tuple(routes)
        self._later = dict(later)

    def begin(self, head: RequestHead) -> RequestExchange:
        claim = self._verifier.read_claim(head.method, head.target, head.headers)
        try:
            route, parameter = self._find_route(head)
            self._verifier.verify(claim, any_boot=route.any_boot)
            request = AgentRouteRequest(head, read_caller(head), b"", parameter)
        except AgentError as error:
            return _SignedExchange(self._verifier, claim, error)
        return _SignedExchange(self._verifier, claim, (route, request))

    def _find_route(self, head: RequestHead) -> tuple[AgentRoute, str]:
        status = 404
        for top in [top for top in self._later if head.path.startswith(top)]:
            self._routes += tuple(self._later.pop(top)())
        for route in self._routes:
            parameter = route.match(head.path)
            if parameter is None:
                continue
            if route.method == head.method:
                return route, parameter
            status = 405
        raise AgentError(status, f"there is no route {head.method} {head.path}", code="no_route")


class _SignedExchange:
    """Implements `RequestExchange` for a correctly signed request, accepted or refused."""

    def __init__(
        self,
        verifier: RequestVerifier,
        claim: RequestClaim,
        accepted: tuple[AgentRoute, AgentRouteRequest] | AgentError,
    ) -> None:
        self._verifier = verifier
        self._claim = claim
        self._accepted = accepted
        is_refused = isinstance(accepted, AgentError)
        self.max_body = MAX_JSON_BYTES if is_refused else accepted[0].max_body
        self.is_long_poll = False if is_refused else accepted[0].is_long_poll

    async def run(self, body: bytes) -> AgentHttpReply:
        if isinstance(self._accepted, AgentError):
            return self.refuse(self._accepted)
        route, request = self._accepted
        try:
            if digest(body) != self._claim.body:
                raise AgentError(401, "the body is not the signed one", code="bad_mac")
            reply = await route.handle(replace(request, body=body))
        except AgentError as error:
            reply = error_reply(error)
        except Exception as error:  # noqa: BLE001 - a bug in one route must not stop the server
            log_exception(f"{route.method} {route.path}")
            name = type(error).__name__
            text = f"The workspace agent has failed ({name})."
            if route.method != "GET":
                text += " The outcome is unknown: check the state before you repeat the request."
            reply = error_reply(AgentError(500, text, code="bug"))
        return self._sign(reply)

    def refuse(self, error: AgentError) -> AgentHttpReply:
        return self._sign(error_reply(error))

    def _sign(self, reply: AgentHttpReply) -> AgentHttpReply:
        signature = self._verifier.sign_reply(self._claim, reply.status, reply.body)
        lines = None if reply.lines is None else self._sign_lines(reply.lines)
        return replace(reply, headers={**reply.headers, **signature}, lines=lines)

    async def _sign_lines(self, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Each text as `{"mac":"..","event":<text>}` and a line end."""
        number = 0
        try:
            async for text in lines:
                number += 1
                mac = self._verifier.sign_line(self._claim, number, text).encode()
                yield b'{"mac":"%b","event":%b}\n' % (mac, text)
        finally:
            await lines.aclose()


def read_caller(head: RequestHead) -> AgentCaller:
    """An unreadable chat id is refused: treated as no chat, the request would see the processes of
    all chats. An unreadable ancestor is ignored."""
    headers = head.headers
    chat_id = headers.get("chatd-chat-id", "")
    if chat_id and not _CHAT_OR_PROCESS_ID.fullmatch(chat_id):
        raise AgentError(400, "the chat id is malformed")
    epoch = headers.get("chatd-epoch")
    key = headers.get("idempotency-key", "")
    if len(key) > 512:
        raise AgentError(400, "the idempotency key is longer than 512 characters")
    return AgentCaller(
        chat_id=chat_id,
        ancestors=_ancestors(headers.get("chatd-ancestor-chat-ids", "")),
        owner=None if epoch is None else parse_claim(epoch),
        key=key,
        turn=headers.get("chatd-turn", "")[:64],
    )


def _ancestors(text: str) -> tuple[str, ...]:
    try:
        value: object = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    if not isinstance(value, list):
        return ()
    names = cast("list[object]", value)[:MAX_ANCESTORS]
    return tuple(
        name for name in names if isinstance(name, str) and _CHAT_OR_PROCESS_ID.fullmatch(name)
    )
