"""Requests to a server: repeated while it does not answer, refused with a reason, bounded."""

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from chatd.cli.account.sign_in import Given, NotEncrypted, make_token_by_session
from chatd.client.drafts import ChatChange, Draft, TextInput
from chatd.client.errors import ApiError, ServerUnreachable, Validation
from chatd.client.exchange import ServerAddress, clean_url
from chatd.client.server import ServerApi, find_proxy, open_api
from chatd.domain.description import USER_ID
from chatd.domain.errors import InvalidInput
from tests.support.api.oidc import free_port
from tests.support.api.server import ME, ApiServer, serve_api
from tests.support.clock import FakeClock
from tests.support.factories import CHAT
from tests.support.outcomes import raised
from tests.support.providers.certificate import self_signed
from tests.support.providers.server import Cut, FakeServer, NoReply, Reply

TOKEN = "a-secret-that-nobody-prints"
HTML = b"<!doctype html><title>Welcome</title>"
HELLO = Draft(content=(TextInput("hello"),))
CHAT_REPLY = {"id": str(CHAT), "version": 3}


@pytest.fixture
async def fake() -> AsyncGenerator[FakeServer]:
    async with FakeServer.running() as fake:
        yield fake


@asynccontextmanager
async def api_at(url: str, clock: FakeClock | None = None) -> AsyncGenerator[ServerApi]:
    server = ServerAddress(url=url, token=TOKEN)
    async with ClientSession() as http:
        yield ServerApi(server, http) if clock is None else ServerApi(server, http, clock=clock)


@pytest.fixture
async def api(fake: FakeServer) -> AsyncGenerator[ServerApi]:
    async with api_at(fake.url) as api:
        yield api


async def refused(api: ServerApi) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await api.get_me()
    return caught.value


# Answers


async def test_a_real_server_is_read_and_changed(dsn: str) -> None:
    async with serve_api(dsn) as server, open_api(ServerAddress(url=server.url, token=ME)) as api:
        made = await api.create_chat(HELLO, key="one")
        again = await api.create_chat(HELLO, key="one")
        await api.amend_chat(made.id, ChatChange(title="Renamed"))
        listed = await api.list_chats(archived=False, limit=5, q=None)
        assert [(chat.id, chat.title) for chat in listed.items] == [(again.id, "Renamed")]
        await api.delete_chat(made.id)
        assert (await api.list_chats()).items == ()


async def test_a_file_is_uploaded_and_loaded(server_of_files: ApiServer) -> None:
    async with open_api(ServerAddress(url=server_of_files.url, token=ME)) as api:
        data = b"one\ntwo\n" * 100_000
        stored = await api.upload_file("zwölf.txt", "text/plain", io.BytesIO(data))
        assert (stored.name, stored.size_bytes) == ("zwölf.txt", len(data))
        content = api.load_content(stored.id)
        assert await content.read() == data
        parts: list[bytes] = []
        assert await content.write_to(parts.append) == len(data)
        assert b"".join(parts) == data
        with pytest.raises(ApiError) as caught:
            await content.read(max_bytes=1000)
        assert caught.value.code == "reply_too_large"


@pytest.fixture
async def server_of_files(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn) as server:
        yield server


async def test_a_refusal_has_the_servers_code_message_and_fields(
    fake: FakeServer, api: ServerApi
) -> None:
    wrong = {"field": "limit", "detail": "must be at most 200"}
    body = {"code": "invalid_input", "message": "limit: too large", "validations": [wrong]}
    fake.reply(400, body)
    error = await refused(api)
    assert (error.status, error.code, error.message) == (400, "invalid_input", "limit: too large")
    assert error.validations == (Validation("limit", "must be at most 200"),)


@pytest.mark.parametrize("status", [200, 404])
async def test_an_address_that_is_no_chatd_server_is_named(
    fake: FakeServer, api: ServerApi, status: int
) -> None:
    fake.reply(status, HTML)
    error = await refused(api)
    assert error.code == "not_chatd"
    assert fake.url in error.message
    assert "Check the address" in error.message


async def test_a_reply_that_does_not_fit_asks_for_the_same_version(
    fake: FakeServer, api: ServerApi
) -> None:
    fake.reply(200, {"user": 7})
    error = await refused(api)
    assert error.code == "unexpected_reply"
    assert "GET /auth/me" in error.message


async def test_a_redirect_is_not_followed(fake: FakeServer, api: ServerApi) -> None:
    async with FakeServer.running() as other:
        fake.reply(307, b"", {"location": f"{other.url}/api/v1/auth/me?secret=1"})
        error = await refused(api)
        assert (error.code, other.requests) == ("redirected", [])
        assert f"sends clients on to {other.url}." in error.message


@pytest.mark.parametrize("location", ["http://x:99999/", "http://[x/", ""])
async def test_a_redirect_to_no_address_is_an_error_too(
    fake: FakeServer, api: ServerApi, location: str
) -> None:
    fake.reply(302, b"", {"location": location})
    assert (await refused(api)).code == "redirected"


# No answer


@pytest.mark.parametrize("step", [NoReply(), Cut()], ids=["no reply", "cut"])
async def test_a_keyed_request_is_repeated_with_its_key(
    fake: FakeServer, api: ServerApi, step: NoReply | Cut
) -> None:
    fake.answer_with(Reply(headers={"content-type": "application/json"}, steps=(step,)))
    fake.reply(201, CHAT_REPLY)
    made = await api.create_chat(HELLO, key="once")
    assert made.id == CHAT
    assert [one.headers["idempotency-key"] for one in fake.requests] == ["once", "once"]
    assert fake.requests[0].body == fake.requests[1].body


