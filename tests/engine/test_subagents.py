"""Subagents through the engine: their parent's tools start them, wait for them and stop them."""

from collections.abc import AsyncGenerator

import pytest
from msgspec import Raw

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.commands import InterruptTree
from chatd.domain.chat.commands import Step as ChatStep
from chatd.domain.chat.row import Fence
from chatd.domain.chat.worker_transitions import finish_turn
from chatd.domain.ports import ToolContext
from chatd.domain.subagents import SubagentLimits
from chatd.domain.tool_policy.rules import ToolRule
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.subagents import AGENT_WAIT_POLL_INTERVAL_S
from chatd.engine.worker import WorkerConfig
from tests.support.clock import FakeClock
from tests.support.engine_rig import advancing, pass_time, usage_chunk
from tests.support.factories import draft, text
from tests.support.mcp_servers import mcp_server_id
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply, Step
from tests.support.store import write
from tests.support.subagents import (
    ScriptedChats,
    ToolCall,
    call,
    children_of,
    refuse,
    result_of,
    say,
    spawn,
    spawn_results,
    subagent_rig,
    suspended,
    to_child,
    wait_all,
)
from tests.support.tools import GatedTool


@pytest.fixture
async def chats_api() -> AsyncGenerator[ScriptedChats]:
    async with ScriptedChats.running() as api:
        yield api


REPORT = draft("assistant", text("written elsewhere"))


class AfterGate(GatedTool):
    """Returns when the model of a subagent has reached its gate."""

    def __init__(self, reached: Gate) -> None:
        super().__init__()
        self._reached = reached

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        await self._reached.reached.wait()
        return await super().run(context, args)


