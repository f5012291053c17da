"""Streamed replies: unsigned lines are never used, and no stream ends unnoticed."""

import asyncio
from collections.abc import AsyncIterable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from chatd.agent.server.auth import line_mac, reply_mac
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.workspaces.agents.agent_session import AgentRequest, AgentResponse
from tests.workspaces.test_client_hostile import KEY, WAIT_S, Impostor, Trick, pretending

WATCH = AgentRequest(method="GET", target="/watch", max_body_bytes=1000)


def head(client: Impostor) -> bytes:
    mac = reply_mac(KEY, nonce=client.nonce, status=200, boot="b", body=b"")
    return f"HTTP/1.1 200 X\r\nChatd-Boot: b\r\nChatd-Mac: {mac}\r\n\r\n".encode()


def line(client: Impostor, number: int, text: bytes) -> bytes:
    mac = line_mac(KEY, nonce=client.nonce, number=number, boot="b", text=text)
    return b'{"mac":"%b","event":%b}\n' % (mac.encode(), text)


def refuse(response: AgentResponse) -> None:
    raise AgentRefused("no", status=response.status)


async def gather(lines: AsyncIterable[bytes], into: list[bytes]) -> None:
    async for text in lines:
        into += [text]


async def heard(place: Path, trick: Trick, *, idle_s: float = WAIT_S) -> list[bytes]:
    """The lines that were used before the stream ended."""
    texts: list[bytes] = []
    async with (
        pretending(place, trick) as way,
        asyncio.timeout(WAIT_S),
        aclosing(way.stream_lines(WATCH, boot="b", idle_timeout_s=idle_s, refuse=refuse)) as lines,
    ):
        with pytest.raises(AgentUnreachable):
            await gather(lines, texts)
    return texts


async def test_signed_lines_are_read_in_order_from_any_chunks(
    tmp_path: Path,
) -> None:
    async def honest(client: Impostor) -> None:
        whole = head(client) + line(client, 1, b"1") + line(client, 2, b'{"a":"\\n"}')
        for at in range(0, len(whole), 7):
            await client.send(whole[at : at + 7])
        client.writer.write_eof()

    texts: list[bytes] = []
    async with pretending(tmp_path, honest) as way, asyncio.timeout(WAIT_S):
        lines = way.stream_lines(WATCH, boot="b", idle_timeout_s=WAIT_S, refuse=refuse)
        async with aclosing(lines):
            await gather(lines, texts)
    assert texts == [b"1", b'{"a":"\\n"}']


def replayed(client: Impostor) -> bytes:
    return line(client, 1, b"1")


def skipped(client: Impostor) -> bytes:
    return line(client, 3, b"3")


def long(client: Impostor) -> bytes:
    return line(client, 2, b'"' + b"x" * 2000 + b'"')


FORGED = b'{"mac":"00","event":2}\n'
ODD = b'{"mac":"\\ud800","event":2}\n'


@pytest.mark.parametrize("second", [replayed, skipped, long, FORGED, ODD, b"2\n", b"x" * 1001])
async def test_a_line_with_a_wrong_signature_ends_the_stream(
    tmp_path: Path, second: bytes | Callable[[Impostor], bytes]
) -> None:
    async def trick(client: Impostor) -> None:
        await client.send(head(client) + line(client, 1, b"1"))
        await client.send(second if isinstance(second, bytes) else second(client))

    assert await heard(tmp_path, trick) == [b"1"]


async def test_a_silent_stream_times_out(tmp_path: Path) -> None:
    async def trick(client: Impostor) -> None:
        await client.send(head(client) + line(client, 1, b"1"))

    assert await heard(tmp_path, trick, idle_s=0.2) == [b"1"]


async def test_a_stream_without_a_signed_head_is_not_read(tmp_path: Path) -> None:
    async def trick(client: Impostor) -> None:
        await client.send(b"HTTP/1.1 200 X\r\n\r\n" + line(client, 1, b"1"))

    assert await heard(tmp_path, trick) == []


async def test_a_refused_stream_raises_the_refusal(tmp_path: Path) -> None:
    async def trick(client: Impostor) -> None:
        await client.send(client.reply(b"{}", status=503))

    async with pretending(tmp_path, trick) as way, asyncio.timeout(WAIT_S):
        lines = way.stream_lines(WATCH, boot="b", idle_timeout_s=WAIT_S, refuse=refuse)
        async with aclosing(lines):
            with pytest.raises(AgentRefused) as refused:
                await anext(lines)
    assert refused.value.status == 503
