"""Three APIs of a third-party server with a real, tiny model. Run by `make test-model` only."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.assembler import Assembler, merge_text
from chatd.domain.chat.messages import public_parts
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    ModelRequest,
    PromptMessage,
    ProviderError,
    TextDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolSpec,
)
from chatd.domain.ports import Provider
from chatd.providers.provider_config import ProviderConfig, Secret
from chatd.providers.registry import build_provider
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]

WIRES: Final = ("completions", "messages", "responses")
WAIT_S: Final = 120
WEATHER: Final = ToolSpec(
    name="get_weather",
    description="The weather in a city.",
    input_schema=Raw(
        b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
    ),
)


@asynccontextmanager
async def open_provider(model_url: str, wire: str) -> AsyncGenerator[Provider]:
    config = ProviderConfig(kind="anthropic", api_key=Secret("none"), base_url=model_url)
    if wire != "messages":
        config = msgspec.structs.replace(
            config,
            kind="openai-compat",
            base_url=f"{model_url}/v1",
            use_responses_api=wire == "responses",
        )
    built = build_provider(config)
    try:
        yield built
    finally:
        await built.close()


@pytest.fixture(params=WIRES)
async def provider(request: pytest.FixtureRequest, model_url: str) -> AsyncGenerator[Provider]:
    async with open_provider(model_url, str(request.param)) as built:
        yield built


def build_request(*messages: PromptMessage, **more: object) -> ModelRequest:
    defaults: dict[str, object] = {"max_output_tokens": 24, "temperature": 0.0}
    return request(*messages, model="smollm2", **{**defaults, **more})


async def ask(provider: Provider, sent: ModelRequest) -> list[ModelEvent]:
    async with asyncio.timeout(WAIT_S), provider.stream(sent) as events:
        return [event async for event in events]


def answer_text(events: list[ModelEvent]) -> str:
    return "".join(part.text for part in answer_of(events).content if isinstance(part, TextPart))


def final_event(events: list[ModelEvent]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


async def test_an_answer_arrives_in_pieces_and_is_counted(provider: Provider) -> None:
    events = await ask(provider, build_request(message("user", "Say hello.")))
    pieces = [event.delta for event in events if isinstance(event, TextDelta)]
    assert len(pieces) > 3
    assert answer_text(events) == "".join(pieces)
    usage = final_event(events).usage
    assert usage.output_tokens >= len(pieces) - 1
    assert usage.input_tokens + usage.cache_read_tokens > 5


async def test_live_parts_add_up_to_the_stored_content(provider: Provider) -> None:
    assembler = Assembler()
    shown: list[Part] = []
    for event in await ask(provider, build_request(message("user", "Count to five."))):
        shown += assembler.feed(event)
    stored = assembler.finished().content
    assert public_parts(stored) == merge_text(shown)


async def test_an_answer_cut_by_its_limit_has_that_finish_reason(provider: Provider) -> None:
    sent = build_request(message("user", "Tell me a long story."), max_output_tokens=16)
    end = final_event(await ask(provider, sent))
    assert end.usage.output_tokens == 16
    # This server's Responses API calls every answer complete.
    assert end.reason in ("length", "stop")


async def test_a_history_is_accepted(provider: Provider) -> None:
    first = [message("system", "You are brief."), message("user", "Say hello.")]
    answer = answer_of(await ask(provider, build_request(*first)))
    sent = build_request(*first, *replayed(answer), message("user", "And now say goodbye."))
    assert answer_of(await ask(provider, sent)).has_visible_text


async def test_the_same_request_gets_the_same_answer_from_every_api(model_url: str) -> None:
    texts: list[str] = []
    for wire in WIRES:
        async with open_provider(model_url, wire) as built:
            texts.append(
                answer_text(await ask(built, build_request(message("user", "What is the moon?"))))
            )
    assert len(set(texts)) == 1


async def test_a_tool_is_called_and_its_result_is_accepted(provider: Provider) -> None:
    """The small model needs examples of tool calls."""
    messages = [*example("Rome"), *example("Berlin"), *example("Madrid")]
    messages.append(message("user", "What is the weather in Paris?"))
    sent = build_request(*messages, tools=(WEATHER,), tool_choice="required", max_output_tokens=80)
    events = await ask(provider, sent)
    [called] = [event for event in events if isinstance(event, ToolCallDone)]
    assert (called.name, msgspec.json.decode(called.input)) == ("get_weather", {"city": "Paris"})
    assert "".join(e.delta for e in events if isinstance(e, ToolCallDelta)) == called.input
    assert final_event(events).reason == "tool-calls"
    answer = answer_of(events)
    [stored] = [part for part in answer.content if isinstance(part, ToolCallPart)]
    assert (stored.tool_call_id, stored.tool_name) == (called.id, called.name)
    sent = build_request(*messages, *replayed(answer), tools=(WEATHER,))
    assert final_event(await ask(provider, sent)).usage.output_tokens > 0


def example(city: str) -> list[PromptMessage]:
    args = msgspec.json.encode({"city": city})
    return [
        message("user", f"What is the weather in {city}?"),
        message("assistant", call(f"call-{city}", "get_weather", args)),
        message("tool", result(f"call-{city}", "sunny", "get_weather")),
        message("assistant", f"It is sunny in {city}."),
    ]


async def test_an_answer_matches_the_output_schema(model_url: str) -> None:
    """This server supports schemas in one API only."""
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 40}},
        "required": ["title"],
        "additionalProperties": False,
    }
    sent = build_request(
        message("user", "Name a chat about the weather."),
        output_schema=Raw(msgspec.json.encode(schema)),
        max_output_tokens=80,
    )
    async with open_provider(model_url, "completions") as provider:
        text = answer_text(await ask(provider, sent))
    assert list(msgspec.json.decode(text, type=dict[str, str])) == ["title"]


async def test_leaving_early_frees_the_model_for_the_next_request(provider: Provider) -> None:
    long = build_request(message("user", "Tell me a very long story."), max_output_tokens=3000)
    async with asyncio.timeout(WAIT_S), provider.stream(long) as events:
        await _first_text(events)
    # The server has one slot: this would wait for 3,000 tokens if the first answer continued.
    async with asyncio.timeout(WAIT_S / 4):
        assert answer_of(await ask(provider, build_request(message("user", "Say hello.")))).content


async def test_a_prompt_beyond_the_context_window_is_a_context_overflow(provider: Provider) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(provider, build_request(message("user", "word " * 6000)))
    classified = classify_fault(caught.value.fault)
    assert (classified.kind, classified.retryable) == ("context_overflow", False)


async def _first_text(events: AsyncIterator[ModelEvent]) -> None:
    async for event in events:
        if isinstance(event, TextDelta):
            return
    raise AssertionError("the answer has no text")
