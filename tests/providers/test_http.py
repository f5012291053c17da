"""The HTTP session of a provider, over real sockets."""

import asyncio
import os
import pickle
import re
import ssl
import traceback
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import pytest

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    ProviderError,
    ProviderFault,
    StreamFailed,
    StreamPing,
    TextDelta,
)
from chatd.providers.http import MAX_ERROR_BODY_BYTES, ProviderSession
from chatd.providers.provider_config import (
    HttpConfig,
    Secret,
    TlsFiles,
    environment_proxies,
    provider_proxies,
    redact_secrets,
)
from chatd.providers.sse import FramedDecoder
from tests.support.providers.certificate import LOCKED_KEY, self_signed
from tests.support.providers.server import (
    Cut,
    FakeServer,
    Gate,
    Hangup,
    NoReply,
    RecordedRequest,
    Reply,
    Reset,
    Silence,
)

KEY = "sk-very-secret-0123456789abcdef"
WAIT_S = 30
END = Finished(reason="stop", usage=TokenUsage())
QUICK = HttpConfig(read_timeout_s=0.05, error_body_timeout_s=0.05)


class Echo(FramedDecoder):
    """Each word is text; the word `end` ends the answer."""

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        for word in chunk.decode().split():
            self._decode(b"", word.encode())
        return self._take()

    def _decode(self, name: bytes, data: bytes, *, is_last: bool = False) -> None:
        match data:
            case b"fail":
                fault = ProviderFault(message=f"failed with {KEY}", body=KEY)
                self._out.append(StreamFailed(fault=fault))
            case b"end":
                self.done = True
                self._out.append(END)
            case _:
                self._out.append(TextDelta(id="0", delta=data.decode()))


@pytest.fixture
async def fake() -> AsyncGenerator[FakeServer]:
    async with FakeServer.running() as server:
        yield server


@pytest.fixture
async def http() -> AsyncGenerator[ProviderSession]:
    http = ProviderSession("acme", (Secret(KEY),))
    yield http
    await http.close()


async def ask(http: ProviderSession, url: str, body: bytes = b"{}") -> list[ModelEvent]:
    headers = {"x-api-key": KEY}
    async with (
        asyncio.timeout(WAIT_S),
        http.stream(url=url, headers=headers, body=body, decoder=Echo()) as events,
    ):
        return [event async for event in events]


async def failure(url: str, config: HttpConfig | None = None) -> ProviderFault:
    http = ProviderSession("acme", (Secret(KEY),), config)
    try:
        with pytest.raises(ProviderError) as caught:
            await ask(http, url)
    finally:
        await http.close()
    assert_clean(caught.value)
    assert caught.value.fault.provider == "acme"
    return caught.value.fault


def assert_clean(error: ProviderError) -> None:
    """Neither the error nor its context contains the key."""
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = [repr(error), str(error), repr(error.args), repr(error.fault), *_lines(error)]
    assert not any(KEY in text for text in shown)


def _lines(error: BaseException) -> list[str]:
    return traceback.format_exception(error)


# Streaming


async def test_an_error_in_the_reader_closes_the_socket(
    fake: FakeServer, http: ProviderSession
) -> None:
    fake.script(b"one ", Silence())
    with suppress(ZeroDivisionError):
        async with http.stream(url=fake.url, headers={}, body=b"{}", decoder=Echo()) as events:
            await anext(events)
            raise ZeroDivisionError
    async with asyncio.timeout(WAIT_S):
        await fake.disconnected.wait()


async def test_a_reader_cancelled_before_the_reply_closes_the_socket(http: ProviderSession) -> None:
    """The status has not arrived either."""
    accepted, left = asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        while await reader.read(1024):
            pass
        left.set()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(WAIT_S), server, asyncio.TaskGroup() as group:
        reading = group.create_task(ask(http, f"http://127.0.0.1:{port}"))
        await accepted.wait()
        reading.cancel()
        await left.wait()


async def test_a_connection_is_reused_after_a_complete_answer(
    fake: FakeServer, http: ProviderSession
) -> None:
    for _ in range(3):
        fake.script(b"one ", b"end")
        await ask(http, fake.url)
    assert fake.connections == 1


async def test_the_client_does_not_wait_for_the_server_to_close(
    fake: FakeServer, http: ProviderSession
) -> None:
    fake.script(b"one ", b"end", Silence())
    assert await ask(http, fake.url) == [TextDelta(id="0", delta="one"), END]


async def test_a_cut_after_the_final_event_is_ignored(
    fake: FakeServer, http: ProviderSession
) -> None:
    for ending in (Cut(), Reset(), Hangup()):
        fake.script(b"end", ending)
        assert await ask(http, fake.url) == [END]


