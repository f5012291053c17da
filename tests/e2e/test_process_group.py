"""`chatd serve --processes N` as real processes: one is killed, one never starts, the supervisor
dies."""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientError, ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.test_two_replicas import ask
from tests.support.chaos.servers import AUTH, Installation, server
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import FakeCompatible, chunk, stream
from tests.support.providers.server import Gate, RecordedRequest, Reply

# Several processes on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)


Items = list[dict[str, object]]


class HeldApi(FakeCompatible):
    """Says a word and stops at the gate. A request after the first is answered whole."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.asked = 0

    def answer(self, request: RecordedRequest) -> Reply:
        del request
        self.asked += 1
        if self.asked == 1:
            return Reply(steps=(chunk(content="Half"), self.gate))
        return Reply(steps=(stream("text"),))


async def samples(http: ClientSession, name: str) -> dict[int, float]:
    """Of a metric, by process."""
    async with http.get("/metrics") as reply:
        families = text_string_to_metric_families(await reply.text())
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {int(sample.labels["process"]): sample.value for sample in found}


async def start_chat(http: ClientSession) -> object:
    body = {"content": [{"type": "text", "text": "hello"}]}
    status, chat = await ask(http, "POST", "/chats", body)
    assert status == 201, chat
    return chat["id"]


async def is_replaced(http: ClientSession, victim: int) -> bool:
    with suppress(ClientError):
        restarts = await samples(http, "chatd_process_restarts_total")
        up = await samples(http, "chatd_process_up")
        return restarts == {victim: 1, 1 - victim: 0} and up == {0: 1, 1: 1}
    return False


async def is_retried(http: ClientSession) -> bool:
    return (await samples(http, "chatd_process_restarts_total"))[1] >= 1


async def has_ended(pid: int) -> bool:
    return not is_running(pid)


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def has_answer(http: ClientSession, chat_id: object) -> bool:
    _, page = await ask(http, "GET", f"/chats/{chat_id}/messages")
    return any(item["role"] == "assistant" for item in msgspec.convert(page["items"], Items))


@pytest.mark.promise("P6")
async def test_a_killed_process_of_a_group_is_replaced_and_another_one_finishes_its_answer(
    dsn: str, tmp_path: Path
) -> None:
    async with HeldApi.running() as vendor:
        shared = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path)
        async with (
            server(shared, "--processes", "2", CHATD_CHATS_TITLES="false") as group,
            ClientSession(group.url, headers=AUTH) as http,
        ):
            assert set(group.members()) == {0, 1}
            chat_id = await start_chat(http)
            await vendor.gate.reached.wait()
            running = await samples(http, "chatd_running_chats")
            (victim,) = [number for number, count in running.items() if count]
            killed = group.members()[victim]
            os.kill(killed, signal.SIGKILL)

            async with ClientSession(group.url, headers=AUTH) as again:
                await eventually(lambda: has_answer(again, chat_id))
                await eventually(lambda: is_replaced(again, victim))
                assert group.members()[victim] != killed

            members = group.members().values()
            await group.terminate()
            assert not any(map(is_running, members))
            with socket.socket() as port:  # nobody listens any more
                host, _, number = group.url.removeprefix("http://").partition(":")
                assert port.connect_ex((host, int(number))) != 0


def take_port_above_a_free_one() -> socket.socket:
    """Other tests have ports too, so that the one below a free one may be taken."""
    for _ in range(100):
        taken = socket.create_server(("127.0.0.1", 0))
        with suppress(OSError), socket.create_server(("127.0.0.1", taken.getsockname()[1] - 1)):
            return taken
        taken.close()
    raise AssertionError("no two free ports follow each other")


async def test_a_process_that_never_starts_harms_nobody_and_all_end_with_their_supervisor(
    dsn: str, tmp_path: Path
) -> None:
    with take_port_above_a_free_one() as taken:
        # The peer address of the second process is one port above that of the first.
        peer = f"127.0.0.1:{taken.getsockname()[1] - 1}"
        async with HeldApi.running() as vendor:
            vendor.asked = 1
            shared = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path)
            started = server(
                shared,
                *("--processes", "2"),
                CHATD_SERVER_PEER_ADDRESS=peer,
                CHATD_CHATS_TITLES="false",
            )
            async with started as group, ClientSession(group.url, headers=AUTH) as http:
                for _ in range(4):
                    chat_id = await start_chat(http)
                    await eventually(partial(has_answer, http, chat_id))
                await eventually(lambda: is_retried(http))
                member = group.members()[0]
                group.kill()
                await eventually(lambda: has_ended(member))


async def test_a_port_in_use_ends_the_start_with_a_sentence(dsn: str, tmp_path: Path) -> None:
    shared = Installation(dsn=dsn, model_url="http://127.0.0.1:9", data_dir=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await asyncio.create_subprocess_exec(
            shared.program,
            *("serve", "--processes", "2", "--port", str(taken.getsockname()[1])),
            env=shared.env,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"Is chatd already running?" in said
