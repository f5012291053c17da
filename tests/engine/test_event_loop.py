"""Long chats do not stop the others: what takes long per byte lets other tasks run meanwhile."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.messages import Message, encode_parts
from chatd.domain.ids import ModelConfigId, WorkerId
from chatd.domain.model.protocol import ModelConfig, ModelRequest, PromptMessage, PromptText
from chatd.domain.ports import ModelChoice, Provider
from chatd.engine.model.attempt import Attempt
from chatd.engine.model.model_call import TurnContext, build_request
from chatd.providers.http import SENT_SLICE_BYTES, body_slices, encode_list
from chatd.store.chat.messages import DECODED_SLICE_CHARS, decode_in_slices
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import Row
from tests.support.clock import FakeClock
from tests.support.eventually import ticking
from tests.support.factories import AT, chat, message, text
from tests.support.providers import anthropic, bedrock, gemini, openai_chat, openai_responses
from tests.support.providers.client import (
    ClientRig,
    anthropic_rig,
    bedrock_rig,
    chat_rig,
    gemini_rig,
    responses_rig,
)
from tests.support.providers.stream_reader import collect
from tests.support.tables import table

HISTORY_CHARS = 48_000_000
MESSAGE_CHARS = 10_000
WORDS = "word " * (MESSAGE_CHARS // 5)


def history(chars: int = HISTORY_CHARS) -> list[Message]:
    return [
        message(number, "user" if number % 2 else "assistant", text(WORDS))
        for number in range(1, chars // MESSAGE_CHARS + 1)
    ]


def stored(row: Message) -> Row:
    columns = {**msgspec.structs.asdict(row), "content": encode_parts(row.content), "usage": None}
    return cast("Row", columns)


async def test_rows_are_decoded_in_slices() -> None:
    rows = [stored(row) for row in history()]
    async with ticking() as ticker:
        decoded = await decode_in_slices(rows)
        slices = HISTORY_CHARS // (DECODED_SLICE_CHARS + MESSAGE_CHARS)
        assert ticker.ticks >= slices
    assert [row.id for row in decoded] == [row["id"] for row in rows]
    assert decoded[0].created_at == AT


async def test_small_rows_are_decoded_in_slices_too() -> None:
    rows = [stored(message(number, "user", text("hi"))) for number in range(20_000)]
    async with ticking() as ticker:
        await decode_in_slices(rows)
        assert ticker.ticks >= 30


def context() -> TurnContext:
    config = ModelConfig(id=ModelConfigId(UUID(int=7)), name="m", provider="p", model="m")
    choice = ModelChoice(config=config, provider=cast("Provider", None), kind="anthropic")
    return TurnContext(choice=choice, tools={}, client_tools=())


def attempt_with(rows: list[Message]) -> Attempt:
    row = chat()
    created = AppliedChange(chat=row, messages=tuple(rows), layers=())
    return Attempt(row, WorkerId(UUID(int=3)), FakeClock(), asyncio.Event(), created=created)


async def test_the_prompt_of_a_long_history_is_built_beside_the_loop() -> None:
    attempt = attempt_with(history())
    async with ticking() as ticker:
        request = await build_request(attempt, context())
        assert ticker.ticks > 0
    assert len(request.messages) >= HISTORY_CHARS // MESSAGE_CHARS


async def test_a_short_prompt_is_built_at_once() -> None:
    attempt = attempt_with(history(MESSAGE_CHARS))
    async with ticking() as ticker:
        await build_request(attempt, context())
        assert ticker.ticks == 0


@table(
    "new_rig model answer works",
    {
        "anthropic": (anthropic_rig, "claude-opus-4-6", anthropic.stream("text"), 1),
        "bedrock": (bedrock_rig, "eu.anthropic.claude-opus-4-6", bedrock.stream("text"), 2),
        "google": (gemini_rig, "gemini-2.5-pro", gemini.stream("text"), 2),
        "responses": (responses_rig, "gpt-5", openai_responses.stream("text"), 1),
        "chat": (chat_rig, "gpt-4o", openai_chat.stream("text"), 2),
    },
)
async def test_a_large_body_is_encoded_and_hashed_beside_the_loop(
    new_rig: Callable[[], AbstractAsyncContextManager[ClientRig[Any]]],
    model: str,
    answer: bytes,
    works: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_threads = 0

    async def to_thread(work: Callable[[], object]) -> object:
        nonlocal in_threads
        in_threads += 1
        return work()

    monkeypatch.setattr("chatd.providers.http.asyncio.to_thread", to_thread)
    long = PromptMessage(role="user", parts=(PromptText(text="word " * 60_000),))
    short = PromptMessage(role="user", parts=(PromptText(text="word"),))
    uses_responses = None if new_rig is not chat_rig else False
    async with new_rig() as rig, rig.provider(use_responses_api=uses_responses) as provider:
        for one in (short, long):
            rig.fake.script(answer)
            await collect(provider, ModelRequest(model=model, messages=(one,)))
    assert in_threads == works


async def test_a_large_body_is_sent_in_slices() -> None:
    body = bytes(range(256)) * 1000
    slices = [bytes(piece) async for piece in body_slices(body)]
    assert b"".join(slices) == body
    assert max(map(len, slices)) <= SENT_SLICE_BYTES


def test_a_list_encoded_in_pieces_has_the_same_bytes() -> None:
    items: list[object] = [{"a": 1}, "x\n", None, [1, 2]]
    assert bytes(encode_list(items)) == msgspec.json.encode(items)
    assert bytes(encode_list([])) == b"[]"
