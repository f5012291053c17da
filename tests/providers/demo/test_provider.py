"""The demo model: its scenes, its speed, and its behaviour as a provider."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Episode
from chatd.domain.ids import ChatId
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    ModelRequest,
    PromptMessage,
    ProviderError,
    ReasoningDelta,
    SourceFound,
    TextDelta,
    ToolCallDone,
    ToolSpec,
)
from chatd.domain.prompt import compaction, titles
from chatd.providers.demo_provider import STORY_PACE, TOKEN_SLEEP, DemoOptions, DemoProvider
from chatd.providers.demo_scenes import TEXTS
from chatd.providers.provider_config import ProviderConfig
from chatd.stream.episodes import EpisodeBuffer
from tests.support.clock import FakeClock
from tests.support.providers.file_tools import ALL_TOOLS, tool
from tests.support.providers.prompts import call, message, request, result
from tests.support.providers.recorded import ending
from tests.support.providers.stream_reader import answer_of

WAIT_S = 30


@pytest.fixture
async def demo(clock: FakeClock) -> DemoProvider:
    return DemoProvider(ProviderConfig(kind="demo"), clock)


def request_for(prompt: str, *, seed: int = 0, failures: int = 2, **more: object) -> ModelRequest:
    options = DemoOptions(tokens_per_second=0, seed=seed, failures=failures)
    encoded = Raw(msgspec.json.encode(options))
    return request(message("user", prompt), model="demo", **{"options": encoded, **more})


def history(*messages: PromptMessage, tools: tuple[ToolSpec, ...] = ()) -> ModelRequest:
    return request(*messages, model="demo", tools=tools, options=request_for("").options)


async def play(demo: DemoProvider, sent: ModelRequest) -> list[ModelEvent]:
    async with asyncio.timeout(WAIT_S), demo.stream(sent) as events:
        return [event async for event in events]


async def answer_text(demo: DemoProvider, sent: ModelRequest) -> str:
    events = await play(demo, sent)
    return "".join(p.text for p in answer_of(events).content if isinstance(p, TextPart))


async def calls(demo: DemoProvider, sent: ModelRequest) -> list[tuple[str, str]]:
    return [(e.name, e.input) for e in await play(demo, sent) if isinstance(e, ToolCallDone)]


async def test_the_first_answer_explains_chatd_and_lists_what_to_try(demo: DemoProvider) -> None:
    text = await answer_text(demo, request_for("Hello there\nfriend"))
    assert "> Hello there\n> friend" in text
    for hint in ("chatd", "fix the failing test", "chatd providers add", "Stop me"):
        assert hint in text


async def test_every_phrase_of_the_greeting_starts_a_scene(demo: DemoProvider) -> None:
    greeting = await answer_text(demo, request_for("Hello"))
    rows = [line.split("`")[1::2] for line in greeting.splitlines() if line.startswith("| `")]
    promised = [word for row in rows for word in row]
    assert len(promised) >= 7
    failed = 0
    for word in promised:
        try:
            events = await play(demo, request_for(word, tools=ALL_TOOLS))
        except ProviderError:
            failed += 1
            continue
        spoken = "".join(e.delta for e in events if isinstance(e, TextDelta))
        assert "I have no opinion" not in spoken
        assert "Hello! You are talking to" not in spoken
    assert failed == 1


async def test_the_same_question_gets_the_same_answer(demo: DemoProvider) -> None:
    for prompt in ("hello", "tell me a long story", "use a tool"):
        first = await play(demo, request_for(prompt, tools=ALL_TOOLS))
        other = DemoProvider(ProviderConfig(kind="demo"), FakeClock())
        assert await play(other, request_for(prompt, tools=ALL_TOOLS)) == first


async def test_the_long_story_takes_an_hour_and_its_preview_is_never_cut(
    demo: DemoProvider,
) -> None:
    """At the default speed, which the options of the request do not have."""
    buffer = EpisodeBuffer(Episode(ChatId(UUID(int=1)), 2, 1))
    events = await play(demo, request_for("Tell me a long story."))
    lines = [e.delta for e in events if isinstance(e, TextDelta)]
    for line in lines:
        buffer.add("assistant", [TextPart(text=line)])
        buffer.flush()
    assert len(lines) / (DemoOptions().tokens_per_second * STORY_PACE.factor) >= 3600
    assert not buffer.truncated


async def test_an_answer_goes_on_wherever_it_was_cut(demo: DemoProvider) -> None:
    """Also in the middle of a word."""
    asked = request_for("what is chatd?")
    whole = await answer_text(demo, asked)
    for size in (1, 7, len(whole) // 2, len(whole) - 1, len(whole)):
        rest = msgspec.structs.replace(asked, continues=whole[:size])
        assert await answer_text(demo, rest) == whole[size:]


async def test_another_seed_shuffles_a_long_answer(demo: DemoProvider) -> None:
    one = await answer_text(demo, request_for("tell me a long story", seed=1))
    two = await answer_text(demo, request_for("tell me a long story", seed=2))
    assert one != two
    assert len(one) == len(two)


async def test_reasoning_precedes_the_answer_and_is_counted(demo: DemoProvider) -> None:
    events = await play(demo, request_for("think about it"))
    kinds = [type(e) for e in events if isinstance(e, ReasoningDelta | TextDelta)]
    assert kinds.index(TextDelta) == kinds.count(ReasoningDelta)
    end = ending(Finished, events)
    assert end.usage.output_tokens == len(kinds)


async def test_a_plan_outside_plan_mode_is_answered_with_the_ways_into_it(
    demo: DemoProvider,
) -> None:
    text = await answer_text(demo, request_for("make a plan"))
    for way in ("*Plan mode* in the **+** menu", "`/plan`"):
        assert way in text


@pytest.mark.parametrize(
    ("prompt", "part"),
    [("show me a table", "|---|"), ("show me code", "```python"), ("show me a list", "1. ")],
)
async def test_the_request_chooses_the_kind_of_markdown(
    demo: DemoProvider, prompt: str, part: str
) -> None:
    assert part in await answer_text(demo, request_for(prompt))


async def test_sources_on_request(demo: DemoProvider) -> None:
    events = await play(demo, request_for("cite your sources"))
    assert sum(isinstance(e, SourceFound) for e in events) == 2


# Tools


async def test_a_tool_is_called_and_its_result_is_shown(demo: DemoProvider) -> None:
    sent = request_for("use a tool", tools=(tool("execute"),))
    events = await play(demo, sent)
    [called] = [e for e in events if isinstance(e, ToolCallDone)]
    assert called.name == "execute"
    end = ending(Finished, events)
    assert end.reason == "tool-calls"
    follow_up = history(
        message("user", "use a tool"),
        message("assistant", call(called.id, called.name, called.input.encode())),
        message("tool", result(called.id, '{"output":"Linux 6.1","exit_code":0}', "execute")),
        tools=(tool("execute"),),
    )
    text = await answer_text(demo, follow_up)
    assert "Linux 6.1" in text
    assert "`execute` answered" in text


@pytest.mark.parametrize("prompt", ["use a tool", "call read_file", "fix the failing test"])
async def test_the_model_calls_only_tools_that_the_request_offers(
    demo: DemoProvider, prompt: str
) -> None:
    assert await calls(demo, request_for(prompt)) == []
    assert await calls(demo, request_for(prompt, tools=ALL_TOOLS, tool_choice="none")) == []


@pytest.mark.parametrize("prompt", ["call getWeather", "Please use getWeather."])
async def test_a_message_that_names_a_tool_calls_it_and_shows_its_result(
    demo: DemoProvider, prompt: str
) -> None:
    schema = b'{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}'
    weather = ToolSpec(name="getWeather", description="Tells it.", input_schema=Raw(schema))
    tools = (tool("read_file"), weather)
    ((name, args),) = await calls(demo, request_for(prompt, tools=tools))
    assert (name, msgspec.json.decode(args)) == ("getWeather", {"city": "sample", "days": 1})
    follow_up = history(
        message("user", prompt),
        message("assistant", call("c1", name, args.encode())),
        message("tool", result("c1", '"sunny"', name)),
        tools=tools,
    )
    assert "sunny" in await answer_text(demo, follow_up)
    assert await calls(demo, follow_up) == []


async def test_a_schema_without_properties_gets_no_arguments(demo: DemoProvider) -> None:
    odd = ToolSpec(name="odd", description="", input_schema=Raw(b'{"anyOf":[{"type":"string"}]}'))
    assert await calls(demo, request_for("call odd", tools=(odd,))) == [("odd", "{}")]


async def test_a_second_summary_lists_the_requests_of_the_first(demo: DemoProvider) -> None:
    first = history(message("user", "paint the house"))
    one = await answer_text(demo, compaction.summary_request(first))
    second = history(
        message("user", f"{compaction.SUMMARY_PREFIX}{one}"),
        message("assistant", "Yes."),
        message("user", "and the fence"),
    )
    two = await answer_text(demo, compaction.summary_request(second))
    assert "- paint the house\n- and the fence\n" in two
    assert compaction.SUMMARY_PREFIX.strip()[:30] not in two
    assert compaction.SUMMARY_INSTRUCTION[:30] not in two


async def test_ids_of_calls_differ_from_step_to_step(demo: DemoProvider) -> None:
    first = request_for("use a tool", tools=ALL_TOOLS)
    later = history(
        message("user", "use a tool"),
        message("assistant", "Done."),
        message("user", "use a tool"),
        tools=ALL_TOOLS,
    )
    ids = [
        event.id
        for sent in (first, later)
        for event in await play(demo, sent)
        if isinstance(event, ToolCallDone)
    ]
    assert len(set(ids)) == 2


# Failures on request


async def test_the_model_answers_after_two_failures(demo: DemoProvider) -> None:
    sent = request_for("show me an error")
    with pytest.raises(ProviderError) as first:
        await play(demo, sent)
    failure = classify_fault(first.value.fault)
    assert (failure.retryable, failure.error.provider) == (True, "demo")
    with pytest.raises(ProviderError) as second:
        await play(demo, sent)
    assert classify_fault(second.value.fault).retryable
    assert "There it is" in await answer_text(demo, sent)


async def test_a_failure_comes_in_the_middle_of_the_answer(demo: DemoProvider) -> None:
    async with demo.stream(request_for("show me an error", failures=1)) as events:
        seen = [await anext(events) for _ in range(5)]
        assert any(isinstance(e, TextDelta) for e in seen)
        with pytest.raises(ProviderError):
            await _rest(events)


async def test_a_permanent_error_is_repeated(demo: DemoProvider) -> None:
    for _ in range(4):
        with pytest.raises(ProviderError) as caught:
            await play(demo, request_for("show me a fatal error"))
        assert not classify_fault(caught.value.fault).retryable


@pytest.mark.parametrize("word", ["curl", "chatd.toml", "/api/", "POST", "PUT", "busy_behavior"])
def test_no_text_needs_more_than_the_page_or_the_terminal(word: str) -> None:
    said = msgspec.json.encode(TEXTS).decode()
    assert word not in said


# Titles and summaries


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            "please fix the failing test in basket.py, it is late",
            "Fix the failing test in basket.py",
        ),
        ("Hello", "Hello"),
        ("?", "New chat"),
        ("hello *there*", "There"),
        ("hi, **fix** `basket.py`", "Fix basket.py"),
        ("*please* look", "Look"),
    ],
)
async def test_a_title_is_the_first_words(demo: DemoProvider, text: str, title: str) -> None:
    asked = titles.title_request("demo", text)
    assert titles.read_title(await answer_text(demo, asked)) == title


async def test_a_summary_lists_the_requests_of_the_user(demo: DemoProvider) -> None:
    follow_up = history(
        message("user", "fix the failing test"),
        message("assistant", "Working."),
        message("user", "Continue."),
        tools=ALL_TOOLS,
    )
    text = await answer_text(demo, compaction.summary_request(follow_up))
    assert "Goal: fix the failing test" in text
    # After compaction, the summary starts the same scene.
    after = history(message("user", f"{compaction.SUMMARY_PREFIX}{text}"), tools=ALL_TOOLS)
    assert [name for name, _ in await calls(demo, after)] == ["execute"]


# Speed, limits, closing


async def test_tokens_arrive_at_the_configured_speed(demo: DemoProvider, clock: FakeClock) -> None:
    sent = request_for("hello", options=Raw(b'{"tokens_per_second":20}'))
    async with asyncio.timeout(WAIT_S), demo.stream(sent) as events:
        await anext(events)
        for number in range(1, 6):
            async with asyncio.TaskGroup() as group:
                token = group.create_task(_next(events))
                assert await clock.advance_past(TOKEN_SLEEP) == pytest.approx(0.05)
            assert isinstance(token.result(), TextDelta), number


async def test_a_slow_reader_catches_up(demo: DemoProvider, clock: FakeClock) -> None:
    sent = request_for("hello", options=Raw(b'{"tokens_per_second":10}'))
    async with asyncio.timeout(WAIT_S), demo.stream(sent) as events:
        await anext(events)
        clock.advance(1.0)
        # Ten tokens are due and arrive at once; the eleventh is not due yet.
        for _ in range(10):
            await anext(events)
        async with asyncio.TaskGroup() as group:
            group.create_task(_next(events))
            assert await clock.advance_past(TOKEN_SLEEP) == pytest.approx(0.1)


async def test_a_row_of_a_table_arrives_as_a_whole(demo: DemoProvider) -> None:
    events = await play(demo, request_for("show me a table"))
    deltas = [event.delta.strip() for event in events if isinstance(event, TextDelta)]
    assert "| part of chatd | what it does |" in deltas
    assert "| stream | sends changes to viewers |" in deltas
    assert "bold" not in "".join(one for one in deltas if one.startswith("|"))


async def test_a_fast_answer_has_no_pauses(demo: DemoProvider) -> None:
    fast = request_for("answer fast", options=Raw(b'{"tokens_per_second":20}'))
    assert isinstance((await play(demo, fast))[-1], Finished)


async def test_a_cancelled_reader_stops_the_stream_at_once(
    demo: DemoProvider, clock: FakeClock
) -> None:
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        sent = request_for("hello", options=Raw(b'{"tokens_per_second":1}'))
        task = group.create_task(play(demo, sent))
        await clock.wait_for_sleeper(TOKEN_SLEEP)
        task.cancel()
    assert clock.sleeping(TOKEN_SLEEP) == []


async def test_a_stream_that_is_closed_early_is_cleaned_up(
    demo: DemoProvider, clock: FakeClock
) -> None:
    async with demo.stream(request_for("hello")) as events:
        await anext(events)
    assert clock.sleeping(TOKEN_SLEEP) == []
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_max_output_tokens_cuts_the_answer(demo: DemoProvider) -> None:
    events = await play(demo, request_for("tell me a long story", max_output_tokens=10))
    end = ending(Finished, events)
    assert (end.reason, end.usage.output_tokens) == ("length", 10)


async def test_input_tokens_are_estimated(demo: DemoProvider) -> None:
    short, long = (history(message("user", "u" * size)) for size in (40, 4040))
    counts = [ending(Finished, await play(demo, sent)).usage.input_tokens for sent in (short, long)]
    assert counts[1] - counts[0] == 1000


async def test_an_invalid_option_is_named(demo: DemoProvider) -> None:
    with pytest.raises(ProviderError, match="tokens_per_second"):
        await play(demo, request_for("hi", options=Raw(b'{"tokens_per_second":-1}')))


async def _next(events: AsyncIterator[ModelEvent]) -> ModelEvent:
    return await anext(events)


async def _rest(events: AsyncIterator[ModelEvent]) -> list[ModelEvent]:
    return [event async for event in events]
