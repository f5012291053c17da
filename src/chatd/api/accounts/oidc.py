"""Signs users in by an OpenID provider: authorization code flow with PKCE.

What must survive the visit at the provider is in a sealed cookie for ten minutes, so any replica
can finish a sign-in that another has begun. An answer is used once over all replicas.

Every request to the provider has a timeout and a bounded reply. Its keys are kept, and read again
for a key that is not known, at most once a minute, so that forged tokens do not load the provider.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from msgspec import Struct

from chatd.api.accounts.sign_in import SIGN_IN, SignedIn, SignIn
from chatd.api.accounts.site import Site, read_cookie, set_cookie
from chatd.api.errors import IdentityProviderFailed, Unauthorized
from chatd.api.request import Scope, header
from chatd.domain.access.accounts import (
    ExpectedToken,
    Identity,
    IdentityRules,
    User,
    check_domain,
    claimed_role,
    find_token_fault,
    local_path,
    proposed_username,
    read_identity,
)
from chatd.domain.access.secret_text import SECRET_BYTES, digest, secret_text
from chatd.domain.errors import Conflict, Forbidden
from chatd.domain.ids import GroupId, UserId
from chatd.domain.ports import Clock, Env
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store.account import groups, users
from chatd.store.account.users import NewUser, UserChanges
from chatd.store.database.conn import DatabaseSession, DuplicateRow
from chatd.store.database.pool import Pool

S = TypeVar("S", bound=Struct)

OIDC_TIMEOUT_S: Final = 10.0
MAX_OIDC_REPLY_BYTES: Final = 512 * 1024
DISCOVERY_CACHE_S: Final = 3600.0
KEY_REFRESH_INTERVAL_S: Final = 60.0
_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
)
"""Signatures by a private key only: a client secret signs nothing here."""

Claims = Mapping[str, object]


class OidcConfig(Struct, frozen=True, kw_only=True):
    issuer: str
    client_id: str
    client_secret: str | None = None
    name: str = "OpenID"
    scopes: str = "openid email profile"

    def __repr__(self) -> str:
        return f"OidcConfig(issuer={self.issuer!r}, client_id={self.client_id!r})"


class ProviderDescription(Struct, frozen=True, kw_only=True):
    """The part of its discovery document that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class ProviderTokens(Struct, frozen=True, kw_only=True):
    id_token: str
    access_token: str | None = None


class OidcClient:
    def __init__(self, config: OidcConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._lock = asyncio.Lock()
        self._description: ProviderDescription | None = None
        self._described_at = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0

    async def describe(self) -> ProviderDescription:
        """Raises IdentityProviderFailed."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._description is None or now - self._described_at > DISCOVERY_CACHE_S:
                url = f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration"
                found = _convert(await self._request("GET", url), ProviderDescription)
                if found.issuer != self.config.issuer:
                    raise IdentityProviderFailed("its discovery document names another issuer")
                self._description, self._described_at = found, now
                return found
            return self._description

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> ProviderTokens:
        """The tokens for a code. Raises IdentityProviderFailed, Unauthorized for a used code."""
        described, config = await self.describe(), self.config
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
            "client_id": config.client_id,
        }
        headers: dict[str, str] = {}
        if config.client_secret is not None:
            if "client_secret_basic" in described.token_endpoint_auth_methods_supported:
                user, word = quote(config.client_id, safe=""), quote(config.client_secret, safe="")
                headers["authorization"] = aiohttp.encode_basic_auth(user, word)
            else:
                form["client_secret"] = config.client_secret
        reply = await self._request("POST", described.token_endpoint, form=form, headers=headers)
        return _convert(reply, ProviderTokens)

    async def read_claims(
        self, tokens: ProviderTokens, nonce: str, wanted: Collection[str] = ("email",)
    ) -> Claims:
        """The checked claims of the ID token. If it lacks one that is wanted, those of the userinfo
        endpoint too. Raises Unauthorized, IdentityProviderFailed."""
        claims = await self._verify(tokens.id_token)
        expected = ExpectedToken(
            issuer=self.config.issuer,
            client_id=self.config.client_id,
            nonce=nonce,
            now=self._clock.now().timestamp(),
        )
        if (fault := find_token_fault(claims, expected)) is not None:
            raise Unauthorized(
                f"The provider's answer is refused: {fault}.", code="identity_refused"
            )
        described = await self.describe()
        has_all = all(name in claims for name in wanted)
        if has_all or tokens.access_token is None or not described.userinfo_endpoint:
            return claims
        headers = {"authorization": f"Bearer {tokens.access_token}"}
        more = await self._request("GET", described.userinfo_endpoint, headers=headers)
        if more.get("sub") != claims["sub"]:
            raise Unauthorized(
                "The provider's answer is refused: about another user.", code="identity_refused"
            )
        if "email" in claims:
            more.pop("email_verified", None)  # it is said of the other email
        return {**more, **claims}

    async def _verify(self, token: str) -> Claims:
        for is_last in (False, True):
            keys = await self._load_keys(newer=is_last)
            try:
                return cast("Claims", jwt.decode(token, keys, algorithms=_ALGORITHMS).claims)
            except InvalidKeyIdError:
                continue  # the provider may have new keys
            except (JoseError, ValueError, TypeError):
                break
        raise Unauthorized(
            "The provider's answer is refused: a wrong signature.", code="identity_refused"
        )

    async def _load_keys(self, *, newer: bool) -> KeySet:
        described = await self.describe()
        async with self._lock:
            age = self._clock.monotonic() - self._keys_at
            limit = KEY_REFRESH_INTERVAL_S if newer else DISCOVERY_CACHE_S
            if self._keys is None or age > limit:
                found = await self._request("GET", described.jwks_uri)
                try:
                    self._keys = KeySet.import_key_set(cast("Any", found))
                except (JoseError, KeyError, ValueError, TypeError):
                    raise IdentityProviderFailed("its keys cannot be read") from None
                self._keys_at = self._clock.monotonic()
            return self._keys

    async def _request(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, object]:
        timeout = aiohttp.ClientTimeout(total=OIDC_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.request(
                    method, url, data=form, headers=headers, allow_redirects=False
                ) as reply,
            ):
                body = await reply.content.read(MAX_OIDC_REPLY_BYTES)
                while not reply.content.at_eof() and len(body) < MAX_OIDC_REPLY_BYTES:
                    body += await reply.content.read(MAX_OIDC_REPLY_BYTES - len(body))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise IdentityProviderFailed(f"it does not answer ({type(error).__name__})") from None
        if reply.status == 400 and form is not None:
            raise Unauthorized(
                "The provider does not accept this sign-in any more. Begin again.",
                code="identity_refused",
            )
        if reply.status != 200:
            raise IdentityProviderFailed(f"it answered with status {reply.status}")
        try:
            return msgspec.json.decode(body, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise IdentityProviderFailed("its answer is not JSON") from None


def _convert(reply: dict[str, object], kind: type[S]) -> S:
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError:
        raise IdentityProviderFailed("its answer lacks a field") from None


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
