"""A model with fallbacks: which one answers after which failure, what the chat is told and what is
recorded, and that a worker's death changes none of it. Two model APIs; the test owns the clock
where time matters."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.parts import NoticePart
from chatd.domain.errors import TitleFailed
from chatd.domain.ids import ChatId, ModelConfigId
from chatd.domain.model.circuit import FAILURES_TO_OPEN
from chatd.domain.model.failures import FailureKind
from chatd.domain.model.fallback import FALLBACK_STAY_S
from chatd.domain.model.protocol import Fallback, ModelConfig, Prices
from chatd.domain.ports import ModelChoice
from chatd.providers.provider_config import ProviderConfig
from chatd.providers.registry import build_provider
from tests.support.clock import FakeClock
from tests.support.engine_rig import (
    SHORT_DRAIN,
    EngineRig,
    engine_rig,
    engine_rig_with,
    pass_time,
    usage_chunk,
)
from tests.support.outcomes import present
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import FakeServer, Gate
from tests.support.proxy import Proxy
from tests.support.tools import GatedTool

SECOND = ModelConfigId(UUID(int=8))
BUSY = {"error": {"message": "busy"}}
FELL_BACK = "system: notice(model_fallback)"
RECOVERED = "system: notice(model_recovered)"


@asynccontextmanager
async def fallback_at(rig: EngineRig, url: str, *fallbacks: Fallback) -> AsyncGenerator[None]:
    """Give the rig's model fallbacks, by default the model `second` at another API."""
    provider = build_provider(ProviderConfig(kind="openai-compat", name="b", base_url=f"{url}/v1"))
    config = ModelConfig(
        id=SECOND, name="second", provider="b", model="b-1", prices=Prices(input="10", output="20")
    )
    rig.model.others[SECOND] = ModelChoice(config=config, provider=provider, kind="openai-compat")
    chain = fallbacks or (Fallback(model="second"),)
    rig.model.config = replace(rig.model.config, fallbacks=chain)
    try:
        yield
    finally:
        await provider.close()


@pytest.fixture
async def second() -> AsyncGenerator[FakeCompatible]:
    async with FakeCompatible.running() as api:
        yield api


@pytest.fixture
async def rig(dsn: str, clock: FakeClock, second: FakeCompatible) -> AsyncGenerator[EngineRig]:
    async with engine_rig(dsn, clock=clock) as rig, fallback_at(rig, second.url):
        yield rig


def say(api: FakeServer, *steps: str | Gate, read: int = 7) -> None:
    pieces = (chunk(content=step) if isinstance(step, str) else step for step in steps)
    api.script(*pieces, chunk(finish="stop"), usage_chunk(read), DONE)


async def notices(rig: EngineRig, chat_id: ChatId) -> list[str]:
    parts = [part for row in await rig.history(chat_id) for part in row.content]
    return [part.text for part in parts if isinstance(part, NoticePart)]


async def pass_backoff(rig: EngineRig, clock: FakeClock) -> None:
    delay_s = await clock.wait_for_sleeper("retry_backoff")
    await rig.pool.execute(
        "UPDATE chats SET runnable_at = runnable_at - $1 * interval '1 s'", delay_s
    )
    await pass_time(clock, delay_s)


@pytest.mark.promise("P11")
async def test_the_second_failure_in_a_row_is_answered_by_the_fallback(
    rig: EngineRig, clock: FakeClock, second: FakeCompatible
) -> None:
    """The chat keeps its own model, which answers again after some minutes."""
    rig.api.reply(503, BUSY)
    rig.api.reply(529, BUSY)
    say(second, "from the second")
    chat_id = await rig.create("hi")
    await pass_backoff(rig, clock)
    chat = await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == ["user: hi", FELL_BACK, "assistant: from the second"]
    assert await notices(rig, chat_id) == ["fake is overloaded; second answers."]
    assert chat.model_config_id is None
    assert present(chat.fallback).model_config_id == SECOND
    rows = await rig.pool.fetch("SELECT model, input_tokens, cost_micros FROM usage_events")
    assert [tuple(row.values()) for row in rows] == [("b-1", 7, 7 * 10 + 5 * 20)]

    say(second, "still the second")
    await rig.send(chat_id, "again")
    await rig.wait_state(chat_id, "W")
    await pass_time(clock, FALLBACK_STAY_S)
    say(rig.api, "back")
    await rig.send(chat_id, "and now?")
    chat = await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == [
        *("user: hi", FELL_BACK, "assistant: from the second"),
        *("user: again", "assistant: still the second"),
        *("user: and now?", RECOVERED, "assistant: back"),
    ]
    assert (await notices(rig, chat_id))[-1] == "fake answers again."
    assert (chat.model_config_id, chat.fallback) == (rig.model.config.id, None)


