"""Probes of the way to a server: an event stream and a WebSocket through its public address, and
its clock. `domain.deployment.diagnosis` judges what they mean.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from chatd.client.exchange import CONNECT_TIMEOUT_S, ServerAddress, explain_failure
from chatd.client.frames import Ping
from chatd.domain.deployment.diagnosis import FIRST_EVENT_WITHIN_S, StreamFacts

STREAM_WAIT_S: Final = FIRST_EVENT_WITHIN_S + 1
SOCKET_WAIT_S: Final = 10.0
MAX_PROBE_BYTES: Final = 64 * 1024
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError)


class SocketFacts(Struct, frozen=True, kw_only=True):
    """`status` is 101 if the WebSocket was opened; `error` says what failed then."""

    status: int | None
    error: str = ""


async def probe_stream(
    server: ServerAddress, http: aiohttp.ClientSession, *, wait_s: float = STREAM_WAIT_S
) -> StreamFacts:
    """Open the stream of the chat list, whose first event is sent at once, and wait for it."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    facts = StreamFacts(status=None)
    try:
        async with asyncio.timeout(wait_s):
            async with http.get(
                f"{server.api_url}/events",
                headers={**server.headers, "Accept": "text/event-stream"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
            ) as reply:
                media = reply.headers.get("Content-Type", "")
                facts = StreamFacts(status=reply.status, media_type=media)
                seen = bytearray()
                while reply.status == 200 and len(seen) < MAX_PROBE_BYTES:
                    data = await reply.content.readany()
                    seen += data
                    if b"data:" in seen:
                        first = loop.time() - started
                        return StreamFacts(
                            status=reply.status, media_type=media, first_event_s=first
                        )
                    if not data:
                        break
    except TimeoutError:
        return facts
    except _FAILURES as error:
        return StreamFacts(status=None, error=str(explain_failure(error)))
    return facts


async def probe_socket(server: ServerAddress, http: aiohttp.ClientSession) -> SocketFacts:
    """Open the WebSocket and wait for the answer to one frame."""
    status: int | None = None
    try:
        async with asyncio.timeout(SOCKET_WAIT_S):
            ws = await http.ws_connect(f"{server.api_url}/ws", headers=server.headers)
            status = 101
            try:
                await ws.send_str(msgspec.json.encode(Ping()).decode())
                answer = await ws.receive()
            finally:
                with suppress(*_FAILURES):
                    await ws.close()
    except aiohttp.WSServerHandshakeError as error:
        return SocketFacts(status=error.status, error="the upgrade was refused")
    except TimeoutError:
        return SocketFacts(status=status, error=f"no answer within {SOCKET_WAIT_S:g} s")
    except _FAILURES as error:
        return SocketFacts(status=status, error=str(explain_failure(error)))
    if answer.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        return SocketFacts(status=101)
    return SocketFacts(status=101, error="it was closed at once")


async def read_date(server: ServerAddress, http: aiohttp.ClientSession) -> datetime | None:
    """The server's clock, to the second, by the header of a public page. None without one. Raises
    aiohttp.ClientError, TimeoutError, OSError."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        async with http.get(f"{server.url.rstrip('/')}/healthz", allow_redirects=False) as reply:
            header = reply.headers.get("Date")
    if header is None:
        return None
    with suppress(ValueError):
        return parsedate_to_datetime(header).astimezone(UTC)
    return None