async def test_a_change_without_a_key_is_sent_once(fake: FakeServer, api: ServerApi) -> None:
    fake.script(NoReply())
    with pytest.raises(ServerUnreachable):
        await api.resume_chat(CHAT)
    assert len(fake.requests) == 1


async def test_a_server_that_restarts_is_asked_again(fake: FakeServer, api: ServerApi) -> None:
    going = {"code": "going_away", "message": "The server is shutting down."}
    fake.reply(503, going, {"retry-after": "0"})
    fake.reply(502, HTML)
    fake.reply(200, CHAT_REPLY)
    assert (await api.get_chat(CHAT)).version == 3


async def test_a_deletion_whose_reply_was_lost_counts_as_done(
    fake: FakeServer, api: ServerApi
) -> None:
    fake.script(NoReply())
    fake.reply(404, {"code": "not_found", "message": "There is no such chat."})
    await api.delete_chat(CHAT)
    fake.reply(404, {"code": "not_found", "message": "There is no such chat."})
    with pytest.raises(ApiError):
        await api.delete_chat(CHAT)


async def test_it_gives_up_after_a_bounded_time_and_says_what_to_do() -> None:
    clock, url = FakeClock(), f"http://127.0.0.1:{free_port()}"
    async with api_at(url, clock) as api, asyncio.TaskGroup() as group:
        asking = group.create_task(raised(ServerUnreachable, api.get_me()))
        while not await is_over(asking, clock):
            await clock.advance_past("client_retry")
    waited = clock.monotonic() - FakeClock().monotonic()
    assert 5 < waited <= 15
    assert asking.result().message == (
        f"No server answers at {url}: connection refused. Start one with chatd serve, or name one"
        " with --url."
    )


async def is_over(task: asyncio.Task[ServerUnreachable], clock: FakeClock) -> bool:
    """False as soon as it waits for its next try."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(clock.wait_for_sleeper("client_retry"))
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    return task.done()


async def test_a_certificate_that_is_not_trusted_is_not_tried_again(tmp_path: Path) -> None:
    async with FakeServer.running(self_signed(tmp_path)) as fake, api_at(fake.url) as api:
        error = await raised(ServerUnreachable, api.get_me())
        assert "certificate is not trusted here (self-signed certificate)" in error.message
        assert "SSL_CERT_FILE" in error.message
        assert "chatd serve" not in error.message, "the server runs"
        assert fake.requests == []


async def refuse_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a web server answers what is no HTTP."""
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def test_a_server_without_tls_is_named_as_such() -> None:
    async with await asyncio.start_server(refuse_tls, "127.0.0.1", 0) as plain:
        url = f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}"
        async with api_at(url) as api:
            error = await raised(ServerUnreachable, api.get_me())
    assert error.message == (
        f"{url} does not speak TLS. Check the port, or name the server with http:// if no proxy"
        " stands before it."
    )


async def test_a_proxy_that_does_not_reach_the_server_is_named_as_such(
    fake: FakeServer, api: ServerApi
) -> None:
    fake.reply(502, HTML)
    error = await raised(ServerUnreachable, api.without_patience().get_me())
    assert error.message == (
        f"{fake.url} replies 502 and not as chatd does: it is a proxy that does not reach the"
        " server. Check that chatd serve runs behind it."
    )


# Secrets and addresses


async def test_the_token_is_in_no_error_and_in_no_printed_address(
    fake: FakeServer, api: ServerApi
) -> None:
    fake.reply(200, HTML)
    fake.reply(401, {"code": "unauthorized", "message": "The token is not valid."})
    fake.reply(307, b"", {"location": "/elsewhere"})
    errors = [await refused(api) for _ in range(3)]
    shown = [*map(repr, errors), *map(str, errors), repr(api.server), str(api.server)]
    assert [error.is_signed_out for error in errors] == [False, True, False]
    assert not any(TOKEN in text for text in shown)
    assert {one.headers["authorization"] for one in fake.requests} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:7870", "http://127.0.0.1:7870"),
        (" https://chat.example.com/api/v1/ ", "https://chat.example.com"),
        ("https://example.com/chatd/", "https://example.com/chatd"),
        ("https://example.com/chatd/api/v1", "https://example.com/chatd"),
        ("http://[::1]:7870/", "http://[::1]:7870"),
    ],
)
def test_an_address_is_cleaned(given: str, url: str) -> None:
    assert clean_url(given) == url


@pytest.mark.parametrize(
    "given",
    ["chat.example.com", "ftp://x", "http://", "http://a:b@x", "http://x:no", "http://[::1"],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput):
        clean_url(given)


# Proxies, and what is never sent

ADA = {"user": {"id": USER_ID, "username": "ada"}}


async def test_a_password_is_not_sent_over_a_connection_that_others_can_read() -> None:
    url = "http://chat.example.com"
    by_password = Given(url=url, username="ada", password="secret")
    await raised(NotEncrypted, make_token_by_session(by_password, "name"))
    await raised(NotEncrypted, make_token_by_session(Given(url=url, link_secret="x"), "name"))


async def test_a_netrc_does_not_replace_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with FakeServer.running() as fake:
        fake.reply(200, ADA)
        async with open_api(ServerAddress(url=fake.url, token="the-token")) as api:
            assert (await api.get_me()).user.username == "ada"
        assert fake.requests[0].headers["authorization"] == "Bearer the-token"


async def test_a_server_elsewhere_is_reached_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeServer.running() as proxy:
        proxy.reply(200, ADA)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "inside.example.com")
        async with open_api(ServerAddress(url="http://chat.example.com", token="t")) as api:
            assert (await api.get_me()).user.username == "ada"
        assert proxy.requests[0].path == "http://chat.example.com/api/v1/auth/me"
        for near in ("http://127.0.0.1:7870", "http://localhost", "http://inside.example.com"):
            assert find_proxy(near) is None
