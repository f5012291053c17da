"""Through which proxy a server is reached, and what is never sent."""

from pathlib import Path

import pytest

from chatd.client.exchange import ServerAddress
from chatd.client.http_session import find_proxy, open_api
from chatd.client.resources import Me
from chatd.client.session_sign_in import NotEncrypted, make_token_by_link, make_token_by_password
from chatd.domain.description import USER_ID
from tests.support.outcomes import raised
from tests.support.providers.server import FakeServer

ME = {"user": {"id": USER_ID, "username": "ada"}}


async def test_a_password_is_not_sent_over_a_connection_that_others_can_read() -> None:
    url = "http://chat.example.com"
    await raised(NotEncrypted, make_token_by_password(url, "ada", "secret", "name"))
    await raised(NotEncrypted, make_token_by_link(url, "secret", "name"))


async def test_a_netrc_does_not_replace_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with FakeServer.running() as fake:
        fake.reply(200, ME)
        async with open_api(ServerAddress(url=fake.url, token="the-token")) as api:
            assert (await api.get("/auth/me", Me)).user.username == "ada"
        assert fake.requests[0].headers["authorization"] == "Bearer the-token"


async def test_a_server_elsewhere_is_reached_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeServer.running() as proxy:
        proxy.reply(200, ME)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "inside.example.com")
        async with open_api(ServerAddress(url="http://chat.example.com", token="t")) as api:
            assert (await api.get("/auth/me", Me)).user.username == "ada"
        assert proxy.requests[0].path == "http://chat.example.com/api/v1/auth/me"
        for near in ("http://127.0.0.1:7870", "http://localhost", "http://inside.example.com"):
            assert find_proxy(near) is None
