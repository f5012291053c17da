"""The proxy adds credentials to requests for the hosts they are bound to: real TLS on both sides,
and what a hostile workspace or host gets."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.workspace.host_credentials import (
    HostCredential,
    git_credential,
    make_credential,
)
from chatd.workspaces.network import network_proxy
from chatd.workspaces.network.inside import PROXY_SOCKET
from chatd.workspaces.network.network_proxy import NetworkProxy
from chatd.workspaces.network.tls_endpoint import TlsStream, WorkspaceAuthority, new_authority
from chatd.workspaces.network.workspace_networks import policy_rules
from tests.support.eventually import eventually
from tests.support.network_names import TestNetwork
from tests.support.tls_hosts import TlsHosts

TEST_TIMEOUT_S = 30.0
PUBLIC, OTHER = "93.184.215.14", "93.184.215.15"
HOST = "git.example.com"
SECRET = "s3cret-token-0123456789"
BEARER = make_credential(host=HOST, scheme="bearer", secret=SECRET)
HOSTS = TlsHosts()
GET = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n"


class EchoHost:
    """Replies with the head of each request as the body, and with what `reply` says before it."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.status = "200 OK"
        self.headers = ""
        self.body: bytes | None = None
        self.piece_bytes = 1 << 20

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                size = [line for line in head.lower().split("\r\n") if "content-length" in line]
                count = int(size[0].partition(":")[2]) if size else 0
                self.bodies.append(await reader.readexactly(count))
                body = head.encode() if self.body is None else self.body
                start = f"HTTP/1.1 {self.status}\r\n{self.headers}Content-Length: {len(body)}\r\n"
                writer.write(f"{start}\r\n".encode())
                for at in range(0, len(body), self.piece_bytes):
                    writer.write(body[at : at + self.piece_bytes])
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


