"""Finds the caller of a request: by a bearer token, a one-time ticket, or the cookie of a session.

A secret that this replica has read lately costs no look-up. An unknown one is looked up once, and
guesses take a slow lane, so that they neither load the database nor keep valid secrets out. The
cache is used only while this replica hears of changes: a change of a credential or a user drops
what is cached of it, and a look-up that began before the change stores nothing.

The settings give the administrator's token, or the first start creates it and stores it in the data
directory. `Accounts` is what routes need of accounts, built from one configuration.
"""

import hmac
import secrets
import string
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode

from argon2 import PasswordHasher
from msgspec import Struct

from chatd.aio import retry_unavailable
from chatd.api.accounts.oidc import OidcClient, OidcConfig, OidcSignIn
from chatd.api.accounts.request_limits import LookUpLanes, RateLimits, RequestLimits
from chatd.api.accounts.sign_in import Passwords, SignIn
from chatd.api.accounts.site import SAFE_METHODS, Site, SiteConfig, session_secret
from chatd.api.errors import Unauthorized
from chatd.api.request import ApiCaller, Scope, header
from chatd.domain.access.accounts import ActiveCredential, IdentityRules
from chatd.domain.access.secret_text import digest, is_csrf_token, is_opaque_secret, is_token
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Forbidden
from chatd.domain.ids import UserId
from chatd.domain.ports import Clock, Env
from chatd.sealed_secrets import MAX_SECRET_BYTES, KeyRing, load_or_create
from chatd.store.account import credentials
from chatd.store.account.runtime_settings import DEPLOYMENT
from chatd.store.database.conn import Conn
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool

ADMIN_TOKEN_FILE: Final = "admin-token"

_MIN_TOKEN_CHARS: Final = 16
"""A guessed token lets its holder run commands in workspaces."""
_TOKEN_CHARS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)
MAX_CACHED_CREDENTIALS: Final = 20_000
MAX_CACHED_REFUSALS: Final = 2_000
"""Of secrets that are not valid. They take no place of valid ones."""
MAX_KNOWN_SECRETS: Final = 50_000
"""Digests of secrets that were valid at their last look-up here."""
CREDENTIAL_CACHE_S: Final = 60.0
"""After this time a credential is read again, which also marks its use."""


class CachedCredential(Struct, frozen=True, kw_only=True):
    """`caller` is None for a secret that is not valid. `until` is a time of the monotonic clock."""

    caller: ApiCaller | None
    until: float


