"""An answer whose reply is lost, because the server is killed: it counts once."""

import asyncio
from asyncio import StreamReader, StreamWriter
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support.chaos.servers import AUTH, TOKEN, Installation, server
from tests.support.eventually import eventually
from tests.support.mcp.servers import FrontDoor
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.terminal import TerminalServer, run_terminal, screen_text, until
from tests.support.terminal_answers import (
    ASK,
    TOOL,
    panel_awake,
    tool_call,
    waiting_calls,
    will_call,
)

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)


class LossyDoor(FrontDoor):
    """Passes everything but the reply to an answer, and says when the server has sent that."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = True
        self.replied = asyncio.Event()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        assert self._target is not None
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        answers = asyncio.Event()
        try:
            await asyncio.gather(
                self._requests(reader, back, answers), self._replies(there, writer, answers)
            )
        except OSError:
            pass
        finally:
            self._writers -= {writer, back}
            for one in (writer, back):
                one.transport.abort()

    async def _requests(
        self, reader: StreamReader, back: StreamWriter, answers: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.loses and b"/answers HTTP" in data:
                answers.set()
            back.write(data)
            await back.drain()
        back.transport.abort()

    async def _replies(
        self, there: StreamReader, writer: StreamWriter, answers: asyncio.Event
    ) -> None:
        while data := await there.read(1 << 16):
            if answers.is_set():
                self.replied.set()
                continue
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


async def test_an_answer_counts_once_if_the_server_is_killed_before_its_reply_arrives(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts two servers."""
    door = LossyDoor()
    listener = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    door.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with FakeCompatible.running() as vendor:
        installation = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path)
        async with (
            server(installation) as first,
            server(installation) as second,
            ClientSession(second.url, headers=AUTH) as http,
        ):
            door.lead_to(first.url)
            rig = TerminalServer(door.url, http, vendor, first.kill)
            will_call(rig, tool_call(0, TOOL, {"limit": 1}), tool_call(1, TOOL, {"limit": 2}))
            chat_id = await rig.create_chat("Go.", "fake", tool_rules=[ASK])

            async def waits_for(count: int) -> bool:
                return await waiting_calls(rig, chat_id) == count

            await eventually(lambda: waits_for(2))
            async with run_terminal(rig, chat_id, token=TOKEN) as pilot:
                panel = await panel_awake(pilot)
                await until(pilot, lambda: "1 of 2" in screen_text(pilot))
                await pilot.press("f3", "y")
                await door.replied.wait()
                first.kill()
                door.loses = False
                door.lead_to(second.url)
                door.cut()
                await until(
                    pilot, lambda: panel.item is not None and "1 of 2" not in screen_text(pilot)
                )
                await until(pilot, lambda: not panel.asks.sending)
                assert panel.failure == ""
                assert "already" not in screen_text(pilot), "nobody was told of a second answer"
                assert await waits_for(1), "the other call still waits"
    listener.close()
