"""Signatures and keys of an OpenID provider: forged tokens, new keys, and how often it is asked."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from chatd.api.accounts.oidc import OidcClient, OidcConfig, ProviderTokens
from chatd.api.errors import IdentityProviderFailed, Unauthorized
from tests.support.clock import FakeClock


class FakeProvider:
    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.keys = [RSAKey.generate_key(2048, {"kid": "first"})]
        self.issuer = ""
        self.named_issuer: str | None = None
        self.userinfo: dict[str, object] | None = None

    async def discovery(self, request: web.Request) -> web.Response:
        self.asked["discovery"] += 1
        named = self.named_issuer or self.issuer
        endpoints = ("authorization_endpoint", "token_endpoint")
        body = {"issuer": named, "jwks_uri": f"{self.issuer}/keys"}
        if self.userinfo is not None:
            body["userinfo_endpoint"] = f"{self.issuer}/userinfo"
        return web.json_response(body | {name: f"{self.issuer}/{name}" for name in endpoints})

    async def jwks(self, request: web.Request) -> web.Response:
        self.asked["keys"] += 1
        return web.json_response({"keys": [key.as_dict(private=False) for key in self.keys]})

    async def tell_user(self, request: web.Request) -> web.Response:
        self.asked["userinfo"] += 1
        assert request.headers["authorization"] == "Bearer an access token"
        return web.json_response(self.userinfo)

    def token(self, clock: FakeClock, key: RSAKey | OctKey, alg: str = "RS256") -> ProviderTokens:
        now = clock.now().timestamp()
        claims = {"iss": self.issuer, "aud": "chatd", "sub": "1", "nonce": "n", "email": "a@b.c"}
        claims |= {"iat": int(now), "exp": int(now) + 300}
        head = {"alg": alg, "kid": key.kid}
        made = jwt.encode(head, claims, key, algorithms=[alg])
        return ProviderTokens(id_token=made, access_token="an access token")


@asynccontextmanager
async def fake_provider() -> AsyncGenerator[FakeProvider]:
    provider = FakeProvider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.discovery)
    app.router.add_get("/keys", provider.jwks)
    app.router.add_get("/userinfo", provider.tell_user)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        provider.issuer = f"http://127.0.0.1:{port}"
        yield provider
    finally:
        await runner.cleanup()


async def test_only_tokens_signed_with_the_providers_key_are_accepted() -> None:
    clock = FakeClock()
    async with fake_provider() as provider:
        client = OidcClient(OidcConfig(issuer=provider.issuer, client_id="chatd"), clock)
        (key,) = provider.keys
        claims = await client.read_claims(provider.token(clock, key), "n")
        assert claims["sub"] == "1"
        forged = RSAKey.generate_key(2048, {"kid": "first"})
        by_secret = OctKey.import_key("a" * 40, {"kid": "first"})
        unsigned = provider.token(clock, key).id_token.rpartition(".")[0] + "."
        for tokens in (
            provider.token(clock, forged),
            provider.token(clock, by_secret, "HS256"),
            ProviderTokens(id_token=unsigned),
            ProviderTokens(id_token="junk"),
        ):
            with pytest.raises(Unauthorized):
                await client.read_claims(tokens, "n")
        with pytest.raises(Unauthorized):
            await client.read_claims(provider.token(clock, key), "another nonce")


async def test_a_new_key_is_read_at_once_and_unknown_ones_at_most_once_a_minute() -> None:
    clock = FakeClock()
    async with fake_provider() as provider:
        client = OidcClient(OidcConfig(issuer=provider.issuer, client_id="chatd"), clock)
        await client.read_claims(provider.token(clock, provider.keys[0]), "n")
        new = RSAKey.generate_key(2048, {"kid": "second"})
        provider.keys = [new]
        clock.advance(61)
        await client.read_claims(provider.token(clock, new), "n")
        assert provider.asked == {"discovery": 1, "keys": 2}
        unknown = RSAKey.generate_key(2048, {"kid": "third"})
        for _ in range(5):
            with pytest.raises(Unauthorized):
                await client.read_claims(provider.token(clock, unknown), "n")
        assert provider.asked == {"discovery": 1, "keys": 2}


async def test_groups_that_only_userinfo_has_are_read_for_the_same_user() -> None:
    clock = FakeClock()
    async with fake_provider() as provider:
        provider.userinfo = {"sub": "1", "groups": ["ops"], "email_verified": True, "iss": "x"}
        client = OidcClient(OidcConfig(issuer=provider.issuer, client_id="chatd"), clock)
        tokens = provider.token(clock, provider.keys[0])
        assert "groups" not in await client.read_claims(tokens, "n")
        assert provider.asked["userinfo"] == 0, "the token has all that is wanted"
        claims = await client.read_claims(tokens, "n", ("email", "groups"))
        assert (claims["groups"], claims["iss"]) == (["ops"], provider.issuer)
        assert "email_verified" not in claims, "it is not about the email of the token"
        provider.userinfo["sub"] = "2"
        with pytest.raises(Unauthorized, match="about another user"):
            await client.read_claims(tokens, "n", ("email", "groups"))


async def test_a_provider_that_names_another_issuer_is_refused() -> None:
    async with fake_provider() as provider:
        provider.named_issuer = "https://evil.example"
        client = OidcClient(OidcConfig(issuer=provider.issuer, client_id="chatd"), FakeClock())
        with pytest.raises(IdentityProviderFailed, match="another issuer"):
            await client.describe()


def test_the_client_secret_is_not_shown() -> None:
    config = OidcConfig(issuer="https://id", client_id="chatd", client_secret="hush")
    assert "hush" not in repr(config)
