"""How a stream ends, seen from where it is written to."""

import asyncio

import pytest

from chatd.api.call import Message
from chatd.api.doors import Limits
from chatd.api.streams import GONE, Stream
from tests.support.clock import FakeClock


@pytest.mark.parametrize(
    "said",
    [
        ConnectionResetError("by peer"),
        RuntimeError("Unexpected ASGI message 'websocket.send', after 'websocket.close'."),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
    ],
    ids=["by the peer", "by the server", "by the loop"],
)
async def test_a_connection_that_is_closed_is_a_client_that_has_gone(
    said: Exception, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(_message: Message) -> None:
        raise said

    stream = Stream(send, clock, Limits())

    async def pump() -> None:
        await stream.write({})
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        assert await stream.run(pump) == GONE
        await stream.farewell({})
    assert not caplog.records