@pytest.mark.parametrize(
    ("status", "message", "notice"),
    [
        (401, "bad key", "fake cannot be used now; second answers."),
        (400, "prompt was flagged", "fake refused to answer; second answers."),
        (400, "prompt is too long", "The chat is too long for fake; second answers."),
        (529, "wait", "fake is overloaded; second answers."),
    ],
)
async def test_what_another_call_would_not_change_is_answered_at_once(
    rig: EngineRig, second: FakeCompatible, status: int, message: str, notice: str
) -> None:
    """A provider that asks for a long wait gets no second call either."""
    rig.set_context_limit(1000)
    other = rig.model.others[SECOND]
    larger = replace(other.config, context_limit=100_000)
    rig.model.others[SECOND] = replace(other, config=larger)
    headers = {"Retry-After": "60"} if status == 529 else {}
    rig.api.reply(status, {"error": {"message": message}}, headers)
    say(second, "mine")
    chat_id = await rig.create("hi")
    await rig.wait_state(chat_id, "W")
    assert await notices(rig, chat_id) == [notice]
    assert len(rig.api.requests) == 1


@pytest.mark.parametrize("kind", ["missing_key", "provider_disabled", "config"])
async def test_a_model_that_cannot_be_called_is_answered_by_its_fallback(
    rig: EngineRig, clock: FakeClock, second: FakeCompatible, kind: FailureKind
) -> None:
    """Its key is missing, its provider or itself is disabled: found before the call. The chat's own
    model answers again when it can be used."""
    rig.model.unusable["fake"] = kind
    say(second, "mine")
    chat_id = await rig.create("hi")
    await rig.wait_state(chat_id, "W")
    say(second, "mine too")
    await rig.send(chat_id, "again")
    await rig.wait_state(chat_id, "W")
    await pass_time(clock, FALLBACK_STAY_S)
    say(second, "still mine")
    await rig.send(chat_id, "and later?")
    await rig.wait_state(chat_id, "W")
    assert await notices(rig, chat_id) == ["fake cannot be used now; second answers."]

    rig.model.unusable.clear()
    await pass_time(clock, FALLBACK_STAY_S)
    say(rig.api, "back")
    await rig.send(chat_id, "and now?")
    chat = await rig.wait_state(chat_id, "W")
    assert (await rig.transcript(chat_id))[-2:] == [RECOVERED, "assistant: back"]
    assert (len(rig.api.requests), chat.fallback) == (1, None)


async def test_a_fallback_that_cannot_be_called_either_is_given_up_for_the_next_one(
    rig: EngineRig, second: FakeCompatible
) -> None:
    """The turn fails with what is wrong with the chat's own model if no fallback is left."""
    rig.model.unusable["fake"] = "missing_key"
    gate = Gate()
    say(second, "half", gate)
    chat_id = await rig.create("hi")
    await gate.reached.wait()
    rig.model.unusable["second"] = "provider_disabled"
    gate.open()
    await rig.wait_state(chat_id, "W")
    await rig.send(chat_id, "again")
    chat = await rig.wait_state(chat_id, "E0")
    assert present(chat.last_error).message == "fake cannot be used."
    assert len(second.requests) == 1


@pytest.mark.parametrize(("required", "title"), [(False, "Greetings"), (True, None)])
async def test_a_title_is_generated_by_the_fallback(
    rig: EngineRig, second: FakeCompatible, *, required: bool, title: str | None
) -> None:
    """Unless the chat requires its model."""
    say(rig.api, "hello")
    chat = await rig.chat(chat_id := await rig.create("hi", model_required=required))
    await rig.wait_state(chat_id, "W")
    rig.api.reply(401, {"error": {"message": "bad key"}})
    say(second, '{"title": "Greetings"}', read=17)
    if title is None:
        with pytest.raises(TitleFailed):
            await rig.replica.titles.suggest(chat, "hi")
        assert second.requests == []
    else:
        assert await rig.replica.titles.suggest(chat, "hi") == title
        assert ("title", True, 17) in await rig.recorded_usage()


async def test_a_chat_whose_models_cannot_be_called_gets_no_title(rig: EngineRig) -> None:
    say(rig.api, "hello")
    chat = await rig.chat(chat_id := await rig.create("hi"))
    await rig.wait_state(chat_id, "W")
    rig.model.unusable |= {"fake": "missing_key", "second": "provider_disabled"}
    with pytest.raises(TitleFailed, match="No model can name the chat: fake cannot be used"):
        await rig.replica.titles.suggest(chat, "hi")


async def test_a_summary_is_written_by_the_fallback(rig: EngineRig, second: FakeCompatible) -> None:
    """And is paid at its prices."""
    say(rig.api, "hello")
    chat_id = await rig.create("hi")
    await rig.wait_state(chat_id, "W")
    rig.api.reply(401, {"error": {"message": "bad key"}})
    say(second, "what was said", read=17)
    await rig.compact(chat_id)
    await rig.wait_state(chat_id, "W")
    assert "'summary': 'what was said'" in (await rig.transcript(chat_id))[-1]
    assert (await rig.recorded_usage())[-1] == ("compaction", True, 17)


