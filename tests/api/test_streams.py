"""A lost connection ends a stream without an error in the log."""

import asyncio

import pytest

from chatd.api.deps import StreamLimits
from chatd.api.request import Message
from chatd.api.streams import CLIENT_GONE_END, ClientStream
from tests.support.clock import FakeClock


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("by peer"),
        RuntimeError("Unexpected ASGI message 'websocket.send', after 'websocket.close'."),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
    ],
    ids=["peer", "server", "event loop"],
)
async def test_a_write_to_a_closed_connection_ends_the_stream_as_client_gone(
    error: Exception, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(_message: Message) -> None:
        raise error

    stream = ClientStream(send, clock, StreamLimits())

    async def pump() -> None:
        await stream.write({})
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        assert await stream.run(pump) == CLIENT_GONE_END
        await stream.send_end({})
    assert not caplog.records
