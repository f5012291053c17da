"""A model that answers with far too much: the server serves all other chats as before."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, ClientTimeout

from chatd.domain.answer.assembler import MAX_ANSWER_PARTS
from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, kept_calls
from tests.e2e.test_two_replicas import ask
from tests.support.chaos.servers import Installation, server
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk, stream
from tests.support.providers.server import Gate, RecordedRequest, Reply

# A real process, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

CALLS = 100_000
FIRST_CALLS = 5_000
REPLY_TIMEOUT = ClientTimeout(total=20)


def calls(first: int, end: int) -> bytes:
    return b"".join(
        chunk(
            tool_calls=[
                {
                    "index": number,
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"path":"/a"}'},
                }
            ]
        )
        for number in range(first, end)
    )


class FloodingApi(FakeCompatible):
    """Answers the message `flood-me` with calls once, any other one with text."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def answer(self, request: RecordedRequest) -> Reply:
        if (
            b"flood-me" in request.body
            and b'"tools"' in request.body
            and not self.gate.reached.is_set()
        ):
            rest = (chunk(finish="tool_calls"), DONE)
            first, second = calls(0, FIRST_CALLS), calls(FIRST_CALLS, CALLS)
            return Reply(steps=(first, self.gate, second, *rest))
        return Reply(steps=(stream("text"),))


async def create_chat(http: ClientSession, text: str) -> str:
    status, chat = await ask(http, "POST", "/chats", {"content": [{"type": "text", "text": text}]})
    assert status == 201, chat
    return str(chat["id"])


async def wait_until(http: ClientSession, chat_id: str, status: str) -> dict[str, object]:
    """Asks for the health of the server each time too."""
    while True:
        async with http.get("/healthz") as reply:
            assert reply.status == 200
        _, chat = await ask(http, "GET", f"/chats/{chat_id}")
        if chat["status"] == status:
            return chat


@pytest.mark.promise("P2")
async def test_an_answer_with_a_hundred_thousand_calls_ends_in_an_error_and_harms_no_other_chat(
    dsn: str, tmp_path: Path
) -> None:
    async with FloodingApi.running() as vendor:
        shared = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path)
        async with (
            server(shared) as process,
            ClientSession(process.url, timeout=REPLY_TIMEOUT) as http,
        ):
            flooded = await create_chat(http, "flood-me")
            await vendor.gate.reached.wait()
            await wait_until(http, await create_chat(http, "hello"), "waiting")
            vendor.gate.open()
            async with asyncio.TaskGroup() as group:
                beside = group.create_task(create_chat(http, "hello beside it"))
                ended = await wait_until(http, flooded, "error")
            await wait_until(http, beside.result(), "waiting")
            error = msgspec.convert(ended["last_error"], dict[str, object])
            assert error["kind"] == "answer_too_large"
            assert str(MAX_ANSWER_PARTS) in str(error["detail"])
            await check_stored(http, flooded)
            content = [{"type": "text", "text": "again"}]
            status, sent = await ask(
                http, "POST", f"/chats/{flooded}/messages", {"content": content}
            )
            assert status in (200, 201), sent
            await wait_until(http, flooded, "waiting")


async def check_stored(http: ClientSession, chat_id: str) -> None:
    rows: list[dict[str, object]] = []
    place = f"/chats/{chat_id}/messages"
    while True:
        status, page = await ask(http, "GET", place)
        assert status == 200, page
        rows += msgspec.convert(page["items"], list[dict[str, object]])
        if not page["has_more"]:
            break
        place = f"/chats/{chat_id}/messages?cursor={page['next_cursor']}"
    [answer] = [row["content"] for row in rows if row["role"] == "assistant"]
    parts = [part["type"] for part in msgspec.convert(answer, list[dict[str, object]])]
    assert parts.count("tool-call") == kept_calls(DEFAULT_STEP_LIMITS.calls)
