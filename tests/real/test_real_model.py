"""Three wires against a model and a server that we have not written.

The model is tiny: what it says is of no use, but that it says it, and how that is told, is real.
Not part of the usual run: make test-model.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.assembler import Assembler, merge_text
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, public_parts
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
from chatd.providers.registry import build
from chatd.providers.secret import Secret
from chatd.providers.settings import ProviderSettings
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.reading import answer_of

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
async def opened(model_url: str, wire: str) -> AsyncGenerator[Provider]:
    settings = ProviderSettings(kind="anthropic", api_key=Secret("none"), base_url=model_url)
    if wire != "messages":
        settings = msgspec.structs.replace(
            settings,
            kind="openai-compat",
            base_url=f"{model_url}/v1",
            use_responses_api=wire == "responses",
        )
    built = build(settings)
    try:
        yield built
    finally:
        await built.close()


@pytest.fixture(params=WIRES)
async def provider(request: pytest.FixtureRequest, model_url: str) -> AsyncGenerator[Provider]:
    async with opened(model_url, str(request.param)) as built:
        yield built


def asked(*messages: PromptMessage, **more: object) -> ModelRequest:
    defaults: dict[str, object] = {"max_output_tokens": 24, "temperature": 0.0}
    return request(*messages, model="smollm2", **{**defaults, **more})


async def ask(provider: Provider, wanted: ModelRequest) -> list[ModelEvent]:
    async with asyncio.timeout(WAIT_S), provider.stream(wanted) as events:
        return [event async for event in events]


def said(events: list[ModelEvent]) -> str:
    return "".join(part.text for part in answer_of(events).content if isinstance(part, TextPart))


def ending(events: list[ModelEvent]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


async def test_an_answer_arrives_in_pieces_and_is_counted(provider: Provider) -> None:
    events = await ask(provider, asked(message("user", "Say hello.")))
    pieces = [event.delta for event in events if isinstance(event, TextDelta)]
    assert len(pieces) > 3
    assert said(events) == "".join(pieces)
    usage = ending(events).usage
    assert usage.output_tokens >= len(pieces) - 1
    assert usage.input_tokens + usage.cache_read_tokens > 5


async def test_what_viewers_are_shown_adds_up_to_what_is_kept(provider: Provider) -> None:
    assembler = Assembler()
    shown: list[Part] = []
    for event in await ask(provider, asked(message("user", "Count to five."))):
        shown += assembler.feed(event)
    kept = assembler.finished().content
    assert public_parts(kept) == merge_text(shown)


async def test_an_answer_that_is_cut_short_says_so(provider: Provider) -> None:
    wanted = asked(message("user", "Tell me a long story."), max_output_tokens=16)
    end = ending(await ask(provider, wanted))
    assert end.usage.output_tokens == 16
    # This server's Responses API calls every answer complete.
    assert end.reason in ("length", "stop")


async def test_a_whole_conversation_is_understood(provider: Provider) -> None:
    first = [message("system", "You are brief."), message("user", "Say hello.")]
    answer = answer_of(await ask(provider, asked(*first)))
    wanted = asked(*first, *replayed(answer), message("user", "And now say goodbye."))
    assert answer_of(await ask(provider, wanted)).has_visible_text


async def test_the_same_question_gets_the_same_answer_on_every_wire(model_url: str) -> None:
    texts: list[str] = []
    for wire in WIRES:
        async with opened(model_url, wire) as built:
            texts.append(said(await ask(built, asked(message("user", "What is the moon?")))))
    assert len(set(texts)) == 1


async def test_a_tool_is_called_and_its_result_read(provider: Provider) -> None:
    """The model is too small to find out by itself how to call a tool. Examples help."""
    told = [*example("Rome"), *example("Berlin"), *example("Madrid")]
    told.append(message("user", "What is the weather in Paris?"))
    wanted = asked(*told, tools=(WEATHER,), tool_choice="required", max_output_tokens=80)
    events = await ask(provider, wanted)
    [called] = [event for event in events if isinstance(event, ToolCallDone)]
    assert (called.name, msgspec.json.decode(called.input)) == ("get_weather", {"city": "Paris"})
    assert "".join(e.delta for e in events if isinstance(e, ToolCallDelta)) == called.input
    assert ending(events).reason == "tool-calls"
    answer = answer_of(events)
    [kept] = [part for part in answer.content if isinstance(part, ToolCallPart)]
    assert (kept.tool_call_id, kept.tool_name) == (called.id, called.name)
    wanted = asked(*told, *replayed(answer), tools=(WEATHER,))
    assert ending(await ask(provider, wanted)).usage.output_tokens > 0


def example(city: str) -> list[PromptMessage]:
    args = msgspec.json.encode({"city": city})
    return [
        message("user", f"What is the weather in {city}?"),
        message("assistant", call(f"call-{city}", "get_weather", args)),
        message("tool", result(f"call-{city}", "sunny", "get_weather")),
        message("assistant", f"It is sunny in {city}."),
    ]


async def test_an_answer_by_schema_fits_it(model_url: str) -> None:
    """On one wire only: this server's other two do not know of it."""
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 40}},
        "required": ["title"],
        "additionalProperties": False,
    }
    wanted = asked(
        message("user", "Name a chat about the weather."),
        output_schema=Raw(msgspec.json.encode(schema)),
        max_output_tokens=80,
    )
    async with opened(model_url, "completions") as provider:
        text = said(await ask(provider, wanted))
    assert list(msgspec.json.decode(text, type=dict[str, str])) == ["title"]


async def test_who_leaves_early_frees_the_model_for_the_next(provider: Provider) -> None:
    long = asked(message("user", "Tell me a very long story."), max_output_tokens=3000)
    async with asyncio.timeout(WAIT_S), provider.stream(long) as events:
        await _first_text(events)
    # There is one slot only: this would wait for 3,000 tokens if the first were still spoken.
    async with asyncio.timeout(WAIT_S / 4):
        assert answer_of(await ask(provider, asked(message("user", "Say hello.")))).content


async def test_a_prompt_beyond_the_context_is_an_error_of_its_own(provider: Provider) -> None:
    with pytest.raises(ProviderError) as caught:
        await ask(provider, asked(message("user", "word " * 6000)))
    told = classify_fault(caught.value.fault)
    assert (told.kind, told.retryable) == ("context_overflow", False)


async def _first_text(events: AsyncIterator[ModelEvent]) -> None:
    async for event in events:
        if isinstance(event, TextDelta):
            return
    raise AssertionError("nothing was said")
