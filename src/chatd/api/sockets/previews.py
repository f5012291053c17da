"""Previews: requests to the host name of a port of a workspace.

Nothing else is served under such a name: no route of the API, no page, no cookie of a session. A
viewer comes with a one-time ticket in the link, which becomes a cookie of this host alone. The
cookie ends with the credential that asked for the link, and access is checked again after every
change of users, credentials and shares.
"""

import asyncio
import html
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import parse_qsl

from chatd.api.accounts.plain_pages import PAGE_HEAD
from chatd.api.accounts.site import SAFE_METHODS, host_name, is_loopback, read_cookie
from chatd.api.deps import ApiDeps
from chatd.api.errors import ClientDisconnected, RequestTimeout, TooLarge
from chatd.api.request import ApiReply, Message, Receive, Scope, Send, header, send_reply
from chatd.api.routes.files import ACCESS_KINDS
from chatd.domain.access.permissions import UserActor
from chatd.domain.access.secret_text import digest, is_opaque_secret
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Conflict, Forbidden, NotFound, Unavailable
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.previews import (
    GRANT_LIFETIME_S,
    PortFailed,
    PortRequest,
    PreviewGrant,
    PreviewPlace,
    PreviewTarget,
    read_grant,
    read_label,
    request_headers,
    response_headers,
    sign_grant,
)
from chatd.log_event import LogEvent
from chatd.services.workspaces.port_access import AgentPorts, PortReply, PortSocket
from chatd.store.account import credentials, shares
from chatd.store.database.conn import Conn
from chatd.store.database.sealed_columns import PREVIEW_COOKIES, shared_key
from chatd.store.workspace import workspaces

log = logging.getLogger(__name__)

OPEN_PATH: Final = "/.chatd/open"
TICKET_PARAMETER: Final = "ticket"
MAX_PREVIEW_EXCHANGES: Final = 48
"""At once for one workspace on this replica, HTTP requests and WebSockets together."""
MAX_PREVIEW_BODY_BYTES: Final = 1 << 30
PREVIEW_BODY_IDLE_TIMEOUT_S: Final = 30.0
"""Between two pieces of a request's body."""
ACCESS_CACHE_S: Final = 30.0
MAX_CACHED_ACCESS: Final = 5000
RETRY_PAGE_S: Final = 5
"""After which a page that explains an error loads again."""
_COOKIE: Final = "chatd_preview"
_SECURE_COOKIE: Final = "__Host-chatd_preview"
_REFUSED_METHODS: Final = frozenset({"CONNECT", "TRACE"})
_MAX_CLOSE_CODE: Final = 4999


def ticket_digest(target: PreviewTarget, secret: str) -> bytes:
    """Not the digest of the secret alone: it must not be a ticket for the API."""
    return digest(f"preview:{target.label}:{secret}")


