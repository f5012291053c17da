"""The proxy of a workspace on its real socket: what it admits, and what attacks get."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.workspaces.network import network_proxy
from chatd.workspaces.network.inside import PROXY_SOCKET
from chatd.workspaces.network.network_proxy import NetworkProxy
from chatd.workspaces.network.workspace_networks import policy_rules
from tests.support.network_names import TestNetwork

TEST_TIMEOUT_S = 30.0
PUBLIC = "93.184.215.14"
POST = b"POST http://example.com/ HTTP/1.1\r\nHost: a\r\n"
METADATA = "169.254.169.254"


class RecordingServer:
    """Replies to every request with its own bytes' count, and keeps what it got."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65_536)
        self.received.append(data)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()


@asynccontextmanager
async def recording() -> AsyncGenerator[RecordingServer]:
    server = RecordingServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


class ProxyRig:
    def __init__(self, proxy: NetworkProxy, network: TestNetwork, path: Path) -> None:
        self.proxy = proxy
        self.network = network
        self.path = path

    async def ask(self, data: bytes) -> bytes:
        """What the proxy replies until it ends the connection."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(data)
        reply = await reader.read()
        writer.close()
        return reply


@asynccontextmanager
async def serving(
    tmp_path: Path,
    allow: Sequence[str],
    names: dict[str, list[list[str]]],
    servers: dict[str, int] | None = None,
) -> AsyncGenerator[ProxyRig]:
    network = TestNetwork(names, servers or {})
    rules = policy_rules(tuple(allow))
    proxy = NetworkProxy(lambda: rules, network.dialer, SystemClock())
    async with asyncio.timeout(TEST_TIMEOUT_S), proxy.listening(tmp_path / "p", None):
        yield ProxyRig(proxy, network, tmp_path / "p" / PROXY_SOCKET)


def connect_to(authority: str) -> bytes:
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()


def get(url: str, *headers: str) -> bytes:
    lines = [f"GET {url} HTTP/1.1", "Host: any.example", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_a_request_reaches_an_allowed_host_with_the_host_of_its_address(
    tmp_path: Path,
) -> None:
    async with (
        recording() as server,
        serving(
            tmp_path, ["example.com"], {"example.com": [[PUBLIC]]}, {PUBLIC: server.port}
        ) as rig,
    ):
        reply = await rig.ask(get("http://Example.COM./a?b#c", "Proxy-Authorization: x"))
        assert reply.startswith(b"HTTP/1.1 200")
        assert reply.endswith(b"hello")
        (got,) = server.received
        assert got.startswith(b"GET /a?b HTTP/1.1\r\nHost: example.com\r\n")
        assert b"any.example" not in got
        assert b"roxy" not in got
        assert rig.network.connected == [(PUBLIC, 80)]


async def test_a_tunnel_passes_bytes_both_ways(tmp_path: Path) -> None:
    async with (
        recording() as server,
        serving(
            tmp_path, ["example.com"], {"example.com": [[PUBLIC]]}, {PUBLIC: server.port}
        ) as rig,
    ):
        reply = await rig.ask(connect_to("example.com:443") + b"early bytes")
        assert reply.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
        assert server.received == [b"early bytes"]
        assert rig.network.connected == [(PUBLIC, 443)]
        assert rig.proxy.refusals == ()


async def test_a_refusal_names_the_host_and_says_how_to_allow_it(tmp_path: Path) -> None:
    async with serving(tmp_path, ["pypi.org"], {}) as rig:
        for _ in range(2):
            await rig.ask(connect_to("evil.example:443"))
        reply = (await rig.ask(connect_to("evil.example:443"))).decode()
        assert reply.startswith("HTTP/1.1 403 This workspace may not reach evil.example:443\r\n")
        assert "Its template allows: pypi.org." in reply
        assert "An administrator can add the host to `allow` of the template" in reply
        await rig.ask(get("http://evil.example/") + b"x" * 300_000)
        seen = {(each.host, each.port): each.count for each in rig.proxy.take_refusals()}
        assert seen == {("evil.example", 443): 3, ("evil.example", 80): 1}
        assert rig.network.resolved == rig.network.connected == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["::ffff:169.254.169.254"],
        [METADATA],
        ["10.0.0.7", "192.168.1.1"],
        ["0.0.0.0"],
        ["fe80::1"],
        ["fd00::1"],
        ["64:ff9b::7f00:1"],
        ["100.64.0.1"],
    ],
)
async def test_a_name_that_leads_to_a_private_address_is_refused(
    tmp_path: Path, addresses: list[str]
) -> None:
    async with serving(tmp_path, ["*.example.com"], {"a.example.com": [addresses]}) as rig:
        reply = await rig.ask(connect_to("a.example.com:443"))
        assert reply.startswith(b"HTTP/1.1 403 ")
        assert b"private:a.example.com:443" in reply
        assert rig.network.connected == []
        (seen,) = rig.proxy.refusals
        assert seen.reason == "private_address"


@pytest.mark.parametrize(
    "authority",
    [
        f"{METADATA}:80",
        "[::ffff:169.254.169.254]:80",
        "[::ffff:7f00:1]:80",
        "127.0.0.1:80",
        "[::1]:80",
        "localhost:80",
    ],
)
async def test_a_literal_address_is_refused_even_where_every_public_host_is_allowed(
    tmp_path: Path, authority: str
) -> None:
    async with serving(tmp_path, ["*:*"], {}) as rig:
        assert (await rig.ask(connect_to(authority))).startswith(b"HTTP/1.1 403 ")
        assert (await rig.ask(get(f"http://{authority}/"))).startswith(b"HTTP/1.1 403 ")
        assert rig.network.connected == []


@pytest.mark.parametrize("authority", ["2130706433:80", "0x7f.1:80", "127.1:80", "0177.0.0.1:80"])
async def test_an_address_in_an_unusual_form_is_no_host(tmp_path: Path, authority: str) -> None:
    async with serving(tmp_path, ["*:*"], {}) as rig:
        assert (await rig.ask(connect_to(authority))).startswith(b"HTTP/1.1 400 ")
        assert rig.network.resolved == rig.network.connected == []


async def test_a_name_that_changes_its_address_is_resolved_once_for_each_connection(
    tmp_path: Path,
) -> None:
    async with recording() as server:
        names = {"a.example.com": [[PUBLIC], ["127.0.0.1"]]}
        async with serving(tmp_path, ["a.example.com:*"], names, {PUBLIC: server.port}) as rig:
            port = server.port
            first = await rig.ask(get(f"http://a.example.com:{port}/"))
            assert first.endswith(b"hello")
            assert rig.network.resolved == ["a.example.com"]
            second = await rig.ask(get(f"http://a.example.com:{port}/"))
            assert second.startswith(b"HTTP/1.1 403 ")
            assert rig.network.connected == [(PUBLIC, port)]
            assert len(server.received) == 1


async def test_of_several_addresses_only_the_public_ones_are_tried(tmp_path: Path) -> None:
    async with recording() as server:
        names = {"a.example.com": [["127.0.0.1", METADATA, PUBLIC]]}
        async with serving(tmp_path, ["a.example.com"], names, {PUBLIC: server.port}) as rig:
            assert (await rig.ask(get("http://a.example.com/"))).endswith(b"hello")
            assert rig.network.connected == [(PUBLIC, 80)]


async def test_a_private_host_that_the_template_names_is_reached(tmp_path: Path) -> None:
    async with recording() as server:
        allow = [f"private:127.0.0.1:{server.port}"]
        async with serving(tmp_path, allow, {}) as rig:
            reply = await rig.ask(get(f"http://127.0.0.1:{server.port}/"))
            assert reply.endswith(b"hello")
            other = await rig.ask(get(f"http://127.0.0.1:{server.port - 1}/"))
            assert other.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "data",
    [
        b"CONNECT example.com:443\r\nX: y HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: a\r\nB : c\r\n\r\n",
        b"CONNECT evil.example%0d%0a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://example.com/\nHost: evil HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://user:password@example.com/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://example.com\\@evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET https://example.com/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET ftp://example.com/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"CONNECT example.com HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT example.com:0 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT example.com:99999 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT ::1:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"\x05\x01\x00",
        b"GET http://example.com/ HTTP/1.1\r\n" + b"A: " + b"x" * 40_000,
    ],
)
async def test_a_malformed_request_reaches_no_host(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path, ["*:*"], {"example.com": [[PUBLIC]]}) as rig:
        reply = await rig.ask(data + (b"\r\n\r\n" if data.startswith(b"\x05") else b""))
        assert reply.startswith(b"HTTP/1.1 4"), reply
        assert rig.network.resolved == rig.network.connected == []


async def test_a_header_cannot_bring_a_second_request_to_the_server(tmp_path: Path) -> None:
    async with recording() as server:
        async with serving(
            tmp_path, ["example.com"], {"example.com": [[PUBLIC]]}, {PUBLIC: server.port}
        ) as rig:
            second = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
            reply = await rig.ask(get("http://example.com/") + second)
            assert reply.count(b"HTTP/1.1") == 1
        (got,) = server.received
        assert got.count(b"GET ") == 1
        assert b"evil" not in got


async def test_tls_for_another_host_than_that_of_the_tunnel_is_refused(tmp_path: Path) -> None:
    async with (
        recording() as server,
        serving(
            tmp_path, ["example.com"], {"example.com": [[PUBLIC]]}, {PUBLIC: server.port}
        ) as rig,
    ):
        other, own = client_hello("evil.example"), client_hello("example.com")
        reply = await rig.ask(connect_to("example.com:443") + other)
        assert reply.endswith(network_proxy.UNRECOGNIZED_NAME_ALERT)
        assert [each.reason for each in rig.proxy.refusals] == ["wrong_name"]
        assert b"".join(server.received) == b""
        await rig.ask(connect_to("example.com:443") + own)
        assert server.received[-1] == own


def client_hello(name: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def test_more_connections_than_allowed_are_refused_and_others_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, ["example.com"], {}) as rig:
        held = [
            await asyncio.open_unix_connection(rig.path)
            for _ in range(network_proxy.MAX_PROXY_CONNECTIONS)
        ]
        reply = await rig.ask(b"")
        assert reply.startswith(b"HTTP/1.1 503 Too many connections")
        reader, writer = held.pop()
        writer.write(connect_to("evil.example:443"))
        assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
        for _, each in [*held, (reader, writer)]:
            each.close()


async def test_a_client_that_sends_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_proxy, "PROXY_HEAD_TIMEOUT_S", 0.05)
    async with serving(tmp_path, ["example.com"], {}) as rig:
        assert await rig.ask(b"CONNECT exam") == b""


async def test_a_tunnel_on_which_nothing_moves_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_proxy, "PROXY_IDLE_TIMEOUT_S", 0.1)
    ended = asyncio.Event()

    async def listen_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(listen_only, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        serving(tmp_path, ["example.com"], {"example.com": [[PUBLIC]]}, {PUBLIC: port}) as rig,
    ):
        assert (await rig.ask(connect_to("example.com:443"))).endswith(b"established\r\n\r\n")
        await ended.wait()


async def test_a_host_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    async with serving(tmp_path, ["nowhere.example"], {"nowhere.example": [[]]}) as rig:
        reply = await rig.ask(connect_to("nowhere.example:443"))
        assert reply.startswith(b"HTTP/1.1 502 The host cannot be reached")
        assert rig.proxy.refusals == ()
