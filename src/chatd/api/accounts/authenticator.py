"""Finds the caller of a request: by a bearer token, a one-time ticket, or the cookie of a session.

A secret that this replica has read lately costs no look-up. An unknown one is looked up once, and
guesses take a slow lane, so that they neither load the database nor keep valid secrets out.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

from chatd.aio import retry_unavailable
from chatd.api.accounts.cookies import session_secret
from chatd.api.accounts.credential_cache import CredentialCache
from chatd.api.accounts.look_up_lanes import LookUpLanes
from chatd.api.accounts.site import SAFE_METHODS, Site
from chatd.api.auth import ApiCaller
from chatd.api.errors import Unauthorized
from chatd.api.request import Scope, header
from chatd.domain.account.entities import ActiveCredential
from chatd.domain.account.secret_text import digest, is_csrf_token, is_opaque_secret, is_token
from chatd.domain.errors import Forbidden
from chatd.domain.ids import UserId
from chatd.domain.ports import Clock
from chatd.store.account import credentials
from chatd.store.config_changes import ConfigChanges
from chatd.store.conn import Conn

CSRF_HEADER: Final = "x-csrf-token"
TICKET_PARAMETER: Final = "ticket"

_BEARER: Final = "bearer "
_NO_CREDENTIAL: Final = (
    "Sign in, or send a token: Authorization: Bearer <token>. The page /sign-in signs a browser in."
)
_INVALID_TOKEN: Final = "The token is not valid. It may have expired or been revoked."
_INVALID_SESSION: Final = "The session has ended. Sign in again."
_INVALID_TICKET: Final = (
    "The ticket is not valid: it is used once, within a minute. Ask for another one."
)

Load = Callable[[], Awaitable[ActiveCredential | None]]


class Authenticator:
    def __init__(
        self,
        conn: Conn,
        clock: Clock,
        changes: ConfigChanges,
        site: Site,
        *,
        lanes: LookUpLanes,
        fixed: Mapping[str, UserId],
    ) -> None:
        """`fixed` are tokens that no row holds, such as the administrator's, and their users."""
        self._conn = conn
        self._clock = clock
        self._site = site
        self._cache = CredentialCache(changes, clock)
        # Digests only, so that a memory dump contains no token.
        self._fixed = [(digest(token), user_id) for token, user_id in fixed.items()]
        self._lanes = lanes

    async def caller(self, scope: Scope, *, is_stream: bool = False) -> ApiCaller:
        """Raises Unauthorized, RateLimited, and Forbidden for a request of another site's page.
        `is_stream`: a ticket in the query is accepted, used and removed from the query."""
        authorization = header(scope, b"authorization") or ""
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return await self._by_token(scope, authorization[len(_BEARER) :].strip())
        if is_stream and (ticket := _take_ticket(scope)) is not None:
            return await self._by_ticket(scope, ticket)
        return await self._by_session(scope, is_stream=is_stream)

    async def _by_token(self, scope: Scope, token: str) -> ApiCaller:
        key = digest(token)
        if (user_id := self._fixed_user(key)) is not None:
            return await self._find(
                scope, key, lambda: credentials.load_user(self._conn, user_id), _INVALID_TOKEN
            )
        if not is_token(token):
            raise Unauthorized("The token is not valid.")
        return await self._find(
            scope, key, lambda: credentials.load(self._conn, key, "token"), _INVALID_TOKEN
        )

    async def _by_session(self, scope: Scope, *, is_stream: bool) -> ApiCaller:
        secret = session_secret(scope, secure=self._site.is_secure(scope))
        if secret is None:
            raise Unauthorized(_NO_CREDENTIAL)
        is_socket = scope["type"] == "websocket"
        is_unsafe = not is_socket and scope["method"] not in SAFE_METHODS
        if is_unsafe or is_stream:
            self._site.require_same_site(scope, needs_proof=is_unsafe or is_socket)
        else:
            self._site.require_host(scope)
        if is_unsafe and not is_csrf_token(header(scope, CSRF_HEADER.encode()), secret):
            raise Forbidden(
                "A request with the session's cookie needs the header X-CSRF-Token. GET"
                " /api/v1/auth/me replies its value.",
                code="csrf_token_required",
            )
        key = digest(secret)
        return await self._find(
            scope, key, lambda: credentials.load(self._conn, key, "session"), _INVALID_SESSION
        )

    async def _by_ticket(self, scope: Scope, ticket: str) -> ApiCaller:
        """Every ticket is looked up: it is used once."""
        address = self._site.address(scope)
        found = None
        if is_opaque_secret(ticket):
            async with self._lanes.lane(address):
                # Not repeated after a lost reply: the ticket may be used already.
                found = await credentials.use(self._conn, digest(ticket), "ticket")
        if found is None:
            self._lanes.count_wrong(address)
            raise Unauthorized(_INVALID_TICKET)
        return _caller(found)

    def _fixed_user(self, key: bytes) -> UserId | None:
        """Compares with every digest in constant time, so that timing reveals nothing."""
        found: UserId | None = None
        for known, user_id in self._fixed:
            if hmac.compare_digest(known, key):
                found = user_id
        return found

    async def _find(self, scope: Scope, key: bytes, load: Load, refusal: str) -> ApiCaller:
        cached = self._cache.get(key)
        if cached is None:
            address = self._site.address(scope)
            is_known = self._cache.was_valid(key) or self._fixed_user(key) is not None
            async with self._lanes.lane(address, is_known=is_known):
                # Requests with one secret that arrive together cost one look-up.
                cached = self._cache.get(key)
                caller = await self._look_up(key, load) if cached is None else cached.caller
            if caller is None and cached is None:
                self._lanes.count_wrong(address)
        else:
            caller = cached.caller
        if caller is None:
            raise Unauthorized(refusal)
        return caller

    async def _look_up(self, key: bytes, load: Load) -> ApiCaller | None:
        generation = self._cache.generation
        found = await retry_unavailable(self._clock, load)
        caller = None if found is None else _caller(found)
        self._cache.put(key, caller, None if found is None else found.valid_for_s, generation)
        return caller


def _caller(found: ActiveCredential) -> ApiCaller:
    return ApiCaller(
        actor=found.actor,
        credential_id=found.id,
        expires_at=found.expires_at,
        kind=found.kind,
        username=found.username,
    )


def _take_ticket(scope: Scope) -> str | None:
    """Remove it from the query: it is no parameter of the route."""
    query: bytes = scope["query_string"]
    if TICKET_PARAMETER.encode() not in query:
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    tickets = [value for name, value in pairs if name == TICKET_PARAMETER]
    if not tickets:
        return None
    rest = [(name, value) for name, value in pairs if name != TICKET_PARAMETER]
    scope["query_string"] = urlencode(rest).encode("latin-1")
    return tickets[0]