class _Page(ChatdError):
    """A plain page instead of the preview. `retries`: the browser loads it again by itself."""

    code = "preview"

    def __init__(self, status: int, title: str, text: str, *, retries: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.title = title
        self.retries = retries

    def reply(self, framed_by: list[str]) -> ApiReply:
        refresh = f"<meta http-equiv=refresh content={RETRY_PAGE_S}>" if self.retries else ""
        text = (
            f"{PAGE_HEAD}{refresh}<title>{html.escape(self.title)}</title>"
            f"<h1>{html.escape(self.title)}</h1><p>{html.escape(self.message)}</p></html>\n"
        )
        ancestors = " ".join(("'self'", *framed_by))
        policy = f"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors {ancestors}"
        headers = {
            "content-security-policy": policy,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        if self.status in (408, 413):
            headers["connection"] = "close"  # instead of reading the rest of the body
        if self.status == 503:
            headers["retry-after"] = "1"
        return ApiReply(
            status=self.status,
            body=text.encode(),
            headers=headers,
            media_type="text/html; charset=utf-8",
        )


_NOT_OPEN: Final = (
    "This browser may not see this preview, or no longer. Open it again from the panel of its chat,"
    " or with `chatd workspaces preview`. In a frame a browser may refuse its cookie: open it in a"
    " tab then."
)


async def may_preview(conn: Conn, actor: UserActor, target: PreviewTarget) -> bool:
    """The owner of the workspace may, and readers of a chat that the owner lets see this port."""
    with suppress(Forbidden):
        if await workspaces.can_preview(conn, actor, target.workspace_id):
            return True
    return await shares.can_see_preview(conn, actor, target.workspace_id, target.port)


class PreviewSite:
    """Serves all previews. `close` ends them."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._site = deps.accounts.site
        self._access = _PreviewAccess(deps)
        self._running: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def serves(self, scope: Scope) -> bool:
        return self._site.preview_label(scope) is not None

    async def close(self) -> None:
        self._is_closing = True
        for task in tuple(self._tasks):
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """The status of the reply; 0 if the client was gone before."""
        is_socket = scope["type"] == "websocket"
        target = read_label(self._site.preview_label(scope) or "")
        if target is None:
            page = _Page(404, "No such preview", "This address belongs to no port of a workspace.")
            return await _refuse(send, page, [], is_socket=is_socket)
        place = self._site.seen_preview(scope, target)
        framed_by = self._site.framing_origins(place)
        exchange = _Exchange(self._deps, (scope, receive, send), target, place, framed_by)
        try:
            if not is_socket and scope["path"] == OPEN_PATH:
                await self._hand_over(exchange)
            else:
                _require_same_origin(scope, place)
                await self._access.require(scope, target)
                with self._counted(target), self._cancellable():
                    run = exchange.run_socket() if is_socket else exchange.run_http()
                    await self._access.run_while_allowed(run, scope, target)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
        except Exception as error:
            if exchange.status:
                raise
            return await _refuse(send, _explain(error, target), framed_by, is_socket=is_socket)
        return exchange.status

    async def _hand_over(self, exchange: "_Exchange") -> None:
        """The ticket of the link becomes a cookie, and the address loses it."""
        scope, target = exchange.scope, exchange.target
        if scope["method"] not in SAFE_METHODS:
            raise _Page(405, "Not allowed", "Open this address with GET.")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=8))
        cookie = await self._access.admit(query.get(TICKET_PARAMETER, ""), target)
        is_https = exchange.place.scheme == "https"
        name = _SECURE_COOKIE if is_https else _COOKIE
        # Browsers count http on the loopback as secure. A frame of another site needs the rest.
        is_trusted = is_https or is_loopback(host_name(exchange.place.host))
        kind = "; Secure; SameSite=None; Partitioned" if is_trusted else "; SameSite=Lax"
        made = ApiReply(
            status=303,
            headers={
                "location": local_path(query.get("path", "/")),
                "cache-control": "no-store",
                "referrer-policy": "no-referrer",
            },
            cookies=(f"{name}={cookie}; Path=/; Max-Age={GRANT_LIFETIME_S}; HttpOnly{kind}",),
        )
        exchange.status = made.status
        await send_reply(exchange.send, made)

    @contextmanager
    def _counted(self, target: PreviewTarget) -> Generator[None]:
        key = str(target.workspace_id)
        if self._running[key] >= MAX_PREVIEW_EXCHANGES:
            text = f"This workspace has {MAX_PREVIEW_EXCHANGES} requests to previews at once."
            raise _Page(503, "Too many requests", f"{text} Try again in a moment.", retries=True)
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    @contextmanager
    def _cancellable(self) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)


def local_path(path: str) -> str:
    """A path of this host, for a redirect: nothing that a browser reads as another host."""
    is_plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if is_plain and path.startswith("/") and not path.startswith("//") else "/"


def _require_same_origin(scope: Scope, place: PreviewPlace) -> None:
    """The names of other previews, and of chatd, may be of the same site for a browser, which then
    sends the cookie with what their pages request. Only their links may lead here."""
    origin, fetched = header(scope, b"origin"), header(scope, b"sec-fetch-site")
    if scope["type"] == "websocket":
        is_same = origin in (None, place.origin)
    elif fetched in ("same-origin", "none"):
        is_same = True
    elif fetched is not None:
        is_link = header(scope, b"sec-fetch-mode") == "navigate"
        is_same = is_link and scope["method"] in ("GET", "HEAD")
    else:
        is_same = origin in (None, place.origin) or scope["method"] in SAFE_METHODS
    if not is_same:
        text = "A page of another site sent this request. Pages of a preview may use only its port."
        raise _Page(403, "Refused", text)


class _PreviewAccess:
    """Who may see a preview, from the ticket to the last request."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._key: bytes | None = None
        self._changes = 0
        self._allowed: OrderedDict[PreviewGrant, tuple[int, float]] = OrderedDict()
        deps.accounts.changes.subscribe(self._on_change)

    async def admit(self, secret: str, target: PreviewTarget) -> str:
        """Use the ticket up. Returns the value of the cookie."""
        deps = self._deps
        found = None
        if is_opaque_secret(secret):
            found = await credentials.use(deps.pool, ticket_digest(target, secret), "ticket")
        if found is None:
            text = "The link is used once and within two minutes. Open the preview again."
            raise _Page(401, "This link is no longer valid", text)
        now = deps.env.clock.now().timestamp()
        grant = PreviewGrant(
            label=target.label,
            user_id=found.actor.user_id,
            credential_id=found.id,
            expires_at=int(now) + GRANT_LIFETIME_S,
        )
        return sign_grant(await self._signing_key(), grant)

    async def require(self, scope: Scope, target: PreviewTarget) -> None:
        deps = self._deps
        now = deps.env.clock.now().timestamp()
        names = (_SECURE_COOKIE, _COOKIE)
        given = next((text for name in names if (text := read_cookie(scope, name))), "")
        key = await self._signing_key()
        grant = read_grant(key, given, target.label, now=now)
        if grant is None:
            raise _Page(401, "This preview is not open here", _NOT_OPEN)
        checked, until = self._allowed.get(grant, (-1, 0.0))
        clock = deps.env.clock
        is_current = deps.accounts.changes.is_current and checked == self._changes
        if is_current and clock.monotonic() < until:
            return
        changes = self._changes
        if not await deps.retry(lambda: self._is_allowed(grant, target)):
            self._allowed.pop(grant, None)
            raise _Page(401, "This preview is not open here", _NOT_OPEN)
        self._allowed[grant] = (changes, clock.monotonic() + ACCESS_CACHE_S)
        while len(self._allowed) > MAX_CACHED_ACCESS:
            self._allowed.popitem(last=False)

    async def run_while_allowed(
        self, run: Coroutine[object, None, None], scope: Scope, target: PreviewTarget
    ) -> None:
        """Long exchanges end when their credential does: it is checked again and again."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)

        async def watch() -> None:
            while True:
                await self._deps.env.clock.sleep(ACCESS_CACHE_S, "preview_access")
                try:
                    await self.require(scope, target)
                except Unavailable:
                    continue
                except _Page:
                    limit.reschedule(loop.time())
                    return

        watching = loop.create_task(watch())
        try:
            async with limit:
                await run
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            watching.cancel()

    async def _is_allowed(self, grant: PreviewGrant, target: PreviewTarget) -> bool:
        asked = UserActor(user_id=grant.user_id, role="member")
        actor = await credentials.check(self._deps.pool, asked, grant.credential_id)
        if actor is None:
            return False
        return await may_preview(self._deps.pool, actor, target)

    async def _signing_key(self) -> bytes:
        if self._key is None:
            self._key = await self._deps.retry(lambda: shared_key(self._deps.pool, PREVIEW_COOKIES))
        return self._key

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in ACCESS_KINDS:
            self._changes += 1


class _Exchange:
    """One request to a preview. `status` is set when the reply begins."""

    def __init__(
        self,
        deps: ApiDeps,
        connection: tuple[Scope, Receive, Send],
        target: PreviewTarget,
        place: PreviewPlace,
        framed_by: list[str],
    ) -> None:
        self.scope, self._receive, self.send = connection
        self.target = target
        self.place = place
        self.status = 0
        self._deps = deps
        self._framed_by = framed_by

    @property
    def _ports(self) -> AgentPorts:
        if self._deps.workspaces is None:
            raise _Page(404, "No workspaces", "Workspaces are turned off on this server.")
        return self._deps.workspaces.ports

    def _request(self) -> PortRequest:
        scope = self.scope
        query = scope["query_string"].decode("latin-1")
        path = bytes(scope.get("raw_path") or b"/").decode("latin-1").partition("?")[0]
        return PortRequest(
            method=scope.get("method", "GET"),
            target=f"{path}?{query}" if query else path,
            headers=request_headers(
                [(bytes(k), bytes(v)) for k, v in scope["headers"]], self.place
            ),
        )

    async def run_http(self) -> None:
        if self.scope["method"] in _REFUSED_METHODS:
            raise _Page(405, "Not allowed", "This method is not passed on.")
        body = _RequestBody(self.scope, self._receive)
        try:
            await _until_first(self._reply(body), body.wait_gone())
        except PortFailed:
            if self.status == 0 and body.error is not None:
                raise body.error from None
            raise

    async def _reply(self, body: "_RequestBody") -> None:
        next_piece = None if body.is_empty else body.next_piece
        async with self._ports.exchange(self.target, self._request(), next_piece) as response:
            await self._send_response(response)

    async def _send_response(self, response: PortReply) -> None:
        headers = response_headers(response.headers, self.place, self._framed_by)
        self.status = response.status
        await self.send(
            {"type": "http.response.start", "status": response.status, "headers": headers}
        )
        if self.scope["method"] != "HEAD" and response.status not in (204, 304):
            while piece := await response.next_piece():
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})

    async def run_socket(self) -> None:
        offered: list[str] = list(self.scope.get("subprotocols", []))
        async with self._ports.socket(self.target, self._request(), offered) as there:
            await self._receive()
            accepted = there.subprotocol if there.subprotocol in offered else None
            self.status = 101
            await self.send({"type": "websocket.accept", "subprotocol": accepted})
            if await _until_first(self._show(there), self._pass_on(there)):
                code = there.close_code
                code = code if 1000 <= code <= _MAX_CLOSE_CODE and code not in _UNSENT else 1011
                await self.send({"type": "websocket.close", "code": code})

    async def _show(self, there: PortSocket) -> None:
        while (message := await there.receive()) is not None:
            kind = "text" if isinstance(message, str) else "bytes"
            await self.send({"type": "websocket.send", kind: message})

    async def _pass_on(self, there: PortSocket) -> None:
        while (event := await self._receive())["type"] == "websocket.receive":
            text = event.get("text")
            await there.send(text if isinstance(text, str) else event.get("bytes") or b"")


_UNSENT: Final = frozenset({1004, 1005, 1006, 1015})
"""Codes that no side may send."""


class _RequestBody:
    """The body of a request, piece by piece. `error` is why it could not be read to its end."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        length = header(scope, b"content-length") or "0"
        has_body = header(scope, b"transfer-encoding") is not None or length != "0"
        self.is_empty = not has_body
        self.error: ChatdError | None = None
        self._size = 0
        self._read = asyncio.Event()
        if self.is_empty:
            self._read.set()
        if length.isdecimal() and int(length[:19]) > MAX_PREVIEW_BODY_BYTES:
            raise TooLarge(MAX_PREVIEW_BODY_BYTES)

    async def next_piece(self) -> bytes:
        """Empty at its end."""
        while not self._read.is_set():
            try:
                async with asyncio.timeout(PREVIEW_BODY_IDLE_TIMEOUT_S):
                    event = await self._receive()
            except TimeoutError:
                raise self._fail(RequestTimeout("The request's body came too slowly.")) from None
            if event["type"] != "http.request":
                raise self._fail(ClientDisconnected("The client disconnected."))
            piece: bytes = event.get("body", b"")
            self._size += len(piece)
            if self._size > MAX_PREVIEW_BODY_BYTES:
                raise self._fail(TooLarge(MAX_PREVIEW_BODY_BYTES))
            if not event.get("more_body", False):
                self._read.set()
            if piece:
                return piece
        return b""

    async def wait_gone(self) -> None:
        """Until the client disconnects after its request."""
        await self._read.wait()
        event: Message = {"type": "http.request"}
        while event["type"] == "http.request":
            event = await self._receive()

    def _fail(self, error: ChatdError) -> ChatdError:
        self.error = error
        return error


async def _until_first(
    first: Coroutine[None, None, None], other: Coroutine[None, None, None]
) -> bool:
    """Run both until one ends, and cancel the other. Whether the first one ended."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(first), loop.create_task(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in ended:
        task.result()
    return tasks[0] in ended


async def _refuse(send: Send, page: _Page, framed_by: list[str], *, is_socket: bool) -> int:
    await send_reply(send, page.reply(framed_by), prefix="websocket." if is_socket else "")
    return page.status


_STOPPED_CODES: Final[Mapping[str, str]] = {
    "no_agent": "The workspace does not run. Start it: the preview comes back by itself.",
    "agent_outdated": "An older version of chatd started it. Stop it and start it again.",
}


def _explain(error: Exception, target: PreviewTarget) -> _Page:
    match error:
        case _Page():
            return error
        case Conflict() | AgentRefused() if error.code in _STOPPED_CODES:
            text = _STOPPED_CODES[error.code]
            return _Page(502, "The workspace is not running", text, retries=True)
        case AgentRefused() if error.code == "no_such_port":
            text = f"{error.message} Start your server there: the preview comes back by itself."
            return _Page(502, f"Nothing on port {target.port}", text, retries=True)
        case AgentRefused() if error.code == "busy":
            return _Page(503, "Too many requests", error.message, retries=True)
        case NotFound():
            return _Page(404, "No such workspace", error.message)
        case PortFailed():
            return _Page(502, f"Port {target.port} did not answer", error.message)
        case AgentUnreachable() | AgentRefused() | Conflict():
            return _Page(502, "The workspace cannot be reached", error.message, retries=True)
        case TooLarge():
            return _Page(413, "Too large", error.message)
        case RequestTimeout() | ClientDisconnected():
            return _Page(408, "Too slow", error.message)
        case Unavailable():
            text = "chatd's database does not answer. Try again in a moment."
            return _Page(503, "Not available", text, retries=True)
        case _:
            log.error(LogEvent(event="request_failed", explanation="a bug"), exc_info=error)
            return _Page(500, "Failed", "The server failed to handle the request.")
