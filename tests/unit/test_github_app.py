"""Apps of GitHub: the JWT that proves the App, its key, and the tokens of its installations."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from chatd.git_hosts.github_app import (
    RENEW_BEFORE_S,
    App,
    AppTokens,
    load_key,
    make_jwt,
    missing_permissions,
)
from chatd.git_hosts.host_api import HostCallFailed, HostRequests
from tests.support.clock import FakeClock
from tests.support.git_apis import REPOSITORY, running
from tests.support.github_app import (
    APP_ID,
    GRANTED,
    TOKEN_LIFETIME_S,
    FakeAppGitHub,
    Installation,
    new_key,
    pem_of,
)

CONNECTION = UUID(int=1)
KEY = new_key()
PEM = pem_of(KEY)


def decoded(part: str) -> dict[str, object]:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


class TokenRig:
    """The tokens of one App at a fake GitHub with the same clock, unless a test moves it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.host = FakeAppGitHub(self.clock.now)
        self.tokens = AppTokens(self.clock)
        self.app = App(id=APP_ID, private_key=self.host.pem)

    @property
    def requests(self) -> HostRequests:
        return HostRequests(f"{self.host.url}/api/v3", {}, self.clock, allow_private=True)

    async def get(self, repository: str = REPOSITORY, refused: str | None = None) -> str:
        return await self.tokens.get(
            self.requests, CONNECTION, self.app, repository, refused=refused
        )

    async def check(self, *patterns: str) -> str:
        return await self.tokens.check(self.requests, self.app, patterns)

    @property
    def asked(self) -> int:
        return self.host.asked("POST", "/access_tokens")


@pytest.fixture
async def rig() -> AsyncGenerator[TokenRig]:
    rig = TokenRig()
    async with running(rig.host):
        yield rig


def test_a_jwt_is_signed_dated_back_and_short() -> None:
    parts = make_jwt("Iv23.client", KEY, 1_800_000_000.9).split(".")
    assert decoded(parts[0]) == {"alg": "RS256", "typ": "JWT"}
    assert decoded(parts[1]) == {
        "iat": 1_799_999_940,
        "exp": 1_800_000_540,
        "iss": "Iv23.client",
    }
    assert "=" not in "".join(parts)


@pytest.mark.parametrize("skew_s", [-500, -60, 0, 55])
async def test_a_jwt_is_taken_although_the_clocks_differ_a_little(
    rig: TokenRig, skew_s: int
) -> None:
    """`skew_s`: how far the clock of chatd is ahead."""
    jwt = make_jwt(APP_ID, rig.host.key, rig.clock.now().timestamp() + skew_s)
    assert rig.host.wrong_jwt(jwt) is None


def encrypted() -> str:
    form, lock = PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
    return KEY.private_bytes(Encoding.PEM, form, lock).decode()


def elliptic() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: "", "not a private key"),
        (lambda: "not a key", "not a private key"),
        (lambda: PEM.replace("A", "B", 40), "not a private key"),
        (encrypted, "passphrase"),
        (elliptic, "RSA key"),
        (lambda: pem_of(generate_private_key(65_537, 1024)), "2048 bits"),
    ],
)
def test_a_text_that_is_no_usable_key_is_refused_and_not_repeated(
    make: Callable[[], str], words: str
) -> None:
    text = make()
    with pytest.raises(ValueError, match=words) as caught:
        load_key(text)
    assert text == "" or text not in str(caught.value)


def test_both_forms_of_a_key_are_taken_and_it_is_not_shown() -> None:
    form = PrivateFormat.PKCS8
    other = KEY.private_bytes(Encoding.PEM, form, NoEncryption()).decode()
    assert load_key(f"\n{PEM}\n").private_numbers() == load_key(other).private_numbers()
    assert "PRIVATE" not in repr(App(id="1", private_key=PEM))


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, []),
        ({"contents": "admin"}, []),
        ({"contents": "read", "checks": "write"}, ["contents (write)"]),
        ({"pull_requests": "none"}, ["pull requests (write)"]),
    ],
)
def test_permissions_that_an_installation_lacks_are_named(
    changes: dict[str, str], missing: list[str]
) -> None:
    assert missing_permissions({**GRANTED, **changes}, "api") == missing