class Rig:
    def __init__(
        self, proxy: NetworkProxy, path: Path, host: EchoHost, network: TestNetwork
    ) -> None:
        self.proxy = proxy
        self.path = path
        self.host = host
        self.network = network
        self.credentials: Sequence[HostCredential] = (BEARER,)
        assert proxy.authority is not None
        self.trusted = ssl.create_default_context(cadata=proxy.authority.certificate.decode())

    async def tunnel(
        self, authority: str = f"{HOST}:443", name: str = HOST
    ) -> tuple[TlsStream, asyncio.StreamWriter]:
        """A TLS connection inside of a tunnel. Raises what the handshake raises."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        try:
            reply = await reader.readuntil(b"\r\n\r\n")
            if not reply.startswith(b"HTTP/1.1 200"):
                raise ConnectionError((reply + await reader.read()).decode())
            stream = TlsStream(reader, writer, self.trusted, host=name)
            await stream.handshake()
        except BaseException:
            writer.close()
            raise
        return stream, writer

    async def ask(self, request: str | bytes, authority: str = f"{HOST}:443") -> str:
        """What comes back for one request, until the connection ends or a whole body came."""
        data = request.encode() if isinstance(request, str) else request
        stream, writer = await self.tunnel(authority)
        try:
            return await ask_on(stream, data)
        finally:
            writer.close()


async def ask_on(stream: TlsStream, data: bytes) -> str:
    stream.write(data)
    await stream.drain()
    reply = b""
    while piece := await stream.read():
        reply += piece
        head, blank, body = reply.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-len")]
        if blank and lengths and len(body) >= int(lengths[0].partition(b":")[2]):
            break
    return reply.decode()


@asynccontextmanager
async def serving(tmp_path: Path, allow: Sequence[str] = (HOST,)) -> AsyncGenerator[Rig]:
    host = EchoHost()
    async with HOSTS.serving(HOST, host.serve) as port:
        names = {name: [[PUBLIC]] for name in (HOST, "other.example.com")}
        network = TestNetwork(names, {PUBLIC: port})
        dialer = replace(network.dialer, tls=HOSTS.client_context)
        rules = policy_rules(tuple(allow))
        clock = SystemClock()
        authority = WorkspaceAuthority(new_authority("w", clock.now()), clock)
        proxy = NetworkProxy(
            lambda: rules,
            dialer,
            clock,
            authority=authority,
            credentials=lambda: rig.credentials,
        )
        rig = Rig(proxy, tmp_path / "p" / PROXY_SOCKET, host, network)
        async with asyncio.timeout(TEST_TIMEOUT_S), proxy.listening(tmp_path / "p", None):
            yield rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with serving(tmp_path) as found:
        yield found


async def test_a_request_reaches_the_host_with_the_credential_and_the_reply_is_without_it(
    rig: Rig,
) -> None:
    reply = await rig.ask(f"{GET}Authorization: Bearer mine\r\nX-A: b\r\n\r\n")
    (head,) = rig.host.heads
    assert f"\r\nAuthorization: Bearer {SECRET}\r\n" in head
    assert "mine" not in head
    assert "\r\nX-A: b\r\n" in head
    assert head.startswith(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n")
    # The host repeats the request: the mask has the length of what it hides.
    assert reply.startswith("HTTP/1.1 200 OK\r\n")
    assert SECRET not in reply
    assert f"Authorization: Bearer {'*' * len(SECRET)}\r\n" in reply


@pytest.mark.parametrize(
    ("credential", "line"),
    [
        (
            make_credential(host=HOST, scheme="basic", username="ada", secret=SECRET),
            "Authorization: Basic " + b64encode(f"ada:{SECRET}".encode()).decode(),
        ),
        (
            make_credential(host=HOST, scheme="header", header="PRIVATE-TOKEN", secret=SECRET),
            f"PRIVATE-TOKEN: {SECRET}",
        ),
    ],
)
async def test_a_credential_has_the_form_that_was_chosen(
    rig: Rig, credential: HostCredential, line: str
) -> None:
    rig.credentials = [credential]
    own = f"Connection: {credential.header}\r\n{credential.header}: mine\r\n"
    reply = await rig.ask(f"{GET}{own}\r\n")
    assert f"\r\n{line}\r\n" in rig.host.heads[0]
    assert "mine" not in rig.host.heads[0]
    assert line not in reply
    assert SECRET not in reply


async def test_requests_of_one_connection_are_passed_on_one_after_the_other(rig: Rig) -> None:
    stream, writer = await rig.tunnel()
    for body in (b"first", b"second"):
        head = f"POST /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
        assert (await ask_on(stream, head.encode() + body)).startswith("HTTP/1.1 200 OK")
    writer.close()
    assert rig.host.bodies == [b"first", b"second"]
    assert rig.host.connections == 1
    assert all(SECRET in head for head in rig.host.heads)


async def test_a_revoked_credential_is_missing_from_the_next_request(rig: Rig) -> None:
    stream, writer = await rig.tunnel()
    await ask_on(stream, f"{GET}\r\n".encode())
    rig.credentials = []
    await ask_on(stream, f"{GET}\r\n".encode())
    writer.close()
    assert [SECRET in head for head in rig.host.heads] == [True, False]


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
async def test_a_host_cannot_give_the_credential_back(rig: Rig, piece_bytes: int) -> None:
    encoded = b64encode(f"ada:{SECRET}".encode()).decode()
    rig.credentials = [make_credential(host=HOST, scheme="basic", username="ada", secret=SECRET)]
    rig.host.headers = f"Location: https://{HOST}/?t={SECRET}\r\nX-Auth: Basic {encoded}\r\n"
    rig.host.status = f"302 {SECRET}"
    rig.host.body = f"<{SECRET[:9]}{SECRET}{SECRET}{encoded}{SECRET[:5]}".encode()
    rig.host.piece_bytes = piece_bytes
    reply = await rig.ask(f"{GET}Accept-Encoding: gzip\r\nRange: bytes=0-9\r\n\r\n")
    assert "Accept-Encoding: identity\r\n" in rig.host.heads[0]
    assert "Range" not in rig.host.heads[0]
    assert SECRET not in reply
    assert encoded not in reply
    body = reply.partition("\r\n\r\n")[2]
    stars = "*" * (2 * len(SECRET) + len(encoded))
    assert body == f"<{SECRET[:9]}{stars}{SECRET[:5]}"


REFUSED_INSIDE = {
    "another Host": "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "the Host with another port": f"GET / HTTP/1.1\r\nHost: {HOST}:444\r\n\r\n",
    "two Hosts": f"GET / HTTP/1.1\r\nHost: {HOST}\r\nHost: evil.example\r\n\r\n",
    "no Host": "GET / HTTP/1.1\r\n\r\n",
    "absolute form": f"GET https://evil.example/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "the form of an authority": f"GET {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "TRACE": f"TRACE / HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "CONNECT": f"CONNECT evil.example:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "two lengths": f"{GET}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "different lengths": f"{GET}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "an unknown coding": f"{GET}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": f"{GET}Content-Length : 5\r\n\r\nabcde",
    "a line break in the path": f"GET /\rX: y HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a huge head": f"{GET}A: {'x' * 100_000}\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED_INSIDE)
async def test_a_request_that_others_could_read_differently_is_refused(rig: Rig, name: str) -> None:
    reply = await rig.ask(REFUSED_INSIDE[name])
    assert reply.startswith(("HTTP/1.1 4", "HTTP/1.1 50")), reply
    assert rig.host.heads == []
    assert SECRET not in reply


async def test_a_second_request_behind_a_body_is_a_request_of_its_own(rig: Rig) -> None:
    """Never part of the first one, and only with the credential of its own path."""
    rig.credentials = [replace(BEARER, path="/mine")]
    smuggled = f"GET /other HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    chunked = f"POST /mine HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    rig.host.body = b"x"
    stream, writer = await rig.tunnel()
    stream.write((chunked + smuggled).encode())
    await stream.drain()
    reply = b""
    while reply.count(b"HTTP/1.1 200") < 2 or not reply.endswith(b"x"):
        reply += await stream.read()
    writer.close()
    assert rig.host.heads[0].startswith("POST /mine ")
    assert not any("/other" in head and SECRET in head for head in rig.host.heads)


@pytest.mark.parametrize(
    ("path", "has"),
    [
        ("/team", True),
        ("/team/", True),
        ("/team/app.git/info/refs?service=git-upload-pack", True),
        ("/team?x=/../..", True),
        ("/teams", False),
        ("/", False),
        ("/other?/team/", False),
        ("/team/../other", False),
        ("/team/%2e%2e/other", False),
        ("/team/%252e%252e/other", False),
        ("/team/..%2fother", False),
        ("/team/..;/other", False),
        ("/team/..%5cother", False),
        ("/team\\..\\other", False),
        ("/TEAM/app", False),
        ("//team/app", False),
    ],
)
async def test_a_credential_for_a_path_is_for_what_is_below_it(
    rig: Rig, path: str, *, has: bool
) -> None:
    rig.credentials = [replace(BEARER, path="/team")]
    reply = await rig.ask(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")
    assert reply.startswith("HTTP/1.1 200")
    assert (SECRET in rig.host.heads[0]) is has


@pytest.mark.parametrize(
    ("path", "has"),
    [
        ("/ada/app.git/info/refs?service=git-receive-pack", True),
        ("/ada/app.git/git-upload-pack", True),
        ("/ada/app.git/info/lfs/objects/batch", True),
        ("/api/v1/user", False),
        ("/api/v1/repos/ada/app/contents/info/lfs/x", False),
        ("/api/v1/user?/git-upload-pack", False),
        ("/api/v1/../v1/user/x/info/refs/%2e%2e", False),
    ],
)
async def test_a_git_token_is_for_the_requests_of_git(rig: Rig, path: str, *, has: bool) -> None:
    token = git_credential(HOST, "gitea", SECRET)
    assert token is not None
    rig.credentials = [token]
    await rig.ask(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")
    encoded = b64encode(f"x-access-token:{SECRET}".encode()).decode()
    assert (f"Authorization: Basic {encoded}\r\n" in rig.host.heads[0]) is has


@pytest.mark.parametrize(
    "authority", ["other.example.com:443", f"{PUBLIC}:443", f"{HOST}:8443", f"sub.{HOST}:443"]
)
async def test_the_same_server_by_another_name_or_port_gets_no_credential(
    tmp_path: Path, authority: str
) -> None:
    """TLS passes through: the client sees the certificate of the host itself."""
    async with serving(tmp_path, [f"{HOST}:*", "*.example.com:*", PUBLIC]) as rig:
        rig.network.names[f"sub.{HOST}"] = [[PUBLIC]]
        rig.trusted = HOSTS.client_context()
        rig.trusted.check_hostname = False
        name = authority.rpartition(":")[0]
        stream, writer = await rig.tunnel(authority, name)
        reply = await ask_on(stream, f"{GET}\r\n".encode())
        writer.close()
        assert reply.startswith("HTTP/1.1 200")
        assert SECRET not in rig.host.heads[0]


async def test_plain_http_gets_no_credential(tmp_path: Path) -> None:
    """The host expects TLS, so nothing of the request may arrive."""
    async with serving(tmp_path, [f"{HOST}:*"]) as rig:
        for url in (f"http://{HOST}/", f"http://{HOST}:443/", f"https://{HOST}/"):
            reader, writer = await asyncio.open_unix_connection(rig.path)
            writer.write(f"GET {url} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert SECRET.encode() not in await reader.read()
            writer.close()
        reader, writer = await asyncio.open_unix_connection(rig.path)
        writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: a\r\n\r\n{GET}\r\n".encode())
        assert (await reader.read()).endswith(b"established\r\n\r\n")
        writer.close()
        assert rig.host.heads == []


async def test_tls_for_another_name_than_that_of_the_tunnel_is_refused(rig: Rig) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await rig.tunnel(name="evil.example")
    assert [each.reason for each in rig.proxy.refusals] == ["wrong_name"]
    assert rig.host.heads == []


async def test_a_program_that_does_not_trust_the_proxy_is_among_the_refusals(rig: Rig) -> None:
    rig.trusted = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await rig.tunnel()

    async def is_noted() -> bool:
        return bool(rig.proxy.refusals)

    await eventually(is_noted, within_s=TEST_TIMEOUT_S)
    assert [each.reason for each in rig.proxy.refusals] == ["untrusted_certificate"]


async def test_a_workspace_of_an_earlier_version_is_told_to_start_again(rig: Rig) -> None:
    """Its programs were started without the variables by which they trust the proxy."""
    rig.proxy.authority, rig.trusted = None, HOSTS.client_context()
    assert SECRET not in await rig.ask(f"{GET}\r\n")
    assert [each.reason for each in rig.proxy.refusals] == ["no_authority"]
    assert "Stop the workspace and start it again" in rig.proxy.failures[-1]


async def test_a_host_with_another_certificate_gets_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, ["other.example.com"]) as rig:
        rig.credentials = [replace(BEARER, host="other.example.com")]
        with pytest.raises(ConnectionError, match="502 The host cannot be reached") as failed:
            await rig.tunnel("other.example.com:443", "other.example.com")
        assert "shows a certificate that cannot be trusted: Hostname mismatch" in str(failed.value)
        assert rig.host.heads == []


async def test_a_credential_does_not_make_its_host_allowed(tmp_path: Path) -> None:
    async with serving(tmp_path, ["pypi.org"]) as rig:
        with pytest.raises(ConnectionError, match=f"403 This workspace may not reach {HOST}:443"):
            await rig.tunnel()
        assert rig.network.connected == []


async def test_a_websocket_becomes_an_ordinary_request(rig: Rig) -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    await rig.ask(f"{GET}{upgrade}\r\n")
    assert "pgrade" not in rig.host.heads[0]


async def test_a_slow_request_is_ended_and_others_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_proxy, "PROXY_IDLE_TIMEOUT_S", 0.3)
    stream, writer = await rig.tunnel()
    stream.write(f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\nabc".encode())
    await stream.drain()
    assert (await rig.ask(f"{GET}\r\n")).startswith("HTTP/1.1 200")
    with suppress(OSError):
        assert await stream.read() == b""
    writer.close()
    assert rig.host.bodies == [b""]
