"""The loop, as the system we learned from tests its own: what goes out, what is kept, and that
leaving is not stopping."""

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import TextPart
from chatd.domain.prompt.instructions import Instructions
from chatd.engine.worker import WorkerConfig
from chatd.store.chat import messages
from tests.support.clock import FakeClock
from tests.support.house import a_house, a_house_with
from tests.support.providers.anthropic import FakeAnthropic, event
from tests.support.providers.openai_chat import FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool, Tools

HASTY = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=0.1)


def system(text: str) -> Draft:
    return Draft(role="system", content=(TextPart(text=text),))


@pytest.mark.covers("loop-30")
async def test_the_model_is_offered_the_tools_there_are_and_its_cache_is_marked(dsn: str) -> None:
    """The last system message and the last two others, no more."""
    async with (
        FakeAnthropic.running() as api,
        a_house_with(dsn, api, kind="anthropic", tools=[GatedTool("read_file")]) as house,
    ):
        house.with_context(4096)
        api.script_text("working")
        api.script_text("done")
        chat_id = await house.create("hello", before=(system("one"), system("two")))
        await house.rests(chat_id, epoch=1)
        await house.send(chat_id, "continue")
        await house.rests(chat_id, epoch=3)
        request = api.requests[-1].json
        assert [tool["name"] for tool in _list(request["tools"])] == ["read_file"]
        assert [_marked(block) for block in _list(request["system"])] == [False, True]
        turns = _list(request["messages"])
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert [_marked(_list(turn["content"])[-1]) for turn in turns] == [False, True, True]
        answer = (await messages.load_history(house.pool, chat_id))[-1]
        assert answer.usage is not None
        assert answer.usage.context_limit == 4096


async def test_the_model_is_told_about_the_place_its_tools_act_in(dsn: str) -> None:
    told = Instructions(workspace="You work in /home/user.")
    async with a_house(dsn, source=Tools((), told)) as house:
        house.says("fine")
        await house.rests(await house.create("hi"))
        first = _list(house.api.requests[-1].json["messages"])[0]
        assert first["role"] == "system"
        assert "You work in /home/user." in str(first["content"])


async def test_a_search_of_the_provider_that_never_ended_is_not_kept(dsn: str) -> None:
    """It would be refused with the whole conversation the next time."""
    search: dict[str, object] = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {},
    }
    begin = event("content_block_start", index=0, content_block=search)
    async with (
        FakeAnthropic.running() as api,
        a_house_with(dsn, api, kind="anthropic") as house,
    ):
        api.script(
            event(
                "message_start",
                message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 1}},
            ),
            begin + event("content_block_stop", index=0),
            event("content_block_start", index=1, content_block={"type": "text", "text": "So."}),
            event("content_block_stop", index=1),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
            event("message_stop"),
        )
        chat_id = await house.create("look it up")
        await house.rests(chat_id, epoch=1)
        answer = (await messages.load_history(house.pool, chat_id))[-1]
        assert [type(part) for part in answer.content] == [TextPart]


@pytest.mark.promise("P4")
async def test_a_step_that_is_stopped_keeps_its_words_and_answers_its_half_said_call(
    dsn: str,
) -> None:
    gate = Gate()
    begun = {"index": 0, "id": "c1", "type": "function"}
    call = {**begun, "function": {"name": "echo", "arguments": '{"say":"m'}}
    async with a_house(dsn, tools=[GatedTool()]) as house:
        house.says("partial output", chunk(tool_calls=[call]), gate)
        chat_id = await house.create("hello")
        await house.shown(chat_id, "c1")
        await house.interrupt(chat_id)
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == [
            "user: hello",
            "assistant: partial output echo(c1)",
            f"tool: error(c1) {{'error': {INTERRUPTED_CALL_TEXT!r}}}",
        ]


async def test_a_step_with_a_tool_is_followed_by_one_that_has_seen_its_result(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool()]) as house:
        house.calls(("tc-1", "echo", '{"say":"x"}'))
        house.says("all done")
        chat_id = await house.create("please")
        before = await house.chat(chat_id)
        after = await house.rests(chat_id)
        assert len(house.api.requests) == 2
        # The answer with its call, the result, the last answer: three commits.
        assert after.snapshot_version == before.snapshot_version + 3
        sent = _list(house.api.requests[1].json["messages"])
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert [call["id"] for call in _list(sent[1]["tool_calls"])] == ["tc-1"]
        assert sent[2]["tool_call_id"] == "tc-1"


