"""Asks an OpenID provider: its description, its keys, and the tokens for a code.

Every request has a timeout and a bounded reply. Keys are kept, and read again for a key that is
not known, at most once a minute, so that forged tokens do not load the provider.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from msgspec import Struct

from chatd.api.errors import IdentityProviderFailed, Unauthorized
from chatd.domain.access.accounts import ExpectedToken, find_token_fault
from chatd.domain.ports import Clock

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
