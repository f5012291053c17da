"""A connection goes only to an address that was checked."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from chatd.guarded_dial import (
    AddressRefused,
    DialFailed,
    is_any_address,
    open_guarded_connection,
)


class Listener:
    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    async def serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@pytest.fixture
async def listener() -> AsyncGenerator[Listener]:
    found = Listener()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


def resolver(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A name server with another answer each time."""
    left = list(answers)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0)

    return resolve


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::ffff:127.0.0.1"])
async def test_the_own_host_is_refused(listener: Listener, host: str) -> None:
    with pytest.raises(AddressRefused, match="is not on the public internet"):
        await open_guarded_connection(host, listener.port)
    assert listener.connections == 0


async def test_a_private_address_can_be_allowed(listener: Listener) -> None:
    reader, writer = await open_guarded_connection(
        "localhost", listener.port, is_allowed=is_any_address, allow_own_host=True
    )
    assert await reader.read() == b""
    writer.close()


async def test_a_name_is_resolved_once(listener: Listener) -> None:
    """A second answer, which may differ, is never asked for: the list would be empty."""
    with pytest.raises(AddressRefused):
        await open_guarded_connection(
            "rebinding.test", listener.port, resolve=resolver(["10.0.0.1", "127.0.0.1"])
        )
    assert listener.connections == 0


async def test_among_several_addresses_only_public_ones_are_tried(listener: Listener) -> None:
    """The public one leads nowhere here, and the private one is still not tried."""
    with pytest.raises(DialFailed):
        await open_guarded_connection(
            "mixed.test",
            listener.port,
            resolve=resolver(["127.0.0.1", "2000::1"]),
            timeout_s=0.2,
        )
    assert listener.connections == 0


async def test_a_name_without_an_address_cannot_be_reached() -> None:
    with pytest.raises(DialFailed, match="has no address"):
        await open_guarded_connection("empty.test", 443, resolve=resolver([]))
    with pytest.raises(DialFailed, match="cannot be reached"):
        await open_guarded_connection("\u00e4" * 70, 443)