async def test_a_token_is_for_one_repository_and_kept_until_ten_minutes_before_its_end(
    rig: TokenRig,
) -> None:
    first = await rig.get()
    (minted,) = rig.host.minted.values()
    assert (minted.repositories, minted.permissions) == ({REPOSITORY}, GRANTED)
    rig.clock.advance(TOKEN_LIFETIME_S - RENEW_BEFORE_S - 2)
    assert await rig.get() == first
    rig.clock.advance(3)
    assert await rig.get() != first
    assert rig.asked == 2


async def test_a_token_for_git_may_only_read_and_write_contents(rig: TokenRig) -> None:
    args = (rig.requests, CONNECTION, rig.app, REPOSITORY)
    assert await rig.tokens.get(*args, use="git") != await rig.tokens.get(*args, use="api")
    first = next(iter(rig.host.minted.values()))
    assert first.permissions == {"contents": "write", "metadata": "read"}


async def test_one_request_at_a_time_and_one_token_for_all_that_wait(rig: TokenRig) -> None:
    rig.host.installations["acme"].repositories.add("acme/docs")
    asked = [rig.get(name) for name in (REPOSITORY, "acme/docs", "Acme/App") for _ in range(5)]
    got = await asyncio.gather(*asked)
    assert len(set(got)) == 2
    assert (rig.asked, rig.host.most_waiting) == (2, 1)


async def test_a_token_that_is_refused_is_replaced_and_another_key_gets_its_own(
    rig: TokenRig,
) -> None:
    first = await rig.get()
    second = await rig.get(refused=first)
    assert second != first
    assert await rig.get(refused=first) == second
    key = new_key()
    rig.host.keys.append(key)
    rig.app = App(id=APP_ID, private_key=pem_of(key))
    assert await rig.get() not in (first, second)


async def test_while_github_is_away_a_token_is_used_until_its_last_minute(rig: TokenRig) -> None:
    first = await rig.get()
    rig.clock.advance(TOKEN_LIFETIME_S - 120)
    rig.host.broken = [502, 502]
    assert await rig.get() == first
    rig.clock.advance(100)
    with pytest.raises(HostCallFailed, match="status 502"):
        await rig.get()


def uninstall(rig: TokenRig) -> None:
    rig.host.installations.clear()


def suspend(rig: TokenRig) -> None:
    rig.host.installations["acme"].suspended = True


def delete_key(rig: TokenRig) -> None:
    rig.host.keys = [new_key()]


def rename_app(rig: TokenRig) -> None:
    rig.app = App(id="999", private_key=rig.app.private_key)


def set_clock_back(rig: TokenRig) -> None:
    rig.clock.advance(-3600)
    rig.host.now = FakeClock().now


def set_clock_forward(rig: TokenRig) -> None:
    rig.clock.advance(3600)
    rig.host.now = FakeClock().now


def revoke_permission(rig: TokenRig) -> None:
    del rig.host.installations["acme"].permissions["issues"]


REFUSALS: list[tuple[Callable[[TokenRig], None], str]] = [
    (uninstall, "App 123456 is not installed for acme"),
    (suspend, "is suspended"),
    (delete_key, "refuses the private key of the App 123456"),
    (rename_app, "knows no App with the id 999"),
    (set_clock_back, "does not accept the time of this server"),
    (set_clock_forward, "does not accept the time of this server"),
    (revoke_permission, r"lacks permissions for acme.*: issues \(write\)"),
]


@pytest.mark.parametrize(("change", "words"), REFUSALS)
async def test_a_refusal_is_said_in_plain_words(
    rig: TokenRig, change: Callable[[TokenRig], None], words: str
) -> None:
    change(rig)
    for ask in (rig.get(), rig.check(REPOSITORY), rig.check("acme/*")):
        with pytest.raises(HostCallFailed, match=words) as caught:
            await ask
        assert caught.value.reason == "refused"


async def test_a_repository_outside_the_installation_is_named(rig: TokenRig) -> None:
    with pytest.raises(HostCallFailed, match="is not installed for acme/docs"):
        await rig.get("acme/docs")
    rig.host.installations["zoo"] = Installation(78, {"zoo/app"})
    assert await rig.check("acme/*", "zoo/app") == "chatd-app[bot]"
