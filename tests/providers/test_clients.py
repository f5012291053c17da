"""What the clients of all APIs have in common, over real sockets."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Raw

from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import Finished, ModelEvent, TextDelta, TextStart, UsageReported
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.bedrock import EventStream
from chatd.providers.provider_config import HttpConfig
from chatd.providers.sse import FramedDecoder
from tests.support.providers import anthropic, bedrock, gemini, openai_chat, openai_responses
from tests.support.providers.client import (
    ClientRig,
    anthropic_rig,
    bedrock_rig,
    chat_rig,
    gemini_rig,
    responses_rig,
)
from tests.support.providers.prompts import request
from tests.support.providers.recorded import ANTHROPIC, CHAT, GEMINI, RESPONSES, ending
from tests.support.providers.server import Cut, Gate, Reset, Silence
from tests.support.providers.stream_reader import collect_failure

WAIT_S = 30

Rig = Callable[[], AbstractAsyncContextManager[ClientRig[Any]]]
NewDecoder = Callable[[], FramedDecoder]


def bedrock_decoder() -> FramedDecoder:
    return AnthropicDecoder(framing=EventStream())


# The rig, the recorded answer, its decoder, invalid options and what the error names.
BUDGET = b'{"thinking":{"budget_tokens":7}}'
BUDGET_FIELD = "options.thinking.budget_tokens"
APIS: dict[str, tuple[Rig, bytes, NewDecoder, bytes, str]] = {
    "anthropic": (
        *(anthropic_rig, anthropic.stream("text"), ANTHROPIC.new_decoder),
        *(BUDGET, BUDGET_FIELD),
    ),
    "bedrock": (bedrock_rig, bedrock.stream("text"), bedrock_decoder, BUDGET, BUDGET_FIELD),
    "gemini": (
        *(gemini_rig, gemini.stream("text"), GEMINI.new_decoder),
        *(b'{"threshold":"ALL"}', "threshold"),
    ),
    "chat": (
        *(chat_rig, openai_chat.stream("text"), CHAT.new_decoder),
        *(b'{"text_verbosity":"loud"}', "text_verbosity"),
    ),
    "responses": (
        *(responses_rig, openai_responses.stream("text"), RESPONSES.new_decoder),
        *(b'{"text_verbosity":"loud"}', "text_verbosity"),
    ),
}


@dataclass
class Client:
    rig: ClientRig[Any]
    first: bytes
    """The stream up to its first text."""
    rest: bytes
    text: TextDelta
    options: Raw
    field: str


@pytest.fixture(params=APIS)
async def client(request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    new_rig, data, new_decoder, options, field = APIS[request.param]
    at, text = first_text(new_decoder(), data)
    async with new_rig() as rig:
        yield Client(rig, data[:at], data[at:], text, Raw(options), field)


def first_text(decoder: FramedDecoder, data: bytes) -> tuple[int, TextDelta]:
    for at in range(len(data)):
        for event in decoder.feed(data[at : at + 1]):
            if isinstance(event, TextDelta):
                return at + 1, event
    raise AssertionError("no text")


async def test_deltas_are_passed_on_as_they_arrive(client: Client) -> None:
    gate = Gate()
    client.rig.fake.script(client.first, gate, client.rest)
    async with (
        asyncio.timeout(WAIT_S),
        client.rig.provider() as provider,
        provider.stream(request(model=client.rig.model)) as events,
    ):
        before: list[ModelEvent] = []
        while (event := await anext(events)) != client.text:
            before.append(event)
        assert {type(event) for event in before} <= {TextStart, UsageReported}
        await gate.reached.wait()
        gate.open()
        ending(Finished, [event async for event in events])


async def test_a_cancelled_task_closes_the_socket(client: Client) -> None:
    gate = Gate()
    client.rig.fake.script(client.first, gate)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        reading = group.create_task(client.rig.ask())
        await gate.reached.wait()
        assert not client.rig.fake.disconnected.is_set()
        reading.cancel()
        await client.rig.fake.disconnected.wait()
        await client.rig.fake.requests[0].disconnected.wait()


async def test_leaving_the_stream_early_closes_the_socket(client: Client) -> None:
    client.rig.fake.script(client.first, Silence())
    async with asyncio.timeout(WAIT_S), client.rig.provider() as provider:
        async with provider.stream(request(model=client.rig.model)) as events:
            await anext(events)
        await client.rig.fake.requests[0].disconnected.wait()


async def test_closing_the_provider_ends_its_streams(client: Client) -> None:
    gate = Gate()
    client.rig.fake.script(client.first, gate)
    async with (
        asyncio.timeout(WAIT_S),
        client.rig.provider() as provider,
        asyncio.TaskGroup() as group,
    ):
        sent = request(model=client.rig.model)
        reading = group.create_task(collect_failure(provider, sent))
        await gate.reached.wait()
        await provider.close()
        assert classify_fault((await reading).fault).retryable


@pytest.mark.parametrize("end", [Cut(), Reset()], ids=["cut", "reset"])
async def test_a_connection_cut_during_the_stream_is_retryable(
    client: Client, end: Cut | Reset
) -> None:
    client.rig.fake.script(client.first, client.rest[:5], end)
    fault = (await client.rig.failure()).fault
    assert (fault.transport, fault.provider) == ("reset", client.rig.config.kind)
    assert classify_fault(fault).retryable


async def test_a_silent_server_times_out(client: Client) -> None:
    client.rig.fake.script(client.first, Silence())
    failed = await client.rig.failure(http=HttpConfig(read_timeout_s=0.05))
    assert failed.fault.transport == "timeout"


async def test_an_invalid_option_is_named_before_a_request_is_sent(client: Client) -> None:
    sent = request(model=client.rig.model, options=client.options)
    classified = classify_fault((await client.rig.failure(sent)).fault)
    assert classified.kind == "config"
    assert client.field in (classified.error.detail or "")
    assert client.rig.fake.requests == []
