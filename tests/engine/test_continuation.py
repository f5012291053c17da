"""Answers that a crash or a deploy has cut off: the next worker goes on from their text."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.chat.parts import TextPart
from chatd.domain.chat_views.events import MessagePart
from chatd.domain.ids import ChatId
from chatd.domain.model.retry import MAX_MODEL_CALL_ATTEMPTS
from chatd.engine.worker import WorkerConfig
from chatd.store.chat import journal
from tests.support.engine_rig import NO_SLOTS, SHORT_DRAIN, EngineRig, engine_rig_with
from tests.support.outcomes import present
from tests.support.providers.anthropic import FakeAnthropic
from tests.support.providers.openai_chat import FakeCompatible, chunk
from tests.support.providers.server import FakeServer, Gate
from tests.support.proxy import Proxy
from tests.support.stream_replica import StreamClient

BUSY = {"error": {"message": "busy"}}


@asynccontextmanager
async def continuing_rig(
    dsn: str, api: FakeServer, worker: WorkerConfig = SHORT_DRAIN, prefill: str = "trailing"
) -> AsyncGenerator[EngineRig]:
    """A replica with a model of llama.cpp, which goes on from the last message."""
    async with engine_rig_with(dsn, api, worker=worker) as rig:
        options = Raw(f'{{"prefill":"{prefill}"}}'.encode())
        rig.model.config = replace(rig.model.config, options=options)
        yield rig


def last_message(api: FakeServer) -> object:
    return msgspec.convert(api.requests[-1].json["messages"], list[object])[-1]


async def said_before_death(victim: EngineRig, observer: EngineRig, *said: str) -> ChatId:
    chat_id = await victim.ask("go", *said, Gate())
    await observer.wait_journaled(chat_id)
    await victim.wait_shown(chat_id, said[-1])
    await victim.replica.journal.flush()
    return chat_id


@pytest.mark.promise("P10")
async def test_the_next_worker_goes_on_from_the_text_of_a_dead_one(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """A viewer sees one text that only grows, and each call is recorded as it was paid."""
    async with continuing_rig(dsn, api) as survivor:
        async with continuing_rig(proxy.dsn, api) as victim:
            chat_id = await said_before_death(victim, survivor, "half an ans")
            viewer = StreamClient(chat_id)
            async with viewer.connected(survivor.replica.feeds) as view:
                survivor.answer("wer", ".", input_tokens=17)
                proxy.disconnect()
                await viewer.watch(view, lambda client: client.state.status == "waiting")
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: half an answer."]
        assert last_message(api) == {"role": "assistant", "content": "half an ans"}
        assert shown_texts(viewer)[-1] == "half an answer."
        assert all(text.startswith("half an ans") for text in shown_texts(viewer))
        assert await survivor.recorded_usage() == [("turn", False, "estimated"), ("turn", True, 17)]


def shown_texts(viewer: StreamClient) -> list[str]:
    """The preview after each live part."""
    texts: list[str] = []
    episode, text = (0, 0), ""
    for event in viewer.events:
        if isinstance(event, MessagePart) and isinstance(event.message_part.part, TextPart):
            payload, new = event.message_part, event.message_part.part.text
            is_next = (payload.history_version, payload.attempt) != episode
            episode = (payload.history_version, payload.attempt)
            text = new if is_next else text + new
            texts.append(text)
    return texts


async def test_an_answer_is_made_anew_if_the_provider_refuses_to_continue_it(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """In the same attempt: viewers see no failure."""
    async with continuing_rig(dsn, api) as survivor:
        async with continuing_rig(proxy.dsn, api) as victim:
            chat_id = await said_before_death(victim, survivor, "half an ans")
            api.reply(400, {"error": {"message": "prefill is incompatible with enable_thinking"}})
            survivor.answer("a whole answer")
            proxy.disconnect()
            await survivor.reap_owner(chat_id)
            chat = await survivor.wait_chat_task_left(chat_id)
        assert chat.state == "W"
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: a whole answer"]
        assert len(api.requests) == 3
        await survivor.events.wait("continuation_refused", chat_id=chat_id)
        assert not [name for name, _ in survivor.events.seen if name == "model_failed"]


async def test_an_answer_goes_on_after_a_failed_call_too(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """The first call of the takeover fails after a few words, which are kept."""
    async with continuing_rig(dsn, api) as survivor:
        async with continuing_rig(proxy.dsn, api) as victim:
            chat_id = await said_before_death(victim, survivor, "half")
            api.reply(503, BUSY)
            survivor.cut_answer(" an")
            survivor.answer(" answer")
            proxy.disconnect()
            await survivor.reap_owner(chat_id)
            await survivor.wait_state(chat_id, "W")
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: half an answer"]
        assert last_message(api) == {"role": "assistant", "content": "half an"}


@pytest.mark.promise("P4")
@pytest.mark.parametrize("end", ["continued", "interrupted"])
async def test_what_was_said_outlives_any_number_of_failed_calls_and_the_journal(
    dsn: str, api: FakeCompatible, end: str
) -> None:
    """An outage of a day has a thousand attempts, and the journal keeps a quarter of an hour."""
    async with continuing_rig(dsn, api) as drained:
        chat_id = await drained.ask("go", "half an ans", Gate())
        await drained.wait_shown(chat_id, "half an ans")
        await drained.start_drain()
    api.reply(503, BUSY)
    async with continuing_rig(dsn, api) as survivor:
        await survivor.events.wait("model_failed", chat_id=chat_id)
        await survivor.wait_chat_task_left(chat_id)
        await survivor.pool.execute("TRUNCATE chat_journal")
        await survivor.pool.execute("UPDATE chats SET attempt = attempt + 1000")
        if end == "interrupted":
            await survivor.interrupt(chat_id)
        else:
            survivor.answer("wer")
            await survivor.pool.execute("UPDATE chats SET runnable_at = now()")
            survivor.replica.worker.mark_all_dirty()
        await survivor.wait_state(chat_id, "W")
        said = "half an ans" if end == "interrupted" else "half an answer"
        assert await survivor.transcript(chat_id) == ["user: go", f"assistant: {said}"]
        await journal.delete_old_kept(survivor.pool, limit=10)
        assert await survivor.pool.fetchval("SELECT count(*) FROM kept_answers") == 0


@pytest.mark.covers("F42")
async def test_a_continued_answer_that_breaks_off_each_time_is_not_paid_for_for_ever(
    dsn: str, api: FakeCompatible
) -> None:
    """Such a failure looks like an outage, for which a chat waits a day; each call is paid."""
    async with continuing_rig(dsn, api) as drained:
        chat_id = await drained.ask("go", "half", Gate())
        await drained.wait_shown(chat_id, "half")
        await drained.start_drain()
        await drained.pool.execute(
            "UPDATE chats SET setbacks = json_build_object('failed_calls', $1::int,"
            " 'discarded_attempt', 0)",
            MAX_MODEL_CALL_ATTEMPTS - 1,
        )
    async with continuing_rig(dsn, api) as survivor:
        survivor.cut_answer(" an answer")
        chat = await survivor.wait_state(chat_id, "E0")
        assert present(chat.last_error).retryable
        assert len(api.requests) == 2
        said = "assistant: half an answer"
        assert await survivor.transcript(chat_id) == ["user: go", said]


async def test_a_second_death_repeats_nothing_and_no_token_is_recorded_twice(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    said = "x" * 400
    async with continuing_rig(dsn, api, NO_SLOTS) as observer:
        async with continuing_rig(proxy.dsn, api) as victim:
            chat_id = await said_before_death(victim, observer, said)
            proxy.disconnect()
            await observer.reap_owner(chat_id)
        proxy.refuse(new=False)
        async with continuing_rig(proxy.dsn, api) as second:
            again = Gate()
            second.answer("y" * 400, again)
            await again.reached.wait()
            await second.wait_shown(chat_id, "y" * 400)
            await second.replica.journal.flush()
            proxy.disconnect()
            await observer.reap_owner(chat_id)
        # A chat that two workers have lost is taken alone, at a later poll: a quarter of a minute.
        await observer.pool.execute("UPDATE chats SET orphan_count = 1")
        async with continuing_rig(dsn, api) as survivor:
            survivor.answer(" end")
            await survivor.wait_state(chat_id, "W")
            await survivor.replica.usage_writer.wait_idle()
        answer = f"{said}{'y' * 400} end"
        assert await observer.transcript(chat_id) == ["user: go", f"assistant: {answer}"]
        rows = await observer.pool.fetch("SELECT output_tokens FROM usage_events ORDER BY id")
        assert sorted(row["output_tokens"] for row in rows) == [1, 100, 100]


@pytest.mark.promise("P5")
async def test_a_step_that_is_longer_than_the_drain_goes_on_elsewhere(
    dsn: str, api: FakeCompatible
) -> None:
    """All that was said is written before the chat is released."""
    async with continuing_rig(dsn, api, NO_SLOTS) as observer:
        async with continuing_rig(dsn, api) as drained:
            gate = Gate()
            chat_id = await drained.ask("go", "half", " an ", "answ", gate)
            await drained.wait_shown(chat_id, "answ")
            await drained.start_drain()
        async with continuing_rig(dsn, api) as survivor:
            survivor.answer("er")
            await survivor.wait_state(chat_id, "W")
        assert await observer.transcript(chat_id) == ["user: go", "assistant: half an answer"]


async def test_reasoning_is_not_continued(dsn: str, proxy: Proxy, api: FakeCompatible) -> None:
    async with continuing_rig(dsn, api) as survivor:
        async with continuing_rig(proxy.dsn, api) as victim:
            gate = Gate()
            api.script(chunk(reasoning_content="Hm."), chunk(content="half"), gate)
            chat_id = await victim.create("go")
            await gate.reached.wait()
            await victim.wait_shown(chat_id, "half")
            await victim.replica.journal.flush()
            survivor.answer("a whole answer")
            proxy.disconnect()
            await survivor.reap_owner(chat_id)
            await survivor.wait_state(chat_id, "W")
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: a whole answer"]
        assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        ("claude-sonnet-4-5", "Once upon a time."),
        ("claude-sonnet-4-6", "A whole answer."),
    ],
)
async def test_older_models_of_anthropic_go_on_and_newer_ones_begin_again(
    dsn: str, proxy: Proxy, model: str, kept: str
) -> None:
    """The API refuses a text that ends in white space; the model says it again."""
    async with (
        FakeAnthropic.running() as api,
        engine_rig_with(dsn, api, worker=SHORT_DRAIN, kind="anthropic") as survivor,
    ):
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN, kind="anthropic") as victim:
            for rig in (victim, survivor):
                rig.model.config = replace(rig.model.config, model=model)
            gate = Gate()
            api.script_text("Once upon ", gate)
            chat_id = await victim.create("go")
            await victim.wait_shown(chat_id, "Once upon ")
            await victim.replica.journal.flush()
            is_continued = kept.startswith("Once")
            api.script_text(*([" a time."] if is_continued else ["A whole answer."]))
            proxy.disconnect()
            await survivor.reap_owner(chat_id)
            await survivor.wait_state(chat_id, "W")
        assert await survivor.transcript(chat_id) == ["user: go", f"assistant: {kept}"]
        assert len(api.requests) == 2
