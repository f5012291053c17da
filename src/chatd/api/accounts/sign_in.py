"""Sign-ins: by a password, by a one-time link, or by an identity that an OpenID provider vouches
for. Each ends in a session and an entry of the audit log.
"""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from chatd.api.accounts.cookies import session_cookie, user_agent
from chatd.api.accounts.pages import SIGN_IN_PATH
from chatd.api.accounts.passwords import Passwords
from chatd.api.accounts.rate_limits import GUESSES_PER_MINUTE, Buckets
from chatd.api.accounts.site import Site
from chatd.api.errors import RateLimited, Unauthorized
from chatd.api.request import Scope
from chatd.domain.access import SystemActor, UserActor
from chatd.domain.account.entities import Credential, User
from chatd.domain.account.secret_text import (
    SECRET_BYTES,
    csrf_token,
    digest,
    is_opaque_secret,
    secret_text,
)
from chatd.domain.errors import Forbidden, InvalidInput
from chatd.domain.ids import CredentialId, UserId
from chatd.domain.ports import Env
from chatd.store.account import audit, credentials, sign_in_attempts, users
from chatd.store.account.credentials import (
    LINK_LIFETIME,
    SESSION_IDLE,
    SESSION_LIFETIME,
    NewCredential,
)
from chatd.store.conn import Conn, DatabaseSession
from chatd.store.pool import Pool

ACCOUNT_ATTEMPTS_PER_MINUTE: Final = 10
"""Wrong passwords for one username, on all replicas. A right one sets the count back."""
ADDRESS_ATTEMPTS_PER_MINUTE: Final = 60
"""Sign-ins of one address, on all replicas."""

SIGN_IN: Final = SystemActor(reason="sign-in")
_WRONG: Final = "The username or the password is wrong."
_USED: Final = (
    "This link was used already, or is older than 15 minutes. chatd admin sign-in-link prints a"
    " new one."
)


class SignedIn(Struct, frozen=True, kw_only=True):
    """`cookie` is the value of a Set-Cookie header."""

    user: User
    cookie: str
    csrf_token: str
    expires_at: datetime | None


class SignIn:
    def __init__(self, pool: Pool, env: Env, site: Site, passwords: Passwords) -> None:
        self._pool = pool
        self._env = env
        self._site = site
        self._passwords = passwords
        self._attempts = Buckets(env.clock)

    async def by_password(self, scope: Scope, login: str, password: str) -> SignedIn:
        """Raises Unauthorized, Forbidden, RateLimited. An unknown user costs the same time and
        gets the same reply as a wrong password."""
        self.check_browser(scope)
        ip = self._site.address(scope)
        account = _account_bucket(login.strip())
        await self._take_attempt(ip, account)
        found = await users.find_by_login(self._pool, SIGN_IN, login.strip())
        user, known_hash = (None, None) if found is None else found
        usable = known_hash if user is not None and user.is_active else None
        if not await self._passwords.is_correct(password, usable) or user is None:
            await self._refuse(ip, user, "password")
            raise Unauthorized(_WRONG, code="invalid_login")
        if known_hash is not None and self._passwords.needs_new_hash(known_hash):
            new_hash = await self._passwords.make_hash(password)
            await users.replace_hash(self._pool, SIGN_IN, user.id, known_hash, new_hash)
        async with self._pool.transaction() as session:
            await sign_in_attempts.clear(session, account)
            return await self.open_session(session, scope, user, "password")

    async def by_link(self, scope: Scope, secret: str) -> SignedIn:
        """Raises Unauthorized, Forbidden, RateLimited. The link is used up only together with the
        session that it gives."""
        self.check_browser(scope)
        ip = self._site.address(scope)
        self._attempts.check(("link", ip), GUESSES_PER_MINUTE)
        async with self._pool.transaction() as session:
            found = None
            if is_opaque_secret(secret):
                found = await credentials.use(session, digest(secret), "link")
            user = None if found is None else await self._user(session, found.actor.user_id)
            if user is not None:
                return await self.open_session(session, scope, user, "link")
        self._attempts.take(("link", ip), GUESSES_PER_MINUTE)
        await self._refuse(ip, None, "link")
        raise Unauthorized(_USED, code="invalid_link")

    async def check_current_password(
        self, user: User, given: str | None, known_hash: str | None
    ) -> None:
        """Before a change of the password; nothing to check without one. Raises InvalidInput,
        RateLimited."""
        if known_hash is None:
            return
        account = _account_bucket(user.username)
        if not await sign_in_attempts.take(
            self._pool, account, per_minute=ACCOUNT_ATTEMPTS_PER_MINUTE
        ):
            raise RateLimited(60 / ACCOUNT_ATTEMPTS_PER_MINUTE)
        if given is None or not await self._passwords.is_correct(given, known_hash):
            raise InvalidInput("current_password", "is wrong", code="wrong_password")
        await sign_in_attempts.clear(self._pool, account)

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
            cookie=session_cookie(secret, secure=self._site.is_secure(scope)),
            csrf_token=csrf_token(secret),
            expires_at=made.expires_at,
        )

    async def _take_attempt(self, ip: str | None, account: str) -> None:
        """The replica's own count comes first, so that a flood does not reach the database."""
        limit = ADDRESS_ATTEMPTS_PER_MINUTE
        try:
            self._attempts.take(("password", ip), 2 * limit)
            for bucket, per_minute in (
                (f"address:{ip}", limit),
                (account, ACCOUNT_ATTEMPTS_PER_MINUTE),
            ):
                if not await sign_in_attempts.take(self._pool, bucket, per_minute=per_minute):
                    raise RateLimited(60 / per_minute)
        except RateLimited as error:
            self._env.emit("sign_in_limited", ip=ip)
            text = f"Too many sign-ins. Try again in {error.retry_after_s} seconds."
            raise RateLimited(error.retry_after_s, text) from None

    async def _refuse(self, ip: str | None, user: User | None, method: str) -> None:
        await self._record(self._pool, ip, user, {"method": method}, "refused")
        self._env.emit("sign_in_refused", method=method, ip=ip)

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


def _account_bucket(login: str) -> str:
    """A digest: a name of any length fits, and the table shows no names."""
    return f"account:{digest(login.lower()).hex()[:32]}"


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
