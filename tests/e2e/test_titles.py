"""Titles of new chats, through a real `chatd serve` process."""

import asyncio
import json
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from chatd.domain.prompt.titles import fallback_title
from tests.e2e.test_serve import (
    address,
    chatd,
    client_of,
    create_chat,
    is_answered,
    until_event,
)
from tests.support.eventually import eventually
from tests.support.providers.anthropic import KEY, FakeAnthropic, event
from tests.support.providers.server import Gate, RecordedRequest, Reply, Step
from tests.support.store import session_to

# Real processes, on a machine that may be busy. Each test has a shorter bound of its own.
pytestmark = pytest.mark.timeout(150)

QUESTION = "please tell me about fences and leases in a database"
FALLBACK = fallback_title(QUESTION)
SMALL_MODEL = "claude-haiku-4-5"


class TitlingApi(FakeAnthropic):
    """Answers title requests with `title`, after `gate` if there is one, and any other request
    with a text. Keeps the models of the title requests."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None
        self.has_small_model = True
        self.title_models: list[object] = []

    def answer(self, request: RecordedRequest) -> Reply:
        if b"Name the chat" not in request.body:
            return Reply(steps=text_steps("An answer."))
        model = request.json["model"]
        self.title_models.append(model)
        if model == SMALL_MODEL and not self.has_small_model:
            error = {"type": "error", "error": {"type": "not_found_error", "message": "model"}}
            return Reply(
                status=404,
                headers={"content-type": "application/json"},
                steps=(msgspec.json.encode(error),),
            )
        gates = () if self.gate is None else (self.gate,)
        return Reply(steps=(*gates, *text_steps('{"title": "Fences and leases"}')))


def text_steps(text: str) -> tuple[Step, ...]:
    usage = {"input_tokens": 3, "output_tokens": 1}
    delta = {"type": "text_delta", "text": text}
    return (
        event("message_start", message={"id": "msg_1", "model": "m", "usage": usage}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=0, delta=delta),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
        event("message_stop"),
    )


@asynccontextmanager
async def served(
    dsn: str, data_dir: Path, **env: str
) -> AsyncGenerator[tuple[Process, ClientSession]]:
    command = ("serve", "--port", "0", "--data-dir", data_dir, "--database-url", dsn)
    async with (
        asyncio.timeout(100),
        chatd(*command, CHATD_WORKSPACES_ENABLED="false", **env) as process,
    ):
        url = await address(process)
        token = (data_dir / "admin-token").read_text().strip()
        async with client_of(url, token) as client:
            yield process, client


def models_at(api: FakeAnthropic) -> dict[str, str]:
    provider = {"name": "vendor", "kind": "anthropic", "base_url": api.url, "api_key": KEY}
    model = {"name": "large", "provider": "vendor", "model": "claude-opus-4-5", "default": True}
    return {"CHATD_PROVIDERS": json.dumps([provider]), "CHATD_MODELS": json.dumps([model])}


async def get_chat(client: ClientSession, chat: str) -> dict[str, object]:
    async with client.get(f"/api/v1/chats/{chat}") as reply:
        found: dict[str, object] = await reply.json()
        return found


async def wait_title(client: ClientSession, chat: str, title: str) -> None:
    async def has_title() -> bool:
        return (await get_chat(client, chat))["title"] == title

    await eventually(has_title, within_s=60)


async def recorded_calls(dsn: str) -> list[tuple[str, str, bool]]:
    async with session_to(dsn) as session:
        rows = await session.fetch("SELECT kind, model, ok FROM usage_events ORDER BY kind, id")
        return [(row["kind"], row["model"], row["ok"]) for row in rows]


async def test_the_demo_model_titles_a_new_chat_and_the_chat_list_shows_it(
    dsn: str, tmp_path: Path
) -> None:
    async with served(dsn, tmp_path) as (_, client):
        async with client.get("/api/v1/events") as chat_list:
            chat = await create_chat(client, QUESTION)
            await until_event(chat_list.content, b"Tell me about fences and leases")
        await wait_title(client, chat, "Tell me about fences and leases")
        assert await is_answered(client, chat)
    assert ("title", "demo", True) in await recorded_calls(dsn)


async def test_without_titles_a_chat_keeps_the_start_of_its_first_message(
    dsn: str, tmp_path: Path
) -> None:
    """The server has stopped in good order, so nothing can set a title any more."""
    async with served(dsn, tmp_path, CHATD_CHATS_TITLES="false") as (process, client):
        chat = await create_chat(client, f"answer fast: {QUESTION}")
        assert await is_answered(client, chat)
        assert (await get_chat(client, chat))["title"] == fallback_title(f"answer fast: {QUESTION}")
        process.send_signal(signal.SIGTERM)
        await process.wait()
    assert [kind for kind, _, _ in await recorded_calls(dsn)] == ["turn"]


async def test_the_providers_small_model_makes_the_title_and_without_one_the_chats_own(
    dsn: str, tmp_path: Path
) -> None:
    """A missing model is asked for once, not for every new chat. One test: a server is slow to
    start."""
    async with TitlingApi.running() as api, served(dsn, tmp_path, **models_at(api)) as (_, client):
        chat = await create_chat(client, QUESTION)
        await wait_title(client, chat, "Fences and leases")
        assert await is_answered(client, chat)
        assert api.title_models == [SMALL_MODEL]
        assert await recorded_calls(dsn) == [
            ("title", SMALL_MODEL, True),
            ("turn", "claude-opus-4-5", True),
        ]
        api.has_small_model = False
        for _ in range(2):
            chat = await create_chat(client, QUESTION)
            await wait_title(client, chat, "Fences and leases")
        assert api.title_models[1:] == [SMALL_MODEL, "claude-opus-4-5", "claude-opus-4-5"]


async def test_a_server_killed_while_a_title_is_generated_leaves_the_old_title_and_a_usable_chat(
    dsn: str, tmp_path: Path
) -> None:
    async with TitlingApi.running() as api:
        api.gate = Gate()
        async with served(dsn, tmp_path, **models_at(api)) as (process, client):
            chat = await create_chat(client, QUESTION)
            assert await is_answered(client, chat)
            await api.gate.reached.wait()
            process.kill()
            await process.wait()
        api.gate.open()
        async with served(dsn, tmp_path, **models_at(api)) as (_, client):
            found = await get_chat(client, chat)
            assert (found["status"], found["title"]) == ("waiting", FALLBACK)
            body = {"content": [{"type": "text", "text": "and what is an epoch?"}]}
            async with client.post(f"/api/v1/chats/{chat}/messages", json=body) as sent:
                assert sent.status in (200, 201, 202)

            async def has_two_turns() -> bool:
                calls = [kind for kind, _, _ in await recorded_calls(dsn)]
                return calls == ["turn", "turn"]

            await eventually(has_two_turns, within_s=60)
            found = await get_chat(client, chat)
            assert (found["status"], found["title"]) == ("waiting", FALLBACK)
            new = await create_chat(client, QUESTION)
            await wait_title(client, new, "Fences and leases")
        assert len(api.title_models) == 2
