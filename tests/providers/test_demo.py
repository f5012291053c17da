"""The demo model: what it plays, at what pace, and that it is a provider like the others."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from msgspec import Raw

from chatd.domain import summary, titles
from chatd.domain.classify import classify
from chatd.domain.labels import label_request
from chatd.domain.model import (
    CallDone,
    Finished,
    ModelEvent,
    ModelRequest,
    NamedTool,
    PromptFile,
    ProviderFailed,
    ReasoningDelta,
    SourceFound,
    TextDelta,
    ToolSpec,
)
from chatd.domain.parts import Text
from chatd.providers.demo.options import DemoOptions
from chatd.providers.demo.play import TAG
from chatd.providers.demo.provider import DemoProvider
from chatd.providers.settings import ProviderSettings
from tests.support.clock import FakeClock
from tests.support.providers.prompts import call, message, request, result
from tests.support.providers.reading import answer_of
from tests.support.providers.workshop import ALL_TOOLS, tool

WAIT_S = 30


@pytest.fixture
async def demo(clock: FakeClock) -> DemoProvider:
    return DemoProvider(ProviderSettings(kind="demo"), clock)


def asked(prompt: str, *, seed: int = 0, failures: int = 2, **more: object) -> ModelRequest:
    options = DemoOptions(tokens_per_second=0, seed=seed, failures=failures)
    encoded = Raw(msgspec.json.encode(options))
    return request(message("user", prompt), model="demo", **{"options": encoded, **more})


async def play(demo: DemoProvider, wanted: ModelRequest) -> list[ModelEvent]:
    async with asyncio.timeout(WAIT_S), demo.stream(wanted) as events:
        return [event async for event in events]


async def words(demo: DemoProvider, wanted: ModelRequest) -> str:
    events = await play(demo, wanted)
    return "".join(p.text for p in answer_of(events).content if isinstance(p, Text))


async def calls(demo: DemoProvider, wanted: ModelRequest) -> list[tuple[str, str]]:
    return [(e.name, e.input) for e in await play(demo, wanted) if isinstance(e, CallDone)]


async def test_a_newcomer_is_told_what_this_is_and_what_to_try(demo: DemoProvider) -> None:
    said = await words(demo, asked("Hello there\nfriend"))
    assert "> Hello there\n> friend" in said
    for hint in ("chatd", "fix the failing test", "chatd.toml", "Interrupt me"):
        assert hint in said


async def test_every_word_that_the_greeting_promises_does_something(demo: DemoProvider) -> None:
    greeting = await words(demo, asked("Hello"))
    rows = [line.split("`")[1::2] for line in greeting.splitlines() if line.startswith("| `")]
    promised = [word for row in rows for word in row]
    assert len(promised) >= 8
    failed = 0
    for word in promised:
        try:
            events = await play(demo, asked(word, tools=ALL_TOOLS))
        except ProviderFailed:
            failed += 1
            continue
        spoken = "".join(e.delta for e in events if isinstance(e, TextDelta))
        assert "I have no opinion" not in spoken
        assert "Hello! You are talking to" not in spoken
    assert failed == 1


async def test_the_same_question_gets_the_same_answer(demo: DemoProvider) -> None:
    for prompt in ("hello", "a long story", "use a tool"):
        first = await play(demo, asked(prompt, tools=ALL_TOOLS))
        other = DemoProvider(ProviderSettings(kind="demo"), FakeClock())
        assert await play(other, asked(prompt, tools=ALL_TOOLS)) == first


async def test_another_seed_tells_it_in_another_order(demo: DemoProvider) -> None:
    one = await words(demo, asked("a long story", seed=1))
    two = await words(demo, asked("a long story", seed=2))
    assert one != two
    assert len(one) == len(two)


async def test_thinking_comes_before_the_answer_and_is_counted(demo: DemoProvider) -> None:
    events = await play(demo, asked("think about it"))
    kinds = [type(e) for e in events if isinstance(e, ReasoningDelta | TextDelta)]
    assert kinds.index(TextDelta) == kinds.count(ReasoningDelta)
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.usage.reasoning_tokens == kinds.count(ReasoningDelta)
    assert end.usage.output_tokens == len(kinds)


@pytest.mark.parametrize(
    ("prompt", "part"),
    [("show me a table", "|---|"), ("code please", "```python"), ("a list of things", "1. ")],
)
async def test_markdown_of_all_kinds(demo: DemoProvider, prompt: str, part: str) -> None:
    assert part in await words(demo, asked(prompt))


async def test_sources_and_refusals_can_be_seen(demo: DemoProvider) -> None:
    events = await play(demo, asked("name your sources"))
    assert sum(isinstance(e, SourceFound) for e in events) == 2
    [end] = await play(demo, asked("refuse this"))
    assert isinstance(end, Finished)
    assert (end.reason, end.explanation is not None) == ("content-filter", True)


# Tools


async def test_a_tool_is_called_and_its_result_shown(demo: DemoProvider) -> None:
    wanted = asked("use a tool", tools=(tool("execute"),))
    events = await play(demo, wanted)
    [called] = [e for e in events if isinstance(e, CallDone)]
    assert called.name == "execute"
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason == "tool-calls"
    told = request(
        message("user", "use a tool"),
        message("assistant", call(called.id, called.name, called.input.encode())),
        message("tool", result(called.id, '{"output":"Linux 6.1","exit_code":0}', "execute")),
        model="demo",
        tools=(tool("execute"),),
        options=wanted.options,
    )
    said = await words(demo, told)
    assert "Linux 6.1" in said
    assert "`execute` answered" in said


@pytest.mark.parametrize("prompt", ["use a tool", "list files", "list the templates", "fix it"])
async def test_tools_that_are_not_offered_are_not_called(demo: DemoProvider, prompt: str) -> None:
    assert await calls(demo, asked(prompt)) == []
    assert await calls(demo, asked(prompt, tools=ALL_TOOLS, tool_choice="none")) == []


def declared(name: str, schema: bytes = b'{"type":"object"}') -> ToolSpec:
    return ToolSpec(name=name, description="Declared by a client.", input_schema=Raw(schema))


WEATHER = declared(
    "get_weather", b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("What is the weather in Rome?", "get_weather"),
        ("search the archive", "searchArchive"),
        ("use a tool", "get_weather"),
        ("Hello", "get_weather"),
        ("an error, permanent", None),
        ("a long story", None),
    ],
)
async def test_tools_that_a_client_has_declared_are_used(
    demo: DemoProvider, prompt: str, named: str | None
) -> None:
    tools = (WEATHER, declared("searchArchive"), tool("read_file"))
    wanted = asked(prompt, tools=tools, failures=0)
    if "permanent" in prompt:
        with pytest.raises(ProviderFailed):
            await play(demo, wanted)
        return
    assert [name for name, _ in await calls(demo, wanted)] == ([named] if named else [])


async def test_what_a_clients_tool_answers_is_shown_and_it_is_not_called_again(
    demo: DemoProvider,
) -> None:
    prompt = "What is the weather in Rome?"
    ((name, args),) = await calls(demo, asked(prompt, tools=(WEATHER,)))
    assert msgspec.json.decode(args) == {"city": prompt}
    told = request(
        message("user", prompt),
        message("assistant", call("c1", name, args.encode())),
        message("tool", result("c1", '"sunny"', name)),
        model="demo",
        tools=(WEATHER,),
        options=asked("").options,
    )
    assert "sunny" in await words(demo, told)
    assert await calls(demo, told) == []


async def test_a_schema_of_no_object_gets_no_arguments(demo: DemoProvider) -> None:
    odd = declared("odd", b'{"anyOf":[{"type":"string"}]}')
    assert await calls(demo, asked("use odd", tools=(odd,))) == [("odd", "{}")]


async def test_a_second_summary_lists_what_the_first_one_did_and_not_its_words(
    demo: DemoProvider,
) -> None:
    first = request(message("user", "paint the house"), model="demo", options=asked("").options)
    one = await words(demo, summary.summary_request(first))
    second = request(
        message("user", f"{summary.PREFIX}{one}"),
        message("assistant", "Yes."),
        message("user", "and the fence"),
        model="demo",
        options=asked("").options,
    )
    two = await words(demo, summary.summary_request(second))
    assert "- paint the house\n- and the fence\n" in two
    assert summary.PREFIX.strip()[:30] not in two
    assert summary.INSTRUCTION[:30] not in two


async def test_a_tool_that_is_insisted_on_is_called(demo: DemoProvider) -> None:
    named = asked("hi", tools=ALL_TOOLS, tool_choice=NamedTool(name="read_file"))
    assert await calls(demo, named) == [("read_file", '{"path":"hi"}')]
    assert len(await calls(demo, asked("hi", tools=ALL_TOOLS, tool_choice="required"))) == 1


async def test_ids_of_calls_differ_from_step_to_step(demo: DemoProvider) -> None:
    first = asked("use a tool", tools=ALL_TOOLS)
    later = request(
        message("user", "use a tool"),
        message("assistant", "Done."),
        message("user", "use a tool"),
        model="demo",
        tools=ALL_TOOLS,
        options=first.options,
    )
    ids = [
        event.id
        for wanted in (first, later)
        for event in await play(demo, wanted)
        if isinstance(event, CallDone)
    ]
    assert len(set(ids)) == 2


# Failing on request


async def test_an_error_passes_after_two_attempts(demo: DemoProvider) -> None:
    wanted = asked("show me an error")
    with pytest.raises(ProviderFailed) as first:
        await play(demo, wanted)
    told = classify(first.value.fault)
    assert (told.kind, told.retryable, told.error.provider) == ("overloaded", True, "demo")
    with pytest.raises(ProviderFailed) as second:
        await play(demo, wanted)
    assert classify(second.value.fault).retryable
    assert "There it is" in await words(demo, wanted)


async def test_a_second_attempt_fails_in_the_middle_of_its_answer(demo: DemoProvider) -> None:
    async with demo.stream(asked("show me an error", failures=1)) as events:
        seen = [await anext(events) for _ in range(5)]
        assert any(isinstance(e, TextDelta) for e in seen)
        with pytest.raises(ProviderFailed):
            await _rest(events)


async def test_a_fatal_error_stays(demo: DemoProvider) -> None:
    for _ in range(4):
        with pytest.raises(ProviderFailed) as caught:
            await play(demo, asked("a fatal error"))
        assert not classify(caught.value.fault).retryable


# Jobs beside the chat


async def test_titles_and_labels_are_json_of_the_wanted_form(demo: DemoProvider) -> None:
    said = "please fix the failing test in basket.py, it is urgent and I am late"
    title = titles.title_request("demo", said)
    assert titles.read_title(await words(demo, title)) == "Please fix the failing test in"
    label = await words(demo, label_request("demo", "Basket", "All tests pass."))
    assert msgspec.json.decode(label) == {"label": "Answered in demo mode"}


async def test_any_schema_gets_something_that_fits(demo: DemoProvider) -> None:
    schema = {
        "type": "object",
        "properties": {
            "mood": {"enum": ["good", "bad"]},
            "count": {"type": "integer", "minimum": 3},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "deep": {"anyOf": [{"type": "object", "properties": {"ok": {"type": "boolean"}}}]},
            "not_wanted": {"type": "string"},
        },
        "required": ["mood", "count", "tags", "deep"],
    }
    wanted = asked("hello", output_schema=Raw(msgspec.json.encode(schema)))
    assert msgspec.json.decode(await words(demo, wanted)) == {
        "mood": "good",
        "count": 3,
        "tags": ["hello"],
        "deep": {"ok": False},
    }


async def test_a_summary_keeps_what_was_asked_for(demo: DemoProvider) -> None:
    told = request(
        message("user", "fix the failing test"),
        message("assistant", "Working."),
        model="demo",
        tools=ALL_TOOLS,
        options=asked("").options,
    )
    said = await words(demo, summary.summary_request(told))
    assert "Goal: fix the failing test" in said
    # Whoever goes on from the summary does what was asked.
    after = request(
        message("user", f"{summary.PREFIX}{said}"),
        model="demo",
        tools=ALL_TOOLS,
        options=told.options,
    )
    assert [name for name, _ in await calls(demo, after)] == ["execute"]


# Pace, limits, closing


async def test_tokens_come_at_the_pace_that_is_set(demo: DemoProvider, clock: FakeClock) -> None:
    wanted = asked("hello", options=Raw(b'{"tokens_per_second":20}'))
    async with asyncio.timeout(WAIT_S), demo.stream(wanted) as events:
        await anext(events)
        for number in range(1, 6):
            async with asyncio.TaskGroup() as group:
                token = group.create_task(_next(events))
                assert await clock.pass_over(TAG) == pytest.approx(0.05)
            assert isinstance(token.result(), TextDelta), number


async def test_who_reads_late_is_not_late_for_ever(demo: DemoProvider, clock: FakeClock) -> None:
    wanted = asked("hello", options=Raw(b'{"tokens_per_second":10}'))
    async with asyncio.timeout(WAIT_S), demo.stream(wanted) as events:
        await anext(events)
        clock.advance(1.0)
        # Ten tokens are due and come at once; the eleventh must be waited for.
        for _ in range(10):
            await anext(events)
        async with asyncio.TaskGroup() as group:
            group.create_task(_next(events))
            assert await clock.pass_over(TAG) == pytest.approx(0.1)


async def test_slow_is_slower_and_fast_does_not_wait(demo: DemoProvider, clock: FakeClock) -> None:
    fast = asked("fast please", options=Raw(b'{"tokens_per_second":20}'))
    assert isinstance((await play(demo, fast))[-1], Finished)
    slow = asked("slow please", options=Raw(b'{"tokens_per_second":20}'))
    async with asyncio.timeout(WAIT_S), demo.stream(slow) as events:
        await anext(events)
        async with asyncio.TaskGroup() as group:
            group.create_task(_next(events))
            assert await clock.pass_over(TAG) == pytest.approx(0.5)


async def test_cancelling_ends_it_at_once(demo: DemoProvider, clock: FakeClock) -> None:
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        wanted = asked("hello", options=Raw(b'{"tokens_per_second":1}'))
        task = group.create_task(play(demo, wanted))
        await clock.asleep_on(TAG)
        task.cancel()
    assert clock.sleeping(TAG) == []


async def test_leaving_early_leaves_nothing_behind(demo: DemoProvider, clock: FakeClock) -> None:
    async with demo.stream(asked("hello")) as events:
        await anext(events)
    assert clock.sleeping(TAG) == []
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_an_answer_that_is_too_long_is_cut(demo: DemoProvider) -> None:
    events = await play(demo, asked("a long story", max_output_tokens=10))
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.output_tokens) == ("length", 10)


async def test_what_is_read_is_counted_roughly(demo: DemoProvider) -> None:
    picture = PromptFile(media_type="image/png", data=b"x", name="cat.png")
    wanted = request(
        message("system", "s" * 400),
        message("user", "u" * 40, picture),
        model="demo",
        options=asked("").options,
    )
    events = await play(demo, wanted)
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.usage.input_tokens == 410
    assert "cat.png" in await words(demo, wanted)


async def test_a_wrong_option_is_told(demo: DemoProvider) -> None:
    with pytest.raises(ProviderFailed, match="tokens_per_second"):
        await play(demo, asked("hi", options=Raw(b'{"tokens_per_second":-1}')))


async def _next(events: AsyncIterator[ModelEvent]) -> ModelEvent:
    return await anext(events)


async def _rest(events: AsyncIterator[ModelEvent]) -> list[ModelEvent]:
    return [event async for event in events]