@pytest.mark.parametrize(
    ("chain", "required"),
    [
        ((Fallback(model="second", on=("refusal", "context")),), False),
        ((Fallback(model="gone"),), False),
        ((Fallback(model="second"),), True),
    ],
    ids=["another reason", "a removed model", "a chat that requires its model"],
)
async def test_a_fallback_that_does_not_count_changes_nothing(
    rig: EngineRig, second: FakeCompatible, chain: tuple[Fallback, ...], *, required: bool
) -> None:
    rig.model.config = replace(rig.model.config, fallbacks=chain)
    rig.api.reply(401, {"error": {"message": "bad key"}})
    chat_id = await rig.create("hi", model_required=required)
    chat = await rig.wait_state(chat_id, "E0")
    assert present(chat.last_error).kind == "auth"
    assert second.requests == []


async def test_while_a_provider_fails_for_all_chats_the_fallback_is_asked_without_a_call(
    rig: EngineRig, clock: FakeClock, second: FakeCompatible
) -> None:
    rig.model.config = replace(rig.model.config, fallbacks=())
    for _ in range(FAILURES_TO_OPEN):
        rig.api.reply(503, BUSY)
    chat_id = await rig.create("first")
    for _ in range(FAILURES_TO_OPEN - 1):
        await pass_backoff(rig, clock)
    await rig.events.wait("circuit_opened")
    called = len(rig.api.requests)
    rig.model.config = replace(rig.model.config, fallbacks=(Fallback(model="second"),))
    say(second, "at once")
    other = await rig.create("second")
    await rig.wait_state(other, "W")
    assert len(rig.api.requests) == called
    assert await rig.transcript(other) == ["user: second", FELL_BACK, "assistant: at once"]
    await rig.interrupt(chat_id)
    await rig.wait_state(chat_id, "W")


async def test_if_all_fail_the_own_model_is_tried_again_after_the_delay(
    rig: EngineRig, clock: FakeClock, second: FakeCompatible
) -> None:
    """Also if the fallback failed for good: the own model may be back."""
    rig.api.reply(529, BUSY, {"Retry-After": "60"})
    second.reply(401, {"error": {"message": "bad key"}})
    say(rig.api, "back")
    chat_id = await rig.create("hi")
    await pass_backoff(rig, clock)
    chat = await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: back"]
    assert (len(second.requests), chat.setbacks) == (1, None)


async def test_after_a_failed_turn_the_own_model_is_asked_first(
    rig: EngineRig, second: FakeCompatible
) -> None:
    """Its key may have been repaired."""
    for api in (rig.api, second):
        api.reply(401, {"error": {"message": "bad key"}})
    chat_id = await rig.create("hi")
    chat = await rig.wait_state(chat_id, "E0")
    assert (present(chat.last_error).kind, chat.fallback) == ("auth", None)
    say(rig.api, "repaired")
    await rig.send(chat_id, "again")
    await rig.wait_state(chat_id, "W")
    assert (await rig.transcript(chat_id))[-1] == "assistant: repaired"


async def test_a_fallback_answers_the_steps_of_a_turn_and_reads_tool_results(
    dsn: str, second: FakeCompatible
) -> None:
    async with engine_rig(dsn, tools=(GatedTool(),)) as rig, fallback_at(rig, second.url):
        rig.api.reply(401, {"error": {"message": "bad key"}})
        call = {"index": 0, "id": "c1", "type": "function"}
        function = {"name": "echo", "arguments": "{}"}
        second.script(
            chunk(tool_calls=[{**call, "function": function}]), chunk(finish="tool_calls"), DONE
        )
        say(second, "done")
        chat_id = await rig.create("hi")
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-1] == "assistant: done"
        assert len(await notices(rig, chat_id)) == 1
        assert len(rig.api.requests) == 1


@pytest.mark.promise("P10")
async def test_after_the_death_of_a_worker_the_next_one_goes_on_with_the_fallback(
    dsn: str, proxy: Proxy, api: FakeCompatible, second: FakeCompatible
) -> None:
    """It does not ask the chat's own model again, and each call is recorded once."""
    async with engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor:
        async with (
            engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim,
            fallback_at(survivor, second.url),
            fallback_at(victim, second.url),
        ):
            api.reply(401, {"error": {"message": "bad key"}})
            gate = Gate()
            say(second, "half", gate)
            chat_id = await victim.create("go")
            await gate.reached.wait()
            await survivor.wait_journaled(chat_id)
            say(second, "whole", read=17)
            proxy.disconnect()
            await survivor.wait_state(chat_id, "W")
            assert await survivor.transcript(chat_id) == [
                *("user: go", FELL_BACK, "assistant: whole"),
            ]
            assert (len(api.requests), len(second.requests)) == (1, 2)
        assert await survivor.recorded_usage() == [("turn", False, "estimated"), ("turn", True, 17)]
