"""Signs users in by an OpenID provider: authorization code flow with PKCE.

What must survive the visit at the provider is in a sealed cookie for ten minutes, so any replica
can finish a sign-in that another has begun. An answer is used once over all replicas.
"""

import hashlib
import hmac
import secrets
from datetime import timedelta
from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from chatd.api.accounts.cookies import read_cookie, set_cookie
from chatd.api.accounts.oidc_client import OidcClient
from chatd.api.accounts.sign_in import SIGN_IN, SignedIn, SignIn
from chatd.api.accounts.site import Site
from chatd.api.errors import Unauthorized
from chatd.api.request import Scope, header
from chatd.domain.access.accounts import (
    Identity,
    IdentityRules,
    User,
    check_domain,
    claimed_role,
    local_path,
    proposed_username,
    read_identity,
)
from chatd.domain.access.secret_text import SECRET_BYTES, digest, secret_text
from chatd.domain.errors import Conflict, Forbidden
from chatd.domain.ids import GroupId, UserId
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store.account import groups, users
from chatd.store.account.users import NewUser, UserChanges
from chatd.store.conn import DatabaseSession, DuplicateRow
from chatd.store.pool import Pool

STATE_LIFETIME: Final = timedelta(minutes=10)
CALLBACK_PATH: Final = "/api/v1/auth/oidc/callback"
SECURE_STATE_COOKIE: Final = "__Host-chatd_oidc"
PLAIN_STATE_COOKIE: Final = "chatd_oidc"
_CONTEXT: Final = "cookie of a sign-in at an OpenID provider"
_BEGIN_AGAIN: Final = "This sign-in was not begun in this browser, or is too old. Begin again."


class OidcState(Struct, frozen=True, kw_only=True):
    """`expires_at` in seconds since 1970."""

    state: str
    nonce: str
    verifier: str
    next: str
    expires_at: float


class OidcAnswer(Struct, frozen=True, kw_only=True):
    """The parameters with which the provider sends the browser back."""

    code: str | None = None
    state: str | None = None
    error: str | None = None