@pytest.mark.covers("F43", "loop-31")
async def test_an_answer_that_cannot_be_written_ends_the_turn_with_a_reason(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.says("hello")
        await house.pool.execute(
            """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'database write failed'; END $$"""
        )
        try:
            await house.pool.execute(
                """CREATE TRIGGER refuse BEFORE INSERT ON chat_messages FOR EACH ROW
                   WHEN (NEW.role = 'assistant') EXECUTE FUNCTION refuse()"""
            )
            chat_id = await house.create("hi")
            chat = await house.rests(chat_id)
        finally:
            await house.pool.execute("DROP FUNCTION refuse CASCADE")
        assert chat.state == "E0"
        assert chat.last_error is not None
        assert chat.last_error.kind == "internal"
        failed = await house.events.wait("runner_failed", chat_id=chat_id)
        assert "database write failed" in str(failed["error"])
        # And it can go on from there.
        house.says("now")
        await house.send(chat_id, "again")
        await house.rests(chat_id, epoch=3)
        assert (await house.transcript(chat_id))[-1] == "assistant: now"


@pytest.mark.covers("loop-33")
@pytest.mark.promise("P5")
async def test_leaving_during_a_tool_is_not_a_stop(dsn: str) -> None:
    """The chat is pending, with its call still open, and another replica runs the tool."""
    gate = Gate()
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api, tools=[GatedTool(gate=gate)], worker=HASTY) as leaves:
            leaves.calls(("tc", "echo", "{}"))
            chat_id = await leaves.create("run the tool")
            await gate.reached.wait()
            await leaves.leaves()
            chat = await leaves.chat(chat_id)
            assert chat.state == "P0"
            assert [call.id for call in chat.pending_calls] == ["tc"]
            assert await leaves.transcript(chat_id) == [
                "user: run the tool",
                "assistant: echo(tc)",
            ]
        tool = GatedTool()
        async with a_house_with(dsn, api, tools=[tool]) as other:
            other.says("done")
            assert (await other.rests(chat_id)).state == "W"
            assert tool.runs == ["tc"]
            assert (await other.transcript(chat_id))[-1] == "assistant: done"


async def test_a_call_that_uses_an_id_again_gets_one_of_its_own(dsn: str) -> None:
    """Some servers count calls from 0 in every answer."""
    tool = GatedTool()
    async with a_house(dsn, tools=[tool]) as house:
        house.calls(("call_0", "echo", "{}"))
        house.calls(("call_0", "echo", "{}"))
        house.says("done")
        chat_id = await house.create("twice")
        assert (await house.rests(chat_id)).state == "W"
        first, second = tool.runs
        assert first != second


async def test_an_answer_with_nothing_in_it_ends_the_turn_without_a_message(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.says()
        chat_id = await house.create("hi")
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: hi"]
        assert await house.booked() == [("turn", True, 0)]


async def test_a_chat_without_a_model_says_so(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.model.config = replace(house.model.config, provider="elsewhere")
        house.api.reply(404, {"error": {"message": "model not found", "code": "model_not_found"}})
        chat_id = await house.create("hi")
        chat = await house.rests(chat_id)
        assert chat.last_error is not None
        assert (chat.last_error.kind, chat.last_error.provider) == ("config", "elsewhere")


@pytest.mark.promise("P11")
async def test_every_call_is_in_the_books_in_the_commit_that_follows_it(
    dsn: str, clock: FakeClock
) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.breaks_off("half")
        house.says("whole", used=7)
        chat_id = await house.create("hi")
        await clock.asleep_on("retry_backoff")
        assert await house.booked() == [("turn", False, 0)]
        clock.advance(1)
        await house.rests(chat_id)
        assert await house.booked() == [("turn", False, 0), ("turn", True, 7)]


async def test_an_answer_that_does_not_end_is_cut_off_and_kept(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn, answer_s=0.3) as house:
        house.says("and so on ", gate)
        chat_id = await house.create("tell me everything")
        chat = await house.rests(chat_id)
        assert chat.last_error is not None
        assert (chat.last_error.kind, chat.last_error.retryable) == ("timeout", True)
        assert await house.transcript(chat_id) == [
            "user: tell me everything",
            "assistant: and so on ",
        ]
        assert await house.booked() == [("turn", False, 0)]


@pytest.mark.promise("P11")
async def test_a_stopped_call_is_in_the_books_too(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("half", gate)
        chat_id = await house.create("hi")
        await gate.reached.wait()
        await house.interrupt(chat_id)
        await house.rests(chat_id)
        assert await house.booked() == [("turn", False, 0)]


async def test_a_call_that_never_reached_the_model_costs_nothing(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.api.reply(401, {"error": {"message": "wrong key"}})
        chat_id = await house.create("hi")
        await house.rests(chat_id)
        assert await house.booked() == []


@pytest.mark.covers("F43")
async def test_what_a_database_cannot_hold_is_replaced_and_the_chat_lives_on(dsn: str) -> None:
    """A NUL, and half of a character, which JSON can spell."""
    async with a_house(dsn, tools=[GatedTool()]) as house:
        spelled = chunk(content="NUL?").replace(b"NUL?", b"a\\u0000b \\ud83d!")
        house.says(spelled)
        chat_id = await house.create("hi")
        assert (await house.rests(chat_id)).state == "W"
        assert (await house.transcript(chat_id))[-1] in (
            "assistant: a\x00b \ufffd!",
            "assistant: a\ufffdb \ufffd!",
        )


def _list(value: object) -> list[dict[str, object]]:
    return msgspec.convert(value, list[dict[str, object]])


def _marked(block: dict[str, object]) -> bool:
    return "cache_control" in block