class Fickle(FakeServer):
    """Closes a kept connection when it is reused."""

    def answer(self, request: RecordedRequest) -> Reply:
        seen = [other for other in self.requests if other.connection == request.connection]
        return super().answer(request) if len(seen) == 1 else Reply(steps=(NoReply(),))


async def test_a_closed_reused_connection_is_replaced(http: ProviderSession) -> None:
    async with Fickle.running() as fake:
        for _ in range(3):
            fake.script(b"one ", b"end")
            assert (await ask(http, fake.url))[-1] == END


async def test_a_cut_new_connection_is_not_retried(fake: FakeServer) -> None:
    fake.script(NoReply())
    assert (await failure(fake.url)).transport == "reset"
    assert fake.connections == 1


async def test_a_request_larger_than_a_megabyte_is_sent(
    fake: FakeServer, http: ProviderSession
) -> None:
    fake.script(b"end")
    body = b'{"a":"' + b"x" * 3_000_000 + b'"}'
    await ask(http, fake.url, body)
    assert fake.requests[0].body == body
    assert fake.requests[0].headers["content-length"] == str(len(body))


async def test_no_cookie_is_kept_and_nothing_is_compressed(
    fake: FakeServer, http: ProviderSession
) -> None:
    # By name: clients do not store cookies of an IP address.
    url = fake.url.replace("127.0.0.1", "localhost")
    fake.reply(500, b"{}", {"set-cookie": "a=b; Path=/"})
    fake.script(b"end")
    with pytest.raises(ProviderError):
        await ask(http, url)
    await ask(http, url)
    assert "cookie" not in fake.requests[1].headers
    assert fake.requests[1].headers["accept-encoding"] == "identity"


async def test_a_closed_provider_is_not_opened_again(fake: FakeServer) -> None:
    http = ProviderSession("acme")
    await http.close()
    with pytest.raises(ProviderError):
        await ask(http, fake.url)
    assert fake.requests == []


# The network


async def test_a_reply_without_a_final_event_is_incomplete(fake: FakeServer) -> None:
    fake.script(b"one ")
    assert (await failure(fake.url)).incomplete


async def test_bytes_without_an_event_are_a_ping(fake: FakeServer, http: ProviderSession) -> None:
    gate = Gate()
    fake.script(b"   ", gate, b"one ", b"end")
    async with http.stream(url=fake.url, headers={}, body=b"{}", decoder=Echo()) as events:
        assert await anext(events) == StreamPing()
        gate.open()
        assert [event async for event in events][-1] == END


async def test_a_refused_connection_is_reported(fake: FakeServer) -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    fault = await failure(f"http://127.0.0.1:{port}/v1?key={KEY}")
    expected = f"no connection to 127.0.0.1:{port}: connection refused."
    assert (fault.transport, fault.message) == ("refused", expected)
    assert fault.never_answered
    assert classify_fault(fault).retryable
    assert KEY not in repr(fault)


async def test_a_refusal_by_all_addresses_of_a_name_has_its_cause(fake: FakeServer) -> None:
    url = fake.url.replace("127.0.0.1", "localhost")
    await fake.stop_listening()
    fault = await failure(url)
    address = url.removeprefix("http://")
    assert fault.message == f"no connection to {address}: connection refused."


async def test_a_server_that_has_answered_is_not_marked_as_never_reached(
    fake: FakeServer, http: ProviderSession
) -> None:
    fake.refuse_with(503, b"{}", Hangup())
    with pytest.raises(ProviderError):
        await ask(http, fake.url)
    await fake.stop_listening()
    with pytest.raises(ProviderError) as caught:
        await ask(http, fake.url)
    assert (caught.value.fault.transport, caught.value.fault.never_answered) == ("refused", False)


async def test_an_unknown_host_name_is_reported() -> None:
    fault = await failure("http://no-such-host.invalid/")
    assert fault.transport == "dns"
    assert fault.message.startswith("the name no-such-host.invalid cannot be resolved: ")
    assert fault.hint is not None


async def test_an_untrusted_certificate_is_rejected(tmp_path: Path) -> None:
    async with FakeServer.running(self_signed(tmp_path)) as fake:
        fault = await failure(fake.url)
        assert fake.requests == []
    assert fault.transport == "tls"
    assert "certificate" in fault.message
    assert classify_fault(fault).kind == "config"


