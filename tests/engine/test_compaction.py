"""Compaction: at the threshold, on request, and after the provider rejects a prompt."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.chat.commands import SendMessage
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import FilePart, NoticePart
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import LearnedLimit
from chatd.domain.prompt.compaction import SUMMARY_INSTRUCTION
from chatd.engine.model.budget import SpendLimit
from chatd.engine.model.model_step import MAX_SUMMARY_ATTEMPTS
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, advancing, engine_rig
from tests.support.outcomes import present
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 100 tokens.",
        "code": "context_length_exceeded",
    }
}


def is_summary_request(rig: EngineRig, number: int) -> bool:
    return SUMMARY_INSTRUCTION[:40].encode() in rig.api.requests[number].body


async def test_a_full_context_is_compacted_before_the_next_model_call(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        rig.answer("what happened so far", input_tokens=90)
        rig.answer("done", input_tokens=20)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert [is_summary_request(rig, n) for n in range(3)] == [False, True, False]
        request = rig.api.requests[2].body
        assert b"what happened so far" in request
        assert b"said {}" not in request
        expected = [("turn", True, 80), ("compaction", True, 90), ("turn", True, 20)]
        assert await rig.recorded_usage() == expected
        assert (await rig.events.wait("chat_started", chat_id=chat_id))["messages"] == 1
        ended = await rig.events.wait("turn_ended", chat_id=chat_id)
        assert (ended["outcome"], ended["queued"]) == ("finished", 0)


async def test_a_context_below_the_threshold_is_not_compacted(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=60)
        rig.answer("done", input_tokens=65)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert len(rig.api.requests) == 2


async def test_a_requested_compaction_ends_the_turn(rig: EngineRig) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.answer("they greeted each other")
    chat = await rig.compact(chat_id)
    assert (chat.state, chat.compaction_requested) == ("R0", True)
    chat = await rig.wait_chat_task_left(chat_id, epoch=3)
    assert (chat.state, chat.compaction_requested) == ("W", False)
    assert len(rig.api.requests) == 2
    rig.answer("again")
    await rig.send(chat_id, "hi again")
    await rig.wait_chat_task_left(chat_id, epoch=5)
    assert b"they greeted each other" in rig.api.requests[2].body
    assert b'"hello"' not in rig.api.requests[2].body


async def test_a_prompt_rejected_as_too_long_is_compacted_and_the_turn_continues(
    rig: EngineRig,
) -> None:
    """The provider rejects the first summary prompt too; the second is half as long."""
    chat_id = await rig.ask("hi " * 500, "hello " * 500)
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.api.reply(400, OVERFLOW)
    rig.api.reply(400, OVERFLOW)
    rig.answer("a short summary")
    rig.answer("ok")
    await rig.send(chat_id, "go on")
    assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
    sizes = [len(request.body) for request in rig.api.requests[1:4]]
    assert sizes[0] > sizes[1] > sizes[2]
    assert (await rig.transcript(chat_id))[-1] == "assistant: ok"


async def test_a_first_message_that_is_too_long_fails_the_turn(rig: EngineRig) -> None:
    rig.api.reply(400, OVERFLOW)
    chat_id = await rig.create("hi")
    assert present((await rig.wait_chat_task_left(chat_id)).last_error).kind == "context_overflow"


@pytest.mark.parametrize("name", ["notes.txt", "pasted-text-2026-01-02-03-04-05.txt"])
async def test_a_large_file_that_overflows_the_window_is_not_sent_beside_the_summary(
    rig: EngineRig, name: str
) -> None:
    chat_id = await rig.ask("hi", "hello " * 10_000)
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.api.reply(400, OVERFLOW)
    rig.answer("they want the file read")
    rig.answer("ok")
    data = b64encode(b"long text " * 12_000).decode()
    file = FilePart(media_type="text/plain", name=name, data=data)
    asked = rig.prompt("read this")
    asked = replace(asked, content=(*asked.content, file))
    with rig.replica.worker.reserve_slot(root=True) as free:
        await rig.run(chat_id, SendMessage(prompt=asked), free)
    assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
    sizes = [len(request.body) for request in rig.api.requests]
    assert sizes[1] > 120_000
    assert sizes[3] < 10_000
    assert (await rig.transcript(chat_id))[-1] == "assistant: ok"


async def test_a_prompt_too_long_right_after_a_summary_is_summarized_once_more_without_the_rest(
    dsn: str,
) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(10_000)
        long_steps(rig, 8, 8_000)
        rig.answer("what happened so far", input_tokens=8_100)
        rig.api.reply(400, OVERFLOW)
        rig.answer("in short", input_tokens=3_000)
        rig.api.reply(400, OVERFLOW)
        chat_id = await rig.create("count the results")
        chat = await rig.wait_chat_task_left(chat_id)
        assert (chat.state, present(chat.last_error).kind) == ("E0", "context_overflow")
        assert [is_summary_request(rig, n) for n in range(8, 12)] == [True, False, True, False]
        assert b"result 7." in rig.api.requests[9].body
        assert b"result 7." not in rig.api.requests[11].body
        rig.answer("done", input_tokens=100)
        await rig.send(chat_id, "and now?")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        assert b"in short" in rig.api.requests[12].body


async def test_a_chat_whose_kept_messages_are_too_long_goes_on_after_a_second_summary(
    dsn: str,
) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(10_000)
        long_steps(rig, 8, 8_000)
        rig.answer("what happened so far", input_tokens=8_100)
        _refuse(rig)
        chat_id = await rig.create("count the results")
        assert (await rig.wait_chat_task_left(chat_id)).state == "E0"
        rig.answer("in short", input_tokens=3_000)
        await rig.compact(chat_id)
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        rig.answer("done", input_tokens=100)
        await rig.send(chat_id, "and now?")
        assert (await rig.wait_chat_task_left(chat_id, epoch=5)).state == "W"
        assert b"in short" in rig.api.requests[-1].body
        assert b"result 7." not in rig.api.requests[-1].body


def long_steps(rig: EngineRig, count: int, *tokens: int) -> None:
    """Script calls with results of about 1,000 tokens. The last steps report `tokens`, the others
    a few."""
    told = (*(10 for _ in range(count - len(tokens))), *tokens)
    for number, used in enumerate(told):
        said = msgspec.json.encode({"say": f"result {number}. " + "word " * 800}).decode()
        rig.call_tools((f"c{number}", "echo", said), input_tokens=used)


@pytest.mark.covers("compaction-15")
async def test_the_last_message_and_steps_stay_and_a_new_owner_sends_the_same_bytes(
    dsn: str,
) -> None:
    clock = FakeClock()
    async with engine_rig(dsn, tools=[GatedTool()], clock=clock) as rig, advancing(clock):
        rig.set_context_limit(10_000)
        long_steps(rig, 8, 8_000)
        rig.answer("what happened so far", input_tokens=8_100)
        rig.api.reply(529, {"error": {"message": "overloaded"}})
        rig.answer("done", input_tokens=3_000)
        chat_id = await rig.create("count the results")
        await rig.wait_state(chat_id, "W")
        # The worker that wrote the summary has the whole history in memory; the one that
        # repeats the call has read it.
        first, repeated = rig.api.requests[-2:]
        assert first.body == repeated.body
        assert b"count the results" in first.body
        assert [f"result {n}.".encode() in first.body for n in range(8)] == [False] * 6 + [True] * 2
        shown = await rig.summary_result(chat_id)
        assert shown["kept_messages"] == 5


@pytest.mark.covers("compaction-16")
async def test_old_results_are_shortened_once_before_a_summary_is_needed(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(10_000)
        long_steps(rig, 8, 6_000)
        rig.call_tools(("d1", "echo", "{}"), input_tokens=6_000)
        rig.answer("done", input_tokens=6_000)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert notices(await rig.history(chat_id)) == ["results_cleared"]
        before, after, last = rig.api.requests[-3:]
        assert len(after.body) < len(before.body)
        assert last.body.count(b"Removed to save context") == 6
        assert all(f"result {n}.".encode() in last.body for n in range(8))
        sent, extended = (
            msgspec.convert(request.json["messages"], list[object]) for request in (after, last)
        )
        assert extended[: len(sent)] == sent


Failure = Callable[[EngineRig], None]


def _refuse(rig: EngineRig) -> None:
    rig.api.reply(400, {"error": {"message": "this prompt is not for me"}})


def _answer_nothing(rig: EngineRig) -> None:
    rig.answer()


def _filter(rig: EngineRig) -> None:
    rig.api.script(chunk(content="what hap"), chunk(finish="content_filter"), DONE)


FAILURES = [
    pytest.param(_refuse, id="400"),
    pytest.param(_answer_nothing, id="empty"),
    pytest.param(_filter, id="filtered"),
]


def notices(rows: Sequence[Message]) -> list[str]:
    return [part.code for row in rows for part in row.content if isinstance(part, NoticePart)]


def use_summary_model(rig: EngineRig) -> None:
    rig.model.summary_config = replace(
        rig.model.config, id=ModelConfigId(UUID(int=8)), name="small", model="small-1"
    )


def models_called(rig: EngineRig) -> list[str]:
    return [msgspec.json.decode(request.body)["model"] for request in rig.api.requests]


@pytest.mark.parametrize("fail", FAILURES)
async def test_a_requested_summary_that_fails_says_so_and_leaves_the_chat_usable(
    rig: EngineRig, fail: Failure
) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    fail(rig)
    await rig.compact(chat_id)
    chat = await rig.wait_chat_task_left(chat_id, epoch=3)
    assert (chat.state, chat.compaction_requested) == ("W", False)
    assert notices(await rig.history(chat_id)) == ["summary_failed"]
    rig.answer("still here")
    await rig.send(chat_id, "and now?")
    assert (await rig.wait_chat_task_left(chat_id, epoch=5)).state == "W"
    assert b"summary" not in rig.api.requests[-1].body


@pytest.mark.covers("compaction-14")
@pytest.mark.parametrize("fail", FAILURES)
async def test_a_turn_goes_on_without_the_summary_that_failed_and_tries_none_at_every_step(
    dsn: str, fail: Failure
) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        fail(rig)
        rig.call_tools(("c2", "echo", "{}"), input_tokens=85)
        rig.answer("done", input_tokens=90)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert [is_summary_request(rig, n) for n in range(4)] == [False, True, False, False]
        assert notices(await rig.history(chat_id)) == ["summary_failed"]
        assert (await rig.transcript(chat_id))[-1] == "assistant: done"


async def test_a_refusal_of_the_model_for_summaries_falls_back_to_the_own_model(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        use_summary_model(rig)
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        _refuse(rig)
        rig.answer("what happened so far", input_tokens=90)
        rig.answer("done", input_tokens=20)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert models_called(rig) == ["fake-1", "small-1", "fake-1", "fake-1"]
        assert notices(await rig.history(chat_id)) == []
        assert b"what happened so far" in rig.api.requests[3].body


async def test_a_model_for_summaries_that_spend_rules_refuse_falls_back_to_the_own_model(
    dsn: str,
) -> None:
    limit = SpendLimit(micros=1_000_000_000, refuses_unpriced=True)
    async with engine_rig(dsn, tools=[GatedTool()], spend_limit=limit) as rig:
        use_summary_model(rig)
        rig.model.summary_config = replace(present(rig.model.summary_config), prices=None)
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        rig.answer("what happened so far", input_tokens=90)
        rig.answer("done", input_tokens=20)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert models_called(rig) == ["fake-1"] * 3
        assert b"what happened so far" in rig.api.requests[2].body
        used = [("turn", True, 80), ("compaction", True, 90), ("turn", True, 20)]
        assert await rig.recorded_usage() == used


@pytest.mark.promise("P11")
async def test_the_usage_of_every_failed_summary_is_recorded(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        use_summary_model(rig)
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        rig.answer(input_tokens=90)
        rig.answer(input_tokens=91)
        rig.answer("done", input_tokens=82)
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        used = [("turn", True, 80), ("compaction", False, 90), ("compaction", False, 91)]
        assert await rig.recorded_usage() == [*used, ("turn", True, 82)]


async def test_a_failed_summary_fails_the_turn_only_if_the_window_is_full(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        _refuse(rig)
        rig.call_tools(("c2", "echo", "{}"), input_tokens=96)
        _refuse(rig)
        chat_id = await rig.create("go")
        chat = await rig.wait_chat_task_left(chat_id)
        error = present(chat.last_error)
        assert (chat.state, error.kind) == ("E0", "summary_failed")
        assert "summary" in error.message
        assert "this prompt is not for me" in present(error.detail)
        # The next message tries again, and the chat is repaired.
        rig.answer("what happened so far", input_tokens=97)
        rig.answer("done", input_tokens=20)
        await rig.send(chat_id, "go on")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"


async def test_a_summary_that_fails_after_an_overflow_fails_the_turn(rig: EngineRig) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.api.reply(400, OVERFLOW)
    _refuse(rig)
    await rig.send(chat_id, "go on")
    chat = await rig.wait_chat_task_left(chat_id, epoch=3)
    assert (chat.state, present(chat.last_error).kind) == ("E0", "summary_failed")


async def test_an_overloaded_provider_is_asked_for_a_summary_a_few_times_only(dsn: str) -> None:
    clock = FakeClock()
    async with engine_rig(dsn, tools=[GatedTool()], clock=clock) as rig, advancing(clock):
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        for _ in range(MAX_SUMMARY_ATTEMPTS):
            rig.api.reply(529, {"error": {"message": "overloaded"}})
        rig.answer("done", input_tokens=85)
        chat_id = await rig.create("go")
        assert (await rig.wait_state(chat_id, "W")).state == "W"
        assert notices(await rig.history(chat_id)) == ["summary_failed"]
        assert len(rig.api.requests) == 2 + MAX_SUMMARY_ATTEMPTS


@pytest.mark.promise("P11")
async def test_an_interrupted_compaction_stores_only_its_usage(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.answer("they gr", gate)
    await rig.compact(chat_id)
    await gate.reached.wait()
    # Viewers see that a summary is being written, but not its text until it is stored.
    await rig.wait_shown(chat_id, "chat_summarized")
    await rig.interrupt(chat_id)
    assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: hello"]
    assert await rig.recorded_usage() == [
        ("turn", True, "estimated"),
        ("compaction", False, "estimated"),
    ]


def refuse_prompt(rig: EngineRig, text: str) -> None:
    rig.api.reply(400, {"error": {"message": text, "code": "context_length_exceeded"}})


NAMED_WINDOW = "This model's maximum context length is 8192 tokens."


async def test_a_window_that_a_refusal_names_is_learned_and_the_turn_goes_on(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        chat_id = await rig.ask("hi", "hello " * 2_000)
        await rig.wait_chat_task_left(chat_id, epoch=1)
        refuse_prompt(rig, NAMED_WINDOW)
        rig.answer("a short summary")
        rig.answer("ok", input_tokens=2_000)
        await rig.send(chat_id, "go on")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        assert rig.model.learned == LearnedLimit(tokens=8192)
        # The next chat is summarized before it overflows.
        rig.call_tools(("c1", "echo", "{}"), input_tokens=6_000)
        rig.answer("in short")
        rig.answer("done", input_tokens=500)
        other = await rig.create("another chat")
        assert (await rig.wait_chat_task_left(other)).state == "W"
        assert is_summary_request(rig, len(rig.api.requests) - 2)
        assert (await rig.summary_result(other))["context_limit_tokens"] == 8192


async def test_a_refusal_without_a_number_makes_the_next_chat_shorter_than_that_prompt(
    dsn: str,
) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        chat_id = await rig.ask("hi", "hello " * 4_000)
        await rig.wait_chat_task_left(chat_id, epoch=1)
        refuse_prompt(rig, "Input is too long for requested model.")
        rig.answer("a short summary")
        rig.answer("ok", input_tokens=2_000)
        await rig.send(chat_id, "go on")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        learned = present(rig.model.learned)
        assert learned.is_bound
        assert 5_000 < learned.tokens < 8_000
        # A prompt as long as the refused one is summarized, and an estimate ends no chat.
        rig.call_tools(("c1", "echo", "{}"), input_tokens=learned.tokens - 10)
        rig.answer("in short")
        rig.call_tools(("c2", "echo", "{}"), input_tokens=learned.tokens - 10)
        rig.answer("done", input_tokens=learned.tokens + 10)
        other = await rig.create("another chat")
        assert (await rig.wait_chat_task_left(other)).state == "W"
        assert [is_summary_request(rig, n) for n in range(-4, 0)] == [False, True, False, False]
        # The last answer shows that the model takes more.
        assert rig.model.learned is None


async def test_an_operators_limit_stays_whatever_refusals_name(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100_000)
        chat_id = await rig.ask("hi", "hello " * 2_000)
        await rig.wait_chat_task_left(chat_id, epoch=1)
        refuse_prompt(rig, NAMED_WINDOW)
        rig.answer("a short summary")
        rig.call_tools(("c1", "echo", "{}"), input_tokens=9_000)
        rig.answer("ok", input_tokens=9_000)
        await rig.send(chat_id, "go on")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        requests = range(len(rig.api.requests))
        assert [is_summary_request(rig, n) for n in requests] == [False, False, True, False, False]


async def test_the_estimate_drives_the_summaries_of_a_provider_that_tells_no_usage(
    dsn: str,
) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(10_000)
        said = msgspec.json.encode({"say": "word " * 6_000}).decode()
        rig.call_tools(("c1", "echo", said))
        rig.call_tools(("c2", "echo", "{}"))
        rig.answer("what happened so far")
        rig.answer("done")
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert [is_summary_request(rig, n) for n in range(4)] == [False, False, True, False]


async def test_an_answer_to_a_longer_prompt_than_the_learned_window_ends_no_chat(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        chat_id = await rig.ask("hi", "hello " * 2_000)
        await rig.wait_chat_task_left(chat_id, epoch=1)
        refuse_prompt(rig, NAMED_WINDOW)
        rig.answer("a short summary")
        rig.call_tools(("c1", "echo", "{}"), input_tokens=9_000)
        rig.answer("ok", input_tokens=9_100)
        await rig.send(chat_id, "go on")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        assert rig.model.learned is None
