"""The end of an answer: stored and published, and what follows from it."""

import msgspec
import pytest

from chatd.domain.chat.messages import Message, public_message
from chatd.domain.decisions import CUT_TOO_OFTEN_ERROR, MAX_PAUSES, PAUSED_TOO_OFTEN_ERROR
from chatd.domain.ids import ChatId
from chatd.domain.model.retry import CallLimits
from chatd.store.chat import messages
from tests.support.engine_rig import EngineRig, engine_rig, engine_rig_with
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.providers.anthropic import FakeAnthropic, event
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Gate, Silence
from tests.support.tools import GatedTool


async def answers(rig: EngineRig, chat_id: ChatId) -> list[Message]:
    rows = await messages.load_history(rig.pool, HARNESS, chat_id)
    return [row for row in rows if row.role == "assistant"]


@pytest.mark.parametrize(
    ("word", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content-filter")],
)
async def test_the_finish_reason_of_an_answer_is_stored_and_public(
    rig: EngineRig, word: str, reason: str
) -> None:
    rig.api.script(chunk(content="some text"), chunk(finish=word), DONE)
    chat_id = await rig.create("go")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.state == "W"
    [answer] = await answers(rig, chat_id)
    assert answer.finish_reason == reason
    assert present(public_message(chat_id, answer)).finish_reason == reason


async def test_a_cut_answer_is_continued_by_a_message(rig: EngineRig) -> None:
    rig.api.script(chunk(content="one two"), chunk(finish="length"), DONE)
    chat_id = await rig.create("count")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.answer("three")
    await rig.send(chat_id, "Continue where you stopped.")
    await rig.wait_chat_task_left(chat_id, epoch=3)
    assert [row.finish_reason for row in await answers(rig, chat_id)] == ["length", "stop"]
    assert b"one two" in rig.api.requests[-1].body


@pytest.mark.parametrize("thought", [chunk(reasoning_content="hm"), chunk()])
async def test_reasoning_that_uses_all_output_is_an_error_that_says_so(
    rig: EngineRig, thought: bytes
) -> None:
    rig.api.script(thought, chunk(finish="length"), DONE)
    chat_id = await rig.create("think")
    chat = await rig.wait_chat_task_left(chat_id)
    error = present(chat.last_error)
    assert (chat.state, error.kind, error.retryable) == ("E0", "output_limit", False)
    assert "max_output_tokens" in error.message
    assert "effort" in error.message
    assert await answers(rig, chat_id) == []


async def test_answers_that_are_always_cut_in_a_call_end_the_turn(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        for number in range(3):
            call = {"index": 0, "id": f"c{number}", "function": {"name": "echo"}}
            rig.api.script(chunk(tool_calls=[call]), chunk(finish="length"), DONE)
        chat_id = await rig.create("write a book into a file")
        chat = await rig.wait_chat_task_left(chat_id)
        assert (chat.last_error, tool.runs) == (CUT_TOO_OFTEN_ERROR, [])
        assert len(rig.api.requests) == 3


START = event("message_start", message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 1}})
SEARCH: dict[str, object] = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {},
}
FOUND: dict[str, object] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://a.b",
            "title": "T",
            "encrypted_content": "e",
        }
    ],
}


def answer(stop: str, *blocks: dict[str, object]) -> bytes:
    sent = [
        event("content_block_start", index=index, content_block=block)
        + event("content_block_stop", index=index)
        for index, block in enumerate(blocks)
    ]
    end = event("message_delta", delta={"stop_reason": stop}, usage={"output_tokens": 2})
    return START + b"".join(sent) + end + event("message_stop")


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


async def test_a_paused_answer_goes_back_and_the_provider_continues_it(dsn: str) -> None:
    """Its last search runs only after the request that sends it back."""
    async with FakeAnthropic.running() as api, engine_rig_with(dsn, api, kind="anthropic") as rig:
        api.script(answer("pause_turn", text("Searching."), SEARCH))
        api.script(answer("end_turn", FOUND, text("Found it.")))
        api.script_text("You are welcome.")
        chat_id = await rig.create("look it up")
        assert (await rig.wait_chat_task_left(chat_id, epoch=1)).state == "W"
        assert [row.finish_reason for row in await answers(rig, chat_id)] == ["pause", "stop"]
        resumed = _turns(api.requests[1].json)
        assert [turn["role"] for turn in resumed] == ["user", "assistant"]
        assert [block["type"] for block in _blocks(resumed[-1])] == ["text", "server_tool_use"]
        await rig.send(chat_id, "thanks")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        turns = _turns(api.requests[2].json)
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert [block["type"] for block in _blocks(turns[1])] == [
            "text",
            "server_tool_use",
            "web_search_tool_result",
            "text",
        ]


async def test_a_provider_that_only_pauses_ends_the_turn(dsn: str) -> None:
    async with FakeAnthropic.running() as api, engine_rig_with(dsn, api, kind="anthropic") as rig:
        for number in range(MAX_PAUSES):
            api.script(answer("pause_turn", text("Hm."), {**SEARCH, "id": f"srvtoolu_{number}"}))
        chat_id = await rig.create("look it up")
        chat = await rig.wait_chat_task_left(chat_id)
        assert chat.last_error == PAUSED_TOO_OFTEN_ERROR
        assert len(api.requests) == MAX_PAUSES


async def test_a_refusal_is_an_error_of_its_own_kind(dsn: str) -> None:
    async with FakeAnthropic.running() as api, engine_rig_with(dsn, api, kind="anthropic") as rig:
        api.script(answer("refusal"))
        chat = await rig.wait_chat_task_left(await rig.create("do harm"))
        assert present(chat.last_error).kind == "refusal"


def _turns(request: dict[str, object]) -> list[dict[str, object]]:
    return msgspec.convert(request["messages"], list[dict[str, object]])


def _blocks(turn: dict[str, object]) -> list[dict[str, object]]:
    return msgspec.convert(turn["content"], list[dict[str, object]])


async def test_a_provider_that_only_sends_pings_is_given_up_and_not_asked_again(
    rig: EngineRig, gate: Gate
) -> None:
    rig.model.limits = CallLimits(content_s=0)
    rig.api.script(chunk(content="so far"), gate, b": ping\n\n", Silence())
    chat_id = await rig.create("go")
    await rig.wait_shown(chat_id, "so far")
    gate.open()
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.last_error is not None
    assert (chat.state, chat.last_error.kind) == ("E0", "stream_content_timeout")
    assert await rig.transcript(chat_id) == ["user: go", "assistant: so far"]
    assert (await rig.history(chat_id))[-1].finish_reason == "error"
    assert len(rig.api.requests) == 1


async def test_an_answer_that_breaks_for_good_is_kept_and_marked(rig: EngineRig) -> None:
    """Not as one that a person stopped."""
    error = b'{"error": {"message": "Bad key", "type": "authentication_error", "code": 401}}'
    rig.api.script(chunk(content="so far"), b"data: " + error + b"\n\n")
    chat_id = await rig.create("go")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.last_error is not None
    assert (chat.state, chat.last_error.kind) == ("E0", "auth")
    assert await rig.transcript(chat_id) == ["user: go", "assistant: so far"]
    assert (await rig.history(chat_id))[-1].finish_reason == "error"


async def test_a_provider_that_floods_one_event_without_end_is_not_asked_again(
    rig: EngineRig,
) -> None:
    block = b"x" * (1 << 20)
    rig.api.script(b"data: ", *[block] * 33, Silence())
    chat_id = await rig.create("go")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.last_error is not None
    assert (chat.state, chat.last_error.kind) == ("E0", "answer_too_large")
    assert len(rig.api.requests) == 1