async def answering(scheme: str, answer: bytes) -> ProviderFault:
    """The failure of a call to a server that always sends this."""

    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(mumble, "127.0.0.1", 0)
    async with server:
        return await failure(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_server_without_tls_is_reported() -> None:
    fault = await answering("https", b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert fault.transport == "tls"


async def test_a_server_that_does_not_speak_http_is_reported() -> None:
    fault = await answering("http", b"SSH-2.0-OpenSSH_9.2\r\n")
    assert re.fullmatch(r"127\.0\.0\.1:\d+ does not speak HTTP", fault.message)
    assert not classify_fault(fault).retryable


async def test_a_proxy_of_the_environment_is_not_used(
    fake: FakeServer, http: ProviderSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    fake.script(b"one ", b"end")
    assert (await ask(http, fake.url))[-1] == END


async def test_an_unreachable_proxy_is_reported(fake: FakeServer) -> None:
    secret = "http://me:pass-word-123@127.0.0.1:1"
    config = HttpConfig(proxies=provider_proxies(secret))
    fault = await failure(fake.url, config)
    assert fault.message == "no connection to the proxy 127.0.0.1:1: connection refused."
    assert "pass-word" not in repr(config)
    assert fake.requests == []


@pytest.mark.parametrize(
    ("status", "is_retried"), [(403, False), (407, False), (502, True), (503, True), (429, True)]
)
async def test_a_proxy_that_fails_for_a_moment_does_not_end_the_turn(
    status: int, *, is_retried: bool
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = HttpConfig(proxies=provider_proxies(proxy))
        fault = await failure("https://model.invalid/v1", config)
    assert "model.invalid:443" in fault.message
    assert f"status {status}" in fault.message
    assert classify_fault(fault).retryable == is_retried


async def test_a_socks_proxy_of_the_environment_is_refused_by_name() -> None:
    env = {"ALL_PROXY": "socks5h://me:pass-word-123@127.0.0.1:1"}
    fault = await failure("https://model.invalid", HttpConfig(proxies=environment_proxies(env)))
    assert "ALL_PROXY" in fault.message
    assert 'proxy of this provider, to "none"' in fault.message
    assert "pass-word" not in repr(fault)
    assert not classify_fault(fault).retryable


def test_a_key_with_a_password_is_refused_and_never_asked_for(tmp_path: Path) -> None:
    self_signed(tmp_path)
    pem, key = tmp_path / "server.pem", tmp_path / "locked.pem"
    key.write_text(LOCKED_KEY)
    files = TlsFiles(client_cert=str(pem), client_key=str(key))
    with pytest.raises(ProviderError, match="has a password"):
        ProviderSession("acme", (), HttpConfig(tls=files))


async def test_a_request_goes_through_the_proxy_of_its_provider(fake: FakeServer) -> None:
    fake.script(b"one ", b"end")
    http = ProviderSession("acme", (), HttpConfig(proxies=provider_proxies(fake.url)))
    try:
        assert (await ask(http, "http://model.invalid/v1/x"))[-1] == END
    finally:
        await http.close()
    assert fake.requests[0].path == "http://model.invalid/v1/x"


async def test_a_private_authority_is_trusted_by_its_provider_only(tmp_path: Path) -> None:
    async with FakeServer.running(self_signed(tmp_path)) as fake:
        files = TlsFiles(ca_file=str(tmp_path / "server.pem"))
        http = ProviderSession("acme", (), HttpConfig(tls=files))
        fake.script(b"one ", b"end")
        try:
            assert (await ask(http, fake.url))[-1] == END
        finally:
            await http.close()
        assert (await failure(fake.url)).transport == "tls"


async def test_a_client_certificate_is_shown_to_a_server_that_requires_it(tmp_path: Path) -> None:
    context, pem = self_signed(tmp_path), str(tmp_path / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pem)
    async with FakeServer.running(context) as fake:
        http = ProviderSession("acme", (), HttpConfig(tls=TlsFiles(ca_file=pem, client_cert=pem)))
        fake.script(b"one ", b"end")
        try:
            assert (await ask(http, fake.url))[-1] == END
        finally:
            await http.close()


@pytest.mark.parametrize("setting", ["ca_file", "client_cert"])
def test_a_pipe_instead_of_a_certificate_is_refused_without_waiting(
    tmp_path: Path, setting: str
) -> None:
    """An administrator names the path over the API: the event loop must not wait for a writer."""
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    with pytest.raises(ProviderError, match="not a regular file"):
        ProviderSession("acme", (), HttpConfig(tls=TlsFiles(**{setting: str(pipe)})))


@pytest.mark.parametrize("setting", ["ca_file", "client_cert"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, setting: str) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    for path, cause in (
        (tmp_path / "missing.pem", "no such file or directory"),
        (broken, "not a PEM file of the expected kind"),
    ):
        with pytest.raises(ProviderError) as caught:
            ProviderSession("acme", (), HttpConfig(tls=TlsFiles(**{setting: str(path)})))
        assert caught.value.fault.message == f"{setting} {path} cannot be used: {cause}"
        assert caught.value.fault.type == "config"


@pytest.mark.parametrize(
    ("url", "env", "proxy"),
    [
        ("https://a.example/v1", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.example/v1", {"https_proxy": "p:1", "HTTPS_PROXY": "q:1"}, "http://p:1"),
        ("https://a.example/v1", {"http_proxy": "http://p:1"}, None),
        ("http://a.example/v1", {"http_proxy": "http://p:1"}, "http://p:1"),
        ("https://a.example/v1", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.example/v1", {"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("https://a.example/v1", {"ALL_PROXY": "p:1", "NO_PROXY": "b.example, a.example"}, None),
        ("https://x.a.example/v1", {"ALL_PROXY": "p:1", "NO_PROXY": "a.example"}, None),
        ("https://x.a.example/v1", {"ALL_PROXY": "p:1", "NO_PROXY": ".a.example"}, None),
        ("https://xa.example/v1", {"ALL_PROXY": "p:1", "NO_PROXY": "a.example"}, "http://p:1"),
        ("https://a.example:8443/", {"ALL_PROXY": "p:1", "NO_PROXY": "a.example:8443"}, None),
        ("https://a.example/", {"ALL_PROXY": "p:1", "NO_PROXY": "a.example:8443"}, "http://p:1"),
        ("http://10.1.2.3/", {"ALL_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://11.1.2.3/", {"ALL_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
        ("http://[fd00::1]/", {"ALL_PROXY": "p:1", "NO_PROXY": "fd00::/8"}, None),
        ("http://127.0.0.1:11434/v1", {"ALL_PROXY": "p:1"}, None),
        ("http://localhost:11434/v1", {"ALL_PROXY": "p:1"}, None),
        ("http://[::1]:11434/v1", {"ALL_PROXY": "p:1"}, None),
        ("https://a.example/v1", {}, None),
        ("https://[broken", {"ALL_PROXY": "p:1"}, None),
    ],
)
def test_a_proxy_of_the_environment_follows_the_usual_rules(
    url: str, env: dict[str, str], proxy: str | None
) -> None:
    found = environment_proxies(env).choose(url)
    assert (None if found is None else found.reveal()) == proxy


def test_the_proxy_of_a_provider_replaces_that_of_the_environment() -> None:
    local = "http://127.0.0.1:11434/v1"
    assert provider_proxies("p:1").choose(local) == Secret("http://p:1")
    assert provider_proxies("none").choose("https://a.example/v1") is None


@pytest.mark.parametrize("url", ["nonsense", "ftp://host/", "http://", "http://[::1"])
async def test_an_invalid_address_is_reported(url: str) -> None:
    assert classify_fault(await failure(url)).kind == "config"


# Error replies


async def test_an_error_keeps_the_type_of_the_api(fake: FakeServer) -> None:
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    fake.reply(529, said, {"retry-after": "7"})
    fault = await failure(fake.url)
    assert (fault.status_code, fault.type, fault.retry_after_s) == (529, "overloaded_error", 7)
    assert fault.message == "status 529"
    assert classify_fault(fault).error.detail == "Overloaded"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "9", "retry-after-ms": "250"}, 0.25),
        (
            {
                "date": "Sun, 15 Nov 2026 22:00:00 GMT",
                "Retry-After": "Sun, 15 Nov 2026 22:01:30 GMT",
            },
            90,
        ),
        ({"retry-after": "soon"}, None),
    ],
)
async def test_the_retry_delay_is_read_from_headers(
    fake: FakeServer, headers: dict[str, str], wait: float | None
) -> None:
    fake.reply(429, {"error": {"type": "rate_limit_error", "message": "Slow down"}}, headers)
    assert (await failure(fake.url)).retry_after_s == wait


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"error": {"type": "invalid_request_error", "code": "context_length_exceeded"}}, "c"),
        ({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, "R"),
        ({"error": {"code": None, "type": "tokens"}}, "t"),
        ({"error": "nope", "code": "provider_disabled"}, "p"),
        ({"type": "x"}, "x"),
        ({"error": {}}, None),
        ([1], None),
        (b"<html>", None),
        (b"plain", None),
        (b"{" * 5000, None),
    ],
)
async def test_the_most_specific_error_type_is_used(
    fake: FakeServer, body: object, word: str | None
) -> None:
    fake.reply(400, body)
    fault = await failure(fake.url)
    assert (fault.type or "")[:1] == (word or "")


@pytest.mark.parametrize("status", [200, 404, 502])
async def test_a_web_page_instead_of_a_stream_is_reported(fake: FakeServer, status: int) -> None:
    fake.reply(status, b"<!doctype html><title>Hello</title>")
    fault = await failure(fake.url)
    assert "web page" in fault.message
    classified = classify_fault(fault)
    assert classified.retryable is (status == 502)
    assert (classified.kind == "config") is (status != 502)
    assert "<" not in (classified.error.detail or "")


async def test_json_instead_of_a_stream_is_reported(fake: FakeServer) -> None:
    fake.reply(200, {"error": {"message": "model not found", "type": "not_found_error"}})
    fault = await failure(fake.url)
    expected = ("not_found_error", "model not found")
    assert (fault.type, classify_fault(fault).error.detail) == expected


@pytest.mark.parametrize(
    ("body", "status", "retryable"),
    [
        ({"error": {"message": "Provider returned error", "code": 502}}, 502, True),
        ({"error": {"message": "slow", "code": "429"}}, 429, True),
        ({"error": {"message": "slow", "status": 429}}, 429, True),
        ({"error": "busy", "code": 503}, 503, True),
        ({"error": {"message": "no", "code": 400}}, 400, False),
        ({"error": {"message": "odd", "code": True}}, 200, False),
        ({"error": {"message": "odd", "code": 7}}, 200, False),
    ],
)
async def test_the_status_inside_a_reply_of_status_200_counts(
    fake: FakeServer, body: object, status: int, *, retryable: bool
) -> None:
    fake.reply(200, body)
    fault = await failure(fake.url)
    assert (fault.status_code, classify_fault(fault).retryable) == (status, retryable)


async def test_a_stream_with_a_wrong_content_type_is_read(
    fake: FakeServer, http: ProviderSession
) -> None:
    fake.reply(200, b"data: one", {"content-type": "application/json"})
    with pytest.raises(ProviderError) as caught:
        await ask(http, fake.url)
    assert caught.value.fault.incomplete


async def test_an_endless_error_body_is_read_up_to_a_limit(fake: FakeServer) -> None:
    fake.reply(500, b"x" * 1_000_000)
    fault = await failure(fake.url)
    assert len(fault.body or "") == MAX_ERROR_BODY_BYTES


async def test_an_error_body_that_stalls_is_reported_as_far_as_received(fake: FakeServer) -> None:
    fake.refuse_with(503, b"try later", Silence())
    fault = await failure(fake.url, QUICK)
    assert (fault.status_code, fault.body) == (503, "try later")


@pytest.mark.covers("providers-17")
async def test_a_redirect_is_not_followed(fake: FakeServer) -> None:
    async with FakeServer.running() as other:
        fake.reply(307, b"", {"location": f"{other.url}/?k=1"})
        fault = await failure(fake.url)
        assert other.requests == []
    assert classify_fault(fault).kind == "config"
    assert "redirect" in fault.message


# Secrets


@pytest.mark.covers("providers-17")
@pytest.mark.promise("P13")
async def test_a_key_in_an_error_body_is_redacted(fake: FakeServer) -> None:
    fake.reply(401, {"error": {"message": f"Incorrect API key provided: {KEY}."}})
    fault = await failure(fake.url)
    assert fault.body == '{"error":{"message":"Incorrect API key provided: [key]."}}'


@pytest.mark.promise("P13")
async def test_a_key_in_a_stream_error_is_redacted(fake: FakeServer) -> None:
    fake.script(b"one ", b"fail")
    fault = await failure(fake.url)
    assert (fault.message, fault.body) == ("failed with [key]", "[key]")


def test_a_secret_is_hidden_in_every_representation() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == KEY
    assert secret == Secret(KEY)
    assert secret != Secret("other")
    assert not Secret("")
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.covers("providers-17")
@pytest.mark.promise("P13")
def test_the_key_of_a_header_is_redacted_without_its_scheme() -> None:
    header = Secret("Bearer s3cr3t-t0ken")
    assert redact_secrets("token s3cr3t-t0ken is unknown", [header]) == "token [key] is unknown"
    assert redact_secrets("got 'Bearer s3cr3t-t0ken'", [header]) == "got '[key]'"
    assert redact_secrets("the bearer of this", [header]) == "the bearer of this"


def test_short_values_are_not_redacted() -> None:
    assert redact_secrets("1 and true", [Secret("1"), Secret("true"), Secret("")]) == "1 and true"