class OidcSignIn:
    def __init__(
        self,
        pool: Pool,
        env: Env,
        site: Site,
        sign_in: SignIn,
        client: OidcClient,
        *,
        key_ring: KeyRing,
        rules: IdentityRules,
        managed_groups: tuple[str, ...] = (),
    ) -> None:
        """A user is a member of exactly those `managed_groups` that the group claim names."""
        self._pool = pool
        self._env = env
        self._site = site
        self._sign_in = sign_in
        self._client = client
        self._key_ring = key_ring
        self._rules = rules
        self._managed_groups = managed_groups

    @property
    def name(self) -> str:
        return self._client.config.name

    async def start(self, scope: Scope, next_path: str | None) -> tuple[str, str]:
        """The provider's address to go to, and the cookie to set."""
        self._sign_in.require_cookie(scope)
        described = await self._client.describe()
        state = OidcState(
            state=_random(),
            nonce=_random(),
            verifier=_random(),
            next=local_path(next_path),
            expires_at=self._now() + STATE_LIFETIME.total_seconds(),
        )
        challenge = secret_text(hashlib.sha256(state.verifier.encode()).digest())
        config = self._client.config
        query = {
            "response_type": "code",
            "client_id": config.client_id,
            "redirect_uri": self._redirect_uri(scope),
            "scope": config.scopes,
            "state": state.state,
            "nonce": state.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in described.authorization_endpoint else "?"
        sealed = self._key_ring.seal(msgspec.json.encode(state).decode(), _CONTEXT)
        return (
            f"{described.authorization_endpoint}{separator}{urlencode(query)}",
            self._cookie(scope, sealed, STATE_LIFETIME),
        )

    async def finish(self, scope: Scope, answer: OidcAnswer) -> tuple[SignedIn, str, str]:
        """The session, the path to go to, and the cookie that ends this sign-in. Raises
        Unauthorized, Forbidden, IdentityProviderFailed."""
        self._sign_in.require_cookie(scope)
        state = self._read_state(scope)
        given = answer.state or ""
        if state is None or not hmac.compare_digest(state.state.encode(), given.encode()):
            raise Unauthorized(_BEGIN_AGAIN, code="identity_refused")
        if answer.code is None:
            raise Unauthorized("The provider did not sign the user in.", code="identity_refused")
        if not await users.use_answer(self._pool, digest(state.state)):
            raise Unauthorized(_BEGIN_AGAIN, code="identity_refused")
        tokens = await self._client.exchange(answer.code, state.verifier, self._redirect_uri(scope))
        claims = await self._client.read_claims(tokens, state.nonce, self._wanted_claims())
        identity = read_identity(claims, self._rules)
        check_domain(identity, self._rules)
        async with self._pool.transaction() as session:
            user = await self._find_user(session, identity)
            user = await self._apply_claims(session, user, identity)
            signed_in = await self._sign_in.open_session(session, scope, user, "oidc")
        return signed_in, state.next, self._cookie(scope, "", timedelta(0))

    async def _find_user(self, session: DatabaseSession, identity: Identity) -> User:
        user_id = await users.find(session, SIGN_IN, identity.issuer, identity.subject)
        user = None
        if user_id is not None:
            user = await users.get(session, SIGN_IN, user_id)
        elif identity.email is not None:
            user = await self._link_or_create(session, identity)
        if user is None or not user.is_active or user.is_service:
            raise Forbidden(
                "There is no active account for this user. Ask an administrator.",
                code="identity_not_allowed",
            )
        return user

    async def _link_or_create(self, session: DatabaseSession, identity: Identity) -> User | None:
        """The email is verified by the provider."""
        email = identity.email or ""
        found = await users.find_by_email(session, SIGN_IN, email)
        if found is not None and not self._rules.link_by_email:
            return None
        if found is None:
            if not self._rules.auto_create:
                return None
            found = await self._create(session, identity)
        try:
            await users.link(session, SIGN_IN, found.id, identity)
        except DuplicateRow:
            raise Unauthorized(_BEGIN_AGAIN, code="identity_refused") from None
        return found

    async def _create(self, session: DatabaseSession, identity: Identity) -> User:
        user_id = UserId(self._env.new_id())
        username = proposed_username(identity)
        if await users.find_by_login(session, SIGN_IN, username) is not None:
            username = proposed_username(identity, f"-{user_id.hex[:6]}")
        new = NewUser(
            id=user_id,
            username=username,
            role=claimed_role(identity, self._rules) or "member",
            email=identity.email,
            name=identity.name,
        )
        return await users.create(session, SIGN_IN, new)

    async def _apply_claims(self, session: DatabaseSession, user: User, identity: Identity) -> User:
        """The role and the managed groups follow the provider, except that the last administrator
        stays one."""
        if identity.groups is not None:
            await self._apply_groups(session, user, identity.groups)
        role = claimed_role(identity, self._rules)
        if role is None or role == user.role:
            return user
        if user.role == "admin" and not await users.has_other_administrator(session, user.id):
            return user
        return await users.update(session, SIGN_IN, user.id, UserChanges(role=role))

    async def _apply_groups(
        self, session: DatabaseSession, user: User, claimed: tuple[str, ...]
    ) -> None:
        mine = {
            group.name.lower() for group in await groups.list_of_user(session, SIGN_IN, user.id)
        }
        wanted = {name.lower() for name in claimed}
        for name in self._managed_groups:
            group = await groups.find(session, SIGN_IN, name)
            if name.lower() in wanted and name.lower() not in mine:
                group = group or await groups.create(
                    session, SIGN_IN, GroupId(self._env.new_id()), name
                )
                await groups.add_member(session, SIGN_IN, group.id, user.id)
            elif name.lower() in mine and name.lower() not in wanted and group is not None:
                await groups.remove_member(session, SIGN_IN, group.id, user.id)

    def _wanted_claims(self) -> tuple[str, ...]:
        groups = self._rules.groups_claim
        return ("email",) if groups is None else ("email", groups)

    def _read_state(self, scope: Scope) -> OidcState | None:
        sealed = read_cookie(scope, self._cookie_name(scope))
        if not sealed:
            return None
        try:
            text = self._key_ring.open(sealed, _CONTEXT)
            state = msgspec.json.decode(text, type=OidcState)
        except (SecretUnreadable, Conflict, msgspec.MsgspecError):
            return None
        return state if state.expires_at > self._now() else None

    def _cookie(self, scope: Scope, value: str, lifetime: timedelta) -> str:
        secure = self._site.is_secure(scope)
        return set_cookie(self._cookie_name(scope), value, lifetime, secure=secure)

    def _cookie_name(self, scope: Scope) -> str:
        return SECURE_STATE_COOKIE if self._site.is_secure(scope) else PLAIN_STATE_COOKIE

    def _redirect_uri(self, scope: Scope) -> str:
        """On the host in use: the cookie belongs to it. The provider knows the allowed ones."""
        scheme = "https" if self._site.is_secure(scope) else "http"
        return f"{scheme}://{header(scope, b'host')}{CALLBACK_PATH}"

    def _now(self) -> float:
        return self._env.clock.now().timestamp()


def _random() -> str:
    return secret_text(secrets.token_bytes(SECRET_BYTES))