async def test_a_parent_gets_the_reports_of_two_subagents_that_ran_side_by_side(
    dsn: str, chats_api: ScriptedChats
) -> None:
    first, second = Gate(), Gate()
    chats_api.on("go", spawn("read a", "read b"), wait_all(), say("both are read"))
    chats_api.on("read a", say(first, "a is good"))
    chats_api.on("read b", say(second, "b is bad"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await first.reached.wait()
        await second.reached.wait()
        await suspended(rig, chat_id)
        second.open()
        first.open()
        await rig.wait_state(chat_id, "W")
        reports = [await result_of(rig, chat_id, f"w{number}") for number in (0, 1)]
        assert [report["report"] for report in reports] == ["a is good", "b is bad"]
        assert [report["status"] for report in reports] == ["waiting", "waiting"]
        assert (await rig.transcript(chat_id))[-1] == "assistant: both are read"
        children = await children_of(rig, chat_id)
        assert [(child.title, child.root_chat_id) for child in children] == [
            ("read a", chat_id),
            ("read b", chat_id),
        ]


async def test_a_subagent_is_told_what_it_is_and_has_no_tools_to_spawn(
    dsn: str, chats_api: ScriptedChats
) -> None:
    chats_api.on("go", spawn("look", type="explore"), wait_all(), say("done"))
    chats_api.on("look", say("seen"))
    async with subagent_rig(dsn, chats_api, others=[GatedTool()]) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        [asked] = chats_api.asked("look")
        body = asked.body.decode()
        assert '"echo"' in body
        assert "spawn_agent" not in body
        assert "You are a subagent" in body
        [child] = await children_of(rig, chat_id)
        assert child.mode == "explore"
        assert (await result_of(rig, chat_id, "w0"))["type"] == "explore"


async def test_a_subagent_is_not_offered_what_the_rules_of_its_root_deny(
    dsn: str, chats_api: ScriptedChats
) -> None:
    chats_api.on("go", spawn("look"), wait_all(), say("done"))
    chats_api.on("look", say("seen"))
    async with subagent_rig(dsn, chats_api, others=[GatedTool(), GatedTool("see")]) as rig:
        chat_id = await rig.create("go", rules=(ToolRule(tool="echo", action="deny"),))
        await rig.wait_state(chat_id, "W")
        for asked in (*chats_api.asked("go"), *chats_api.asked("look")):
            assert '"see"' in asked.body.decode()
            assert '"echo"' not in asked.body.decode()


async def test_a_subagent_has_the_mcp_servers_of_its_parent(
    dsn: str, chats_api: ScriptedChats
) -> None:
    chats_api.on("go", spawn("look"), wait_all(), say("done"))
    chats_api.on("look", say("seen"))
    chosen = (mcp_server_id(1), mcp_server_id(2))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go", mcp_server_ids=chosen)
        await rig.wait_state(chat_id, "W")
        (child,) = await children_of(rig, chat_id)
        assert child.mcp_server_ids == chosen


async def test_a_suspended_parent_has_no_worker_and_is_shown_as_running(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("done"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        chat = await suspended(rig, chat_id)
        assert (chat.worker_id, chat.state, chat.public_status) == (None, "P0", "running")
        assert rig.replica.worker.running == 1
        gate.open()
        await rig.wait_state(chat_id, "W")


@pytest.mark.covers("F40")
async def test_parents_that_wait_leave_their_slots_to_others(
    dsn: str, chats_api: ScriptedChats
) -> None:
    """Three parents share one slot and all wait; a fourth chat is answered meanwhile."""
    gate = Gate()
    prompts = ["one", "two", "three"]
    for prompt in prompts:
        chats_api.on(prompt, spawn("work"), wait_all(), say("done"))
    chats_api.on("work", say(gate, "ok"))
    chats_api.on("hello", say("hi"))
    one_slot = WorkerConfig(
        heartbeat_interval_s=0.2, slots=SlotsConfig(roots=1, children=3), drain_timeout_s=5
    )
    async with subagent_rig(dsn, chats_api, worker=one_slot) as rig:
        parents = [await rig.create(prompt) for prompt in prompts]
        for parent in parents:
            await suspended(rig, parent)
        await rig.wait_state(await rig.create("hello"), "W")
        gate.open()
        for parent in parents:
            await rig.wait_state(parent, "W")
            assert (await result_of(rig, parent, "w0"))["report"] == "ok"


async def test_a_wait_that_is_over_tells_so_and_the_subagent_goes_on(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(timeout_seconds=600), say("later"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        # Ten minutes pass for the database.
        await rig.pool.execute(
            "UPDATE chat_messages SET created_at = created_at - interval '10 min'"
            " WHERE chat_id = $1",
            chat_id,
        )
        await rig.pool.execute("UPDATE chats SET runnable_at = now() WHERE id = $1", chat_id)
        await rig.wait_state(chat_id, "W")
        report = await result_of(rig, chat_id, "w0")
        assert (report["timed_out"], report["status"]) == (True, "running")
        assert "report" not in report
        [child] = await children_of(rig, chat_id)
        gate.open()
        await rig.wait_state(child.id, "W")


async def test_a_subagent_in_error_is_reported_with_its_cause_and_its_last_words(
    dsn: str, chats_api: ScriptedChats
) -> None:
    chats_api.on("go", spawn("work"), wait_all(), say("I see"))
    echo = call(("x", "echo", {}), text="half of it")
    chats_api.on("work", echo, refuse(401, "Incorrect API key"))
    async with subagent_rig(dsn, chats_api, others=[GatedTool()]) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        report = await result_of(rig, chat_id, "w0")
        assert (report["status"], report["report"]) == ("error", "half of it")
        assert (report["last_error_kind"], report["last_error_retryable"]) == ("auth", False)
        assert "Incorrect API key" in str(report["last_error_detail"])


async def test_a_message_continues_a_subagent_that_has_failed(
    dsn: str, chats_api: ScriptedChats
) -> None:
    again = to_child("m1", "message_agent", message="try again")
    waits = to_child("w9", "wait_agent")
    chats_api.on("go", spawn("work"), wait_all(), again, waits, say("good"))
    chats_api.on("work", refuse(401, "Incorrect API key"), say("it works now"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        sent = await result_of(rig, chat_id, "m1")
        assert (sent["interrupted"], sent["status"]) == (False, "running")
        assert (await result_of(rig, chat_id, "w9"))["report"] == "it works now"


async def test_a_message_that_interrupts_stops_what_the_subagent_does(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    stop = to_child("m1", "message_agent", message="do b instead", interrupt=True)

    def later(request: RecordedRequest) -> tuple[Step, ...] | Reply:
        assert gate.reached.is_set()
        return stop(request)

    chats_api.on("go", spawn("do a"), call(("e", "echo", {})), later, wait_all(), say("ok"))
    chats_api.on("do a", say("a is", gate), say("b is done"))
    async with subagent_rig(dsn, chats_api, others=[AfterGate(gate)]) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        assert (await result_of(rig, chat_id, "m1"))["interrupted"] is True
        assert (await result_of(rig, chat_id, "w0"))["report"] == "b is done"
        [child] = await children_of(rig, chat_id)
        assert "assistant: a is" in await rig.transcript(child.id)


async def test_an_interrupted_subagent_keeps_its_words_and_interrupting_it_again_does_nothing(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    stops = to_child("i1", "interrupt_agent"), to_child("i2", "interrupt_agent")
    go = spawn("work"), call(("e", "echo", {})), stops[0], wait_all(), stops[1], say("ok")
    chats_api.on("go", *go)
    chats_api.on("work", say("so far", gate))
    async with subagent_rig(dsn, chats_api, others=[AfterGate(gate)]) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        first, second = [await result_of(rig, chat_id, id_) for id_ in ("i1", "i2")]
        assert (first["interrupted"], second["interrupted"]) == (True, False)
        assert (await result_of(rig, chat_id, "w0"))["report"] == "so far"


@pytest.mark.parametrize("tool", ["wait_agent", "message_agent", "interrupt_agent"])
async def test_a_chat_reaches_its_own_subagents_only(
    dsn: str, chats_api: ScriptedChats, tool: str
) -> None:
    """Not itself, not another root chat, and not the subagent of another."""
    chats_api.on("stranger", spawn("theirs"), say("ok"))
    chats_api.on("theirs", say("secret"))
    async with subagent_rig(dsn, chats_api) as rig:
        stranger = await rig.create("stranger")
        await rig.wait_state(stranger, "W")
        [found] = await children_of(rig, stranger)
        theirs = await rig.wait_state(found.id, "W")
        own = rig.command("go")
        targets = (own.id, stranger, theirs.id)
        calls = [
            (f"c{number}", tool, {"chat_id": str(target), "message": "hello"})
            for number, target in enumerate(targets)
        ]
        chats_api.on("go", call(*calls), say("ok"))
        await rig.create("go", id=own.id)
        await rig.wait_state(own.id, "W")
        for number, target in enumerate(targets):
            refused = await result_of(rig, own.id, f"c{number}")
            assert f"{target} is no subagent of this chat" in str(refused["error"])
        assert await rig.chat(theirs.id) == theirs


async def test_more_subagents_than_allowed_are_refused_and_the_others_run(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("a", "b", "c"), say("ok"), spawn("d"), say("ok"))
    for prompt in "abcd":
        chats_api.on(prompt, say(gate, "done"))
    limits = SubagentLimits(running=2, total=2)
    async with subagent_rig(dsn, chats_api, limits=limits) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        results = [await result_of(rig, chat_id, f"s{number}") for number in range(3)]
        refused = [str(one["error"]) for one in results if "error" in one]
        assert len(refused) == 1
        assert "no more are allowed" in refused[0]
        children = await children_of(rig, chat_id)
        assert len(children) == 2
        gate.open()
        for child in children:
            await rig.wait_state(child.id, "W")


async def test_agents_are_listed_in_pages(dsn: str, chats_api: ScriptedChats) -> None:
    pages: list[ToolCall] = [
        ("l1", "list_agents", {"limit": 2}),
        ("l2", "list_agents", {"limit": 2, "offset": 2}),
        ("l3", "list_agents", {"offset": 7}),
        ("l4", "list_agents", {"limit": 0}),
    ]
    chats_api.on("go", spawn("a", "b", "c"), wait_all(), call(*pages), say("ok"))
    for prompt in "abc":
        chats_api.on(prompt, say("done"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        first, second, third = [await result_of(rig, chat_id, f"l{n}") for n in (1, 2, 3)]
        assert (first["total"], first["returned"], first["has_more"]) == (3, 2, True)
        assert (second["returned"], second["has_more"], second["offset"]) == (1, False, 2)
        assert (third["agents"], third["total"]) == ([], 3)
        assert "limit" in str((await result_of(rig, chat_id, "l4"))["error"])


async def test_other_calls_of_the_step_are_committed_before_the_wait(
    dsn: str, chats_api: ScriptedChats
) -> None:
    """They do not run again after it."""
    gate, echo = Gate(), GatedTool()

    def both(request: RecordedRequest) -> tuple[Step, ...] | Reply:
        child = spawn_results(request)[0]["chat_id"]
        return call(("e", "echo", {}), ("w0", "wait_agent", {"chat_id": child}))(request)

    chats_api.on("go", spawn("work"), both, say("done"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api, others=[echo]) as rig:
        chat_id = await rig.create("go")
        chat = await suspended(rig, chat_id)
        assert [pending.id for pending in chat.pending_calls] == ["w0"]
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert echo.runs == ["e"]


async def test_an_interrupt_ends_the_wait_at_once_and_the_subagent_goes_on(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("done"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        assert (await rig.interrupt(chat_id)).state == "W"
        assert "interrupted" in str((await result_of(rig, chat_id, "w0"))["error"])
        [child] = await children_of(rig, chat_id)
        assert child.status == "running"
        gate.open()
        await rig.wait_state(child.id, "W")
        assert (await rig.chat(chat_id)).state == "W"


async def test_an_interrupt_of_the_tree_stops_the_subagents_too(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("a", "b"), wait_all(), say("done"))
    for prompt in "ab":
        chats_api.on(prompt, say("so far", gate))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        await rig.run(chat_id, InterruptTree())
        assert (await rig.chat(chat_id)).state == "W"
        for child in await children_of(rig, chat_id):
            await rig.wait_state(child.id, "W")


async def test_a_queued_message_follows_the_turn_that_waits(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("done"), say("and this"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        sent = await rig.send(chat_id, "next")
        assert (sent.state, sent.is_suspended) == ("P1", True)
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-3:] == [
            "assistant: done",
            "user: next",
            "assistant: and this",
        ]


async def test_a_message_that_interrupts_ends_the_wait_at_once(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("at once"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        await rig.send(chat_id, "leave that", "interrupt")
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-1] == "assistant: at once"
        [child] = await children_of(rig, chat_id)
        assert child.status == "running"
        gate.open()
        await rig.wait_state(child.id, "W")


@pytest.mark.covers("F38")
async def test_archiving_a_root_ends_its_wait_and_its_subagents(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("done"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        assert (await rig.archive(chat_id)).state == "XW0"
        [child] = await children_of(rig, chat_id)
        assert child.state == "XW0"
        await rig.wait_chat_task_left(child.id)
        await rig.unarchive(chat_id)
        assert (await rig.chat(child.id)).state == "W"


@pytest.mark.promise("P11")
async def test_what_a_subagent_spends_counts_against_the_budget_of_its_parent(
    dsn: str, chats_api: ScriptedChats
) -> None:
    """One subagent uses up the budget of the tree: the parent may not go on, nor may another."""

    gate = Gate()

    def dear(request: RecordedRequest) -> tuple[Step, ...]:
        del request
        return (gate, chunk(content="dear"), chunk(finish="stop"), usage_chunk(60_000), DONE)

    chats_api.on("go", spawn("work"), wait_all(), say("never"))
    chats_api.on("work", dear)
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go", max_cost_micros=50_000)
        await suspended(rig, chat_id)
        gate.open()
        parent = await rig.wait_state(chat_id, "E0")
        assert "budget" in str(parent.last_error)
        assert (await result_of(rig, chat_id, "w0"))["report"] == "dear"
        [child] = await children_of(rig, chat_id)
        assert child.max_cost_micros == 50_000
        await rig.send(child.id, "more")
        assert "budget" in str((await rig.wait_state(child.id, "E0")).last_error)
        assert (len(chats_api.asked("go")), len(chats_api.asked("work"))) == (2, 1)


async def test_a_lost_wake_is_found_by_the_poll(dsn: str, chats_api: ScriptedChats) -> None:
    """The replica that ended the subagent died before it woke the parent."""
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("done"))
    chats_api.on("work", say(gate, "ok"))
    clock = FakeClock()
    async with subagent_rig(dsn, chats_api, clock=clock) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        [child] = await children_of(rig, chat_id)
        # As a replica writes it that dies at once.
        done = finish_turn(
            await rig.chat(child.id),
            ChatStep(fence=Fence.of(await rig.chat(child.id)), messages=(REPORT,)),
        )
        await write(rig.pool, done, 99)
        assert (await rig.chat(chat_id)).is_suspended
        await clock.wait_for_sleeper("agent_wait_poll")
        await pass_time(clock, AGENT_WAIT_POLL_INTERVAL_S)
        async with advancing(clock):
            await rig.wait_state(chat_id, "W")
        assert (await result_of(rig, chat_id, "w0"))["report"] == "written elsewhere"
        gate.open()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"type": "clever"}, '"explore" or "general"'),
        ({"prompt": "  "}, "prompt is required"),
        ({"prompt": "x" * 100_001}, "at most 100000"),
        ({"model": "nope"}, "no model 'nope'"),
        ({"reasoning_effort": "huge"}, "none, minimal, low"),
    ],
    ids=["type", "blank prompt", "long prompt", "model", "effort"],
)
async def test_a_wrong_argument_starts_nothing_and_says_what_is_allowed(
    dsn: str, chats_api: ScriptedChats, fields: dict[str, object], says: str
) -> None:
    args = {"type": "general", "prompt": "work", **fields}
    chats_api.on("go", call(("s0", "spawn_agent", args)), say("ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "W")
        assert says in str((await result_of(rig, chat_id, "s0"))["error"])
        assert await children_of(rig, chat_id) == []