class CredentialCache:
    def __init__(self, changes: ConfigChanges, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._entries: OrderedDict[bytes, CachedCredential] = OrderedDict()
        self._refusals: OrderedDict[bytes, CachedCredential] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self.generation = 0
        changes.subscribe(self._on_change)

    def get(self, digest: bytes) -> CachedCredential | None:
        for entries in (self._entries, self._refusals):
            entry = entries.get(digest)
            if entry is None or not self._changes.is_current:
                continue
            if entry.until <= self._clock.monotonic():
                del entries[digest]
                continue
            entries.move_to_end(digest)
            return entry
        return None

    def was_valid(self, digest: bytes) -> bool:
        """At its last look-up here, however long ago. Only a hint."""
        return digest in self._known

    def put(
        self, digest: bytes, caller: ApiCaller | None, valid_for_s: float | None, generation: int
    ) -> None:
        """`generation` is that before the look-up."""
        self._remember(digest, is_valid=caller is not None)
        if generation != self.generation or not self._changes.is_current:
            return
        seconds = min(
            CREDENTIAL_CACHE_S, CREDENTIAL_CACHE_S if valid_for_s is None else valid_for_s
        )
        until = self._clock.monotonic() + seconds
        entries = self._refusals if caller is None else self._entries
        entries[digest] = CachedCredential(caller=caller, until=until)
        while len(entries) > (MAX_CACHED_REFUSALS if caller is None else MAX_CACHED_CREDENTIALS):
            entries.popitem(last=False)

    def _remember(self, digest: bytes, *, is_valid: bool) -> None:
        self._known.pop(digest, None)
        if is_valid:
            self._known[digest] = None
            if len(self._known) > MAX_KNOWN_SECRETS:
                self._known.popitem(last=False)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or _concerns_all(change):
            self.generation += 1
            self._entries.clear()
            self._refusals.clear()
        elif change.kind in ("user", "credential"):
            self.generation += 1
            for digest in [key for key, one in self._entries.items() if _is_of(one, change)]:
                del self._entries[digest]
            if change.kind == "user":
                # A secret that was refused may belong to the user who was changed.
                self._refusals.clear()


def _concerns_all(change: ConfigChange) -> bool:
    """An actor carries a switch of the deployment's settings."""
    if change.kind == "settings":
        return change.id in ("", DEPLOYMENT)
    return change.kind in ("user", "credential") and not change.id


def _is_of(entry: CachedCredential, change: ConfigChange) -> bool:
    caller = entry.caller
    if caller is None:
        return False
    return change.id == str(caller.user_id if change.kind == "user" else caller.credential_id)


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


def admin_token(given: str | None, data_dir: Path) -> str:
    """The token from the settings, else the one stored in the data directory, which is created
    if missing. Processes that start together agree on one token."""
    if given is not None:
        return _check_token(given, "CHATD_ADMIN_TOKEN", "Unset it to have one created.")
    path = data_dir / ADMIN_TOKEN_FILE
    try:
        text = load_or_create(path, lambda: secrets.token_urlsafe(32))
    except OSError as error:
        raise ChatdError(f"cannot store the token in {path}: {error.strerror}") from error
    return _check_token(text, str(path), "Remove the file to have one created.")


def _check_token(token: str, source: str, remedy: str) -> str:
    """A header could not carry some tokens, and short ones can be guessed."""
    if not (_MIN_TOKEN_CHARS <= len(token) < MAX_SECRET_BYTES and _TOKEN_CHARS.issuperset(token)):
        raise ChatdError(
            f"{source} must have {_MIN_TOKEN_CHARS} to {MAX_SECRET_BYTES - 1} characters: letters,"
            f" digits and punctuation, without spaces. {remedy}"
        )
    return token


class AccountsConfig(Struct, frozen=True, kw_only=True):
    """`has_passwords`: users may sign in with a password."""

    site: SiteConfig = SiteConfig()
    limits: RequestLimits = RequestLimits()
    has_passwords: bool = True
    oidc: OidcConfig | None = None
    identity_rules: IdentityRules = IdentityRules()
    managed_groups: tuple[str, ...] = ()


class Accounts(Struct, frozen=True, kw_only=True):
    site: Site
    authenticator: Authenticator
    passwords: Passwords
    sign_in: SignIn
    limits: RateLimits
    changes: ConfigChanges
    has_passwords: bool = True
    oidc: OidcSignIn | None = None

    @property
    def oidc_name(self) -> str | None:
        return None if self.oidc is None else self.oidc.name


def build_accounts(
    pool: Pool,
    env: Env,
    changes: ConfigChanges,
    config: AccountsConfig,
    *,
    fixed: Mapping[str, UserId],
    key_ring: KeyRing,
    hasher: PasswordHasher | None = None,
) -> Accounts:
    """`fixed` are tokens that no row holds. `hasher` is given by tests. Raises ValueError for an
    address or a network of the settings that is none."""
    site = Site(config.site)
    passwords = Passwords(hasher)
    lanes = LookUpLanes(env.clock)
    sign_in = SignIn(pool, env, site, passwords, lanes)
    oidc = None
    if config.oidc is not None:
        oidc = OidcSignIn(
            pool,
            env,
            site,
            sign_in,
            OidcClient(config.oidc, env.clock),
            key_ring=key_ring,
            rules=config.identity_rules,
            managed_groups=config.managed_groups,
        )
    return Accounts(
        site=site,
        authenticator=Authenticator(pool, env.clock, changes, site, lanes=lanes, fixed=fixed),
        passwords=passwords,
        sign_in=sign_in,
        limits=RateLimits(config.limits, env.clock),
        changes=changes,
        has_passwords=config.has_passwords,
        oidc=oidc,
    )
