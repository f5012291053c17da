"""Sign-ins: by a password, by a one-time link, or by an identity that an OpenID provider vouches
for. Each ends in a session and an entry of the audit log.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from msgspec import Struct

from chatd.api.accounts.plain_pages import SIGN_IN_PATH
from chatd.api.accounts.request_limits import (
    Attempt,
    Buckets,
    LookUpLanes,
    PasswordLane,
    SignInLimits,
    address_group,
)
from chatd.api.accounts.site import DeviceCookies, Site, session_cookie, user_agent
from chatd.api.errors import RateLimited, Unauthorized
from chatd.api.request import Scope
from chatd.domain.access.accounts import Credential, User
from chatd.domain.access.permissions import SystemActor, UserActor
from chatd.domain.access.secret_text import (
    SECRET_BYTES,
    csrf_token,
    digest,
    is_opaque_secret,
    secret_text,
)
from chatd.domain.errors import Forbidden, InvalidInput
from chatd.domain.ids import CredentialId, UserId
from chatd.domain.ports import Env
from chatd.store.account import audit, credentials, users
from chatd.store.account.credentials import (
    LINK_LIFETIME,
    SESSION_IDLE,
    SESSION_LIFETIME,
    NewCredential,
)
from chatd.store.database.conn import Conn, DatabaseSession
from chatd.store.database.pool import Pool

T = TypeVar("T")

MAX_HASHES_AT_ONCE: Final = 2
MAX_WAITING_HASHES: Final = 32
"""More sign-ins at once than this, in each lane, get 429."""
MAX_WAITING_SLOW_HASHES: Final = 16
_NO_PASSWORD: Final = "a text that is no user's password"


class Passwords:
    """Hashes of passwords, by argon2id. A hash takes a tenth of a second of one core and 64 MiB on
    purpose, so it runs in a thread, a few at once, and a bounded number waits."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        """Tests pass a fast hasher."""
        self._hasher = hasher or PasswordHasher()
        # A lane for each `PasswordLane`, so that a guesser of passwords does not delay the others.
        self._slots = asyncio.Semaphore(MAX_HASHES_AT_ONCE)
        self._known_slot = asyncio.Semaphore(1)
        self._slow_slot = asyncio.Semaphore(1)
        self._pending: Counter[PasswordLane] = Counter()
        self._unused_hash: str | None = None

    async def make_hash(self, password: str) -> str:
        return await self._run(partial(self._hasher.hash, password), "known")

    async def is_correct(
        self, password: str, password_hash: str | None, lane: PasswordLane = "usual"
    ) -> bool:
        """Takes as long without a hash, so that the time does not tell whether a user exists."""
        return await self._run(partial(self._verify, password, password_hash), lane)

    def needs_new_hash(self, password_hash: str) -> bool:
        """It was made with other parameters than those of today."""
        return self._hasher.check_needs_rehash(password_hash)

    def _verify(self, password: str, password_hash: str | None) -> bool:
        if self._unused_hash is None:
            self._unused_hash = self._hasher.hash(_NO_PASSWORD)
        try:
            self._hasher.verify(password_hash or self._unused_hash, password)
        except (VerificationError, InvalidHashError):
            return False
        return password_hash is not None

    def is_full(self, lane: PasswordLane) -> bool:
        most = MAX_WAITING_SLOW_HASHES if lane == "slow" else MAX_WAITING_HASHES
        return self._pending[lane] >= most

    async def _run(self, work: Callable[[], T], lane: PasswordLane) -> T:
        if self.is_full(lane):
            raise RateLimited(1.0)
        self._pending[lane] += 1
        try:
            async with AsyncExitStack() as held:
                if lane == "slow":
                    await held.enter_async_context(self._slow_slot)
                slots = self._known_slot if lane == "known" else self._slots
                await held.enter_async_context(slots)
                return await asyncio.to_thread(work)
        finally:
            self._pending[lane] -= 1


MAX_RECORDED_REFUSALS_PER_MINUTE: Final = 60
"""Entries of the audit log for one address on one replica. The log of the server has them all."""
FLOOD_RETRY_S: Final = 5.0
SIGN_IN: Final = SystemActor(reason="sign-in")
_WRONG: Final = "The username or the password is wrong."
_USED: Final = (
    "This link was used already, or is older than 15 minutes. chatd admin sign-in-link prints a"
    " new one."
)


class SignedIn(Struct, frozen=True, kw_only=True):
    """`cookies` are values of Set-Cookie headers: the session's, and the browser's mark."""

    user: User
    cookies: tuple[str, ...]
    csrf_token: str
    expires_at: datetime | None


class SignIn:
    def __init__(
        self, pool: Pool, env: Env, site: Site, passwords: Passwords, lanes: LookUpLanes
    ) -> None:
        self._pool = pool
        self._env = env
        self._site = site
        self._passwords = passwords
        self._lanes = lanes
        self._limits = SignInLimits(pool, env)
        self._recorded = Buckets(env.clock)
        self._devices = DeviceCookies(site)

    async def by_password(self, scope: Scope, login: str, password: str) -> SignedIn:
        """Raises Unauthorized, Forbidden, RateLimited. An unknown user costs the same time and
        gets the same reply as a wrong password."""
        self.check_browser(scope)
        ip, login = self._site.address(scope), login.strip()
        await self._stop_flood(scope, ip)
        found = await users.find_by_login(self._pool, SIGN_IN, login)
        user, known_hash = (None, None) if found is None else found
        attempt = await self._admit(scope, login, user)
        usable = known_hash if user is not None and user.is_active else None
        if not await self._passwords.is_correct(password, usable, attempt.lane) or user is None:
            await self._refuse(ip, user, "password")
            raise Unauthorized(_WRONG, code="invalid_login")
        if known_hash is not None and self._passwords.needs_new_hash(known_hash):
            new_hash = await self._passwords.make_hash(password)
            await users.replace_hash(self._pool, SIGN_IN, user.id, known_hash, new_hash)
        async with self._pool.transaction() as session:
            await self._limits.settle(session, attempt)
            return await self.open_session(session, scope, user, "password")

    async def by_link(self, scope: Scope, secret: str) -> SignedIn:
        """Raises Unauthorized, Forbidden, RateLimited. The link is used up only together with the
        session that it gives."""
        self.check_browser(scope)
        ip = self._site.address(scope)
        if is_opaque_secret(secret):
            async with self._lanes.lane(ip), self._pool.transaction() as session:
                found = await credentials.use(session, digest(secret), "link")
                user = None if found is None else await self._user(session, found.actor.user_id)
                if user is not None:
                    return await self.open_session(session, scope, user, "link")
        self._lanes.count_wrong(ip)
        await self._refuse(ip, None, "link")
        raise Unauthorized(_USED, code="invalid_link")

    async def check_current_password(
        self, user: User, given: str | None, known_hash: str | None
    ) -> None:
        """Before a change of the password; nothing to check without one. Raises InvalidInput,
        RateLimited. Sign-ins of others do not count."""
        if known_hash is None:
            return
        attempt = await self._limits.admit_change(user.id)
        if given is None or not await self._passwords.is_correct(given, known_hash, attempt.lane):
            raise InvalidInput("current_password", "is wrong", code="wrong_password")
        await self._limits.settle(self._pool, attempt)

    def check_browser(self, scope: Scope) -> None:
        """Raises Forbidden for a page of another site, which could sign a victim in as another
        user."""
        self._site.require_same_site(scope, needs_proof=False)
        self.require_cookie(scope)

    def require_cookie(self, scope: Scope) -> None:
        """Raises Forbidden for a connection on which a cookie could be read."""
        self._site.require_host(scope)
        if not self._site.can_hold_cookie(scope):
            raise Forbidden(
                "Browsers sign in over https, or from this machine. The operator can put a proxy"
                " with https before this server and set server.url to its address.",
                code="insecure_connection",
            )

    async def open_session(
        self, session: DatabaseSession, scope: Scope, user: User, method: str
    ) -> SignedIn:
        secret = secret_text(secrets.token_bytes(SECRET_BYTES))
        ip = self._site.address(scope)
        made = await credentials.insert(
            session,
            SIGN_IN,
            NewCredential(
                id=CredentialId(self._env.new_id()),
                kind="session",
                user_id=user.id,
                secret_sha256=digest(secret),
                lifetime=SESSION_IDLE,
                ends_after=SESSION_LIFETIME,
                ip=ip,
                user_agent=user_agent(scope),
            ),
        )
        await self._record(session, ip, user, {"method": method, "session": made.id}, "done")
        self._env.emit("signed_in", user_id=user.id, method=method)
        return SignedIn(
            user=user,
            cookies=(
                session_cookie(secret, secure=self._site.is_secure(scope)),
                await self._devices.issue(session, scope, user.id),
            ),
            csrf_token=csrf_token(secret),
            expires_at=made.expires_at,
        )

    async def _stop_flood(self, scope: Scope, ip: str | None) -> None:
        """Before the first read. Raises RateLimited for an address with far too many attempts if
        too many of such addresses wait. Browsers that users have used before pass."""
        is_marked = await self._devices.is_marked(self._pool, scope)
        if not is_marked and self._limits.is_flooding(ip) and self._passwords.is_full("slow"):
            raise self._limits.refusal(FLOOD_RETRY_S, ip)

    async def _admit(self, scope: Scope, login: str, user: User | None) -> Attempt:
        ip = self._site.address(scope)
        if user is None:
            return await self._limits.admit(ip, login, None, None)
        device = await self._devices.find_device(self._pool, scope, user.id)
        return await self._limits.admit(ip, login, user.id, device)

    async def _refuse(self, ip: str | None, user: User | None, method: str) -> None:
        """A flood of one address leaves a bounded number of entries in the audit log."""
        self._env.emit("sign_in_refused", method=method, ip=ip)
        try:
            self._recorded.take(address_group(ip), MAX_RECORDED_REFUSALS_PER_MINUTE)
        except RateLimited:
            return
        await self._record(self._pool, ip, user, {"method": method}, "refused")

    async def _record(
        self,
        conn: Conn,
        ip: str | None,
        user: User | None,
        detail: Mapping[str, object],
        outcome: audit.AuditOutcome,
    ) -> None:
        """An unknown name is not recorded: people type passwords into the wrong field. A refused
        sign-in is not one of the user's actions."""
        actor = SIGN_IN
        if user is not None and outcome == "done":
            actor = UserActor(user_id=user.id, role=user.role)
        await audit.record(
            conn,
            actor,
            action="user.sign_in",
            object_type="user",
            object_id="unknown" if user is None else user.id,
            ip=ip,
            detail=detail,
            outcome=outcome,
        )

    async def _user(self, session: DatabaseSession, user_id: UserId) -> User | None:
        return await users.get(session, SIGN_IN, user_id)


async def create_link(
    conn: Conn, actor: SystemActor, user_id: UserId, link_id: CredentialId
) -> tuple[str, Credential]:
    """The secret of a one-time link for this user. Raises NotFound if the user is not active."""
    secret = secret_text(secrets.token_bytes(SECRET_BYTES))
    made = await credentials.insert(
        conn,
        actor,
        NewCredential(
            id=link_id,
            kind="link",
            user_id=user_id,
            secret_sha256=digest(secret),
            lifetime=LINK_LIFETIME,
        ),
    )
    await audit.record(conn, actor, action="link.create", object_type="user", object_id=user_id)
    return secret, made


def sign_in_link(address: str, secret: str) -> str:
    """The secret is in the fragment, which browsers do not send."""
    return f"{address.rstrip('/')}{SIGN_IN_PATH}#{secret}"


def local_url(url: str) -> str:
    """A browser of this machine cannot open an address that stands for all of its addresses."""
    return url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:")
