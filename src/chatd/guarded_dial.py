"""Connect to a host that a stranger named, and only if its address is public.

The name is resolved once, each address is checked, and the connection goes to an address that was
checked: a name server that answers differently the next time changes nothing. Redirects must come
here again.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import aiohttp

from chatd.domain.addresses import is_public
from chatd.domain.errors import ChatdError

DIAL_TIMEOUT_S: Final = 20.0
MAX_ADDRESSES: Final = 8

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[str, int], Awaitable[Connection]]
"""Opens a connection to an address that has been checked."""


class AddressRefused(ChatdError):
    """The host is not on the public internet."""

    code = "address_refused"


class DialFailed(ChatdError):
    code = "dial_failed"


async def resolve_host(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def open_guarded_connection(
    host: str,
    port: int,
    *,
    is_allowed: Callable[[str], bool] = is_public,
    allow_own_host: bool = False,
    resolve: Resolve = resolve_host,
    connect: Connect = asyncio.open_connection,
    timeout_s: float = DIAL_TIMEOUT_S,
) -> Connection:
    """To an address of the host for which `is_allowed`. Raises AddressRefused or DialFailed."""
    try:
        async with asyncio.timeout(timeout_s):
            allowed = await find_allowed_addresses(
                host, port, is_allowed=is_allowed, resolve=resolve
            )
            return await _connect(host, port, allowed, connect, allow_own_host=allow_own_host)
    except TimeoutError:
        raise DialFailed(f"{host}:{port} did not answer within {timeout_s:g} s.") from None
    except (OSError, UnicodeError) as error:
        raise DialFailed(f"{host}:{port} cannot be reached: {error}.") from None


async def find_allowed_addresses(
    host: str,
    port: int,
    *,
    is_allowed: Callable[[str], bool] = is_public,
    resolve: Resolve = resolve_host,
) -> list[str]:
    """Connect to one of these, not to the name. Raises AddressRefused and OSError."""
    addresses = (await resolve(host, port))[:MAX_ADDRESSES]
    allowed = [each for each in addresses if is_allowed(each)]
    if addresses and not allowed:
        raise refusal(host)
    return allowed


async def _connect(
    host: str, port: int, addresses: Sequence[str], connect: Connect, *, allow_own_host: bool
) -> Connection:
    last: OSError | None = None
    for address in addresses:
        try:
            reader, writer = await connect(address, port)
        except OSError as error:
            last = error
            continue
        own, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        if not allow_own_host and is_own_host(own, peer):
            writer.transport.abort()
            raise refusal(host)
        return reader, writer
    raise last or OSError("the name has no address")


def is_any_address(_address: str) -> bool:
    return True


def is_own_host(own: Sequence[object] | None, peer: Sequence[object] | None) -> bool:
    """Whether a connection ends where it begins. A public address of this very host leads to
    services behind its firewall."""
    return bool(own) and bool(peer) and own[0] == peer[0]


def is_own_address(family: int, address: tuple[Any, ...]) -> bool:
    """As `is_own_host`, for a connection that is not open yet. A datagram socket that connects
    sends nothing. Raises OSError."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return is_own_host(probe.getsockname(), probe.getpeername())


def refusal(host: str) -> AddressRefused:
    return AddressRefused(
        f"{host} is not on the public internet: it is this host or a private network."
    )


_AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]
ADDRESS_REFUSED_TEXT: Final = "its address is not public, or that of chatd's own host"


def guarded_session(
    *, allow_private: bool = False, refusal_text: str = ADDRESS_REFUSED_TEXT
) -> aiohttp.ClientSession:
    """An HTTP session without cookies, proxies and kept connections, whose connections go to public
    addresses only. They raise OSError with `refusal_text` for others."""

    def make_socket(info: _AddressInfo) -> socket.socket:
        """Called with the address to which it is about to connect."""
        family, kind, protocol, _, address = info
        if not allow_private and (
            not is_public(str(address[0])) or is_own_address(family, address)
        ):
            raise OSError(errno.EACCES, refusal_text)
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(socket_factory=make_socket, force_close=True)
    return aiohttp.ClientSession(
        connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
    )


async def read_bounded(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Raises ValueError for a longer reply."""
    body = bytearray()
    async for piece in reply.content.iter_chunked(64 * 1024):
        body += piece
        if len(body) > limit:
            raise ValueError("its answer is too long")
    return bytes(body)
