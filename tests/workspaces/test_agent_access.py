"""A request of a chat to its agent: when the binding is checked, what is sent again, what an error
says."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.workspace.agent_api import AgentUnreachable, WorkspaceUnavailable
from chatd.domain.workspace.entities import AgentRow
from chatd.workspaces.agents.access import (
    REBIND_CHECK_AFTER_S,
    RESEND_TIMEOUT_S,
    OutcomeUnknown,
    timeout_error,
)
from chatd.workspaces.agents.resolver import AgentObservation
from chatd.workspaces.agents.session import AGENT_REPLY_TIMEOUT_S, ConnectFailed
from tests.support.clock import FakeClock
from tests.workspaces.fake_agents import FIRST, HOME, NOW, SECOND, AccessStage, agent


@pytest.fixture
def stage(clock: FakeClock) -> AccessStage:
    """The chat is bound to FIRST, which is the agent of the latest build."""
    stage = AccessStage(clock)
    stage.bindings.bind(FIRST)
    return stage


@pytest.mark.covers("binding-1")
async def test_a_fast_reply_needs_no_look_at_the_latest_build(stage: AccessStage) -> None:
    assert await stage.start() == str(FIRST.id)
    assert stage.bindings.calls == ["binding", "agent"]


async def test_the_calls_of_a_turn_share_one_handshake(stage: AccessStage) -> None:
    for _ in range(3):
        assert await stage.read() == FIRST
    assert stage.agents.handshakes == [FIRST]
    assert stage.bindings.calls == ["binding", "agent"]


async def test_concurrent_calls_share_one_handshake(stage: AccessStage) -> None:
    stage.agents.handshake_open = held = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stage.read())
        await stage.agents.until(handshakes=1)
        held.set_result(None)
    assert stage.agents.handshakes == [FIRST]
    assert stage.agents.asked == [FIRST] * 3


@pytest.mark.covers("binding-1")
async def test_a_slow_reply_of_the_right_agent_is_awaited(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        assert await stage.clock.wait_for_sleeper("rebind_check") == REBIND_CHECK_AFTER_S
        await stage.wait_until_slow()
        stage.agents.reply()
    assert started.result() == str(FIRST.id)
    assert stage.agents.asked == [FIRST]
    assert stage.bindings.calls.count("latest") == 1


async def test_a_request_that_asks_the_agent_to_wait_is_slow_only_after_that(
    stage: AccessStage,
) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        client = await stage.client()
        waiting = group.create_task(client.context(wait_s=40))
        assert await stage.clock.wait_for_sleeper("rebind_check") == 40 + REBIND_CHECK_AFTER_S
        assert await stage.clock.wait_for_sleeper("agent_timeout") == 40 + AGENT_REPLY_TIMEOUT_S
        waiting.cancel()


@pytest.mark.covers("binding-1")
@pytest.mark.promise("P14")
async def test_a_slow_reply_fails_at_once_if_the_workspace_has_no_agent(
    stage: AccessStage,
) -> None:
    stage.bindings.latest.clear()
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(WorkspaceUnavailable, stage.read))
        await stage.wait_until_slow()
    assert "start_workspace" in refusal.result()
    assert stage.agents.cancelled == [FIRST]


@pytest.mark.covers("binding-1")
async def test_a_slow_reply_of_a_replaced_agent_is_asked_of_the_latest(stage: AccessStage) -> None:
    stage.bindings.latest[HOME] = SECOND
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.wait_until_slow()
        await stage.agents.until(requests=2)
        stage.agents.reply(1)
    assert started.result() == str(SECOND.id)
    assert stage.agents.cancelled == [FIRST]
    assert stage.agents.keys == ["the-key", "the-key"]
    assert stage.bindings.row.agent_id == SECOND.id


async def test_a_reply_that_comes_during_the_check_is_used(stage: AccessStage) -> None:
    stage.bindings.latest[HOME] = SECOND
    stage.bindings.latest_open.clear()
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.wait_until_slow()
        stage.agents.reply()
    assert started.result() == str(FIRST.id)
    assert stage.agents.asked == [FIRST]


@pytest.mark.covers("binding-3")
async def test_a_slow_reply_that_cannot_be_checked_is_awaited(stage: AccessStage) -> None:
    stage.bindings.broken.add("latest")
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.wait_until_slow()
        stage.agents.reply()
    assert started.result() == str(FIRST.id)


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_a_lost_reply_is_asked_for_again_under_the_same_key(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.agents.until(requests=1)
        stage.agents.lose()
        await stage.agents.until(requests=2)
        stage.agents.reply(1)
    assert started.result() == str(FIRST.id)
    assert stage.agents.keys == ["the-key", "the-key"]
    assert stage.agents.handshakes == [FIRST, FIRST]


async def test_a_slow_reply_that_is_lost_is_asked_for_again(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.wait_until_slow()
        stage.agents.lose()
        await stage.agents.until(requests=2)
        stage.agents.reply(1)
    assert started.result() == str(FIRST.id)
    assert stage.agents.keys == ["the-key", "the-key"]


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_a_reply_that_is_lost_twice_leaves_the_outcome_unknown(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(OutcomeUnknown, stage.start))
        for number in range(2):
            await stage.agents.until(requests=number + 1)
            stage.agents.lose(number)
    assert "cut off" in refusal.result()
    assert "outcome of this call is unknown" in refusal.result()
    assert len(stage.agents.requests) == 2


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_an_effect_without_a_key_is_sent_once(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(OutcomeUnknown, stage.kill))
        await stage.agents.until(requests=1)
        stage.agents.lose()
    assert "outcome of this call is unknown" in refusal.result()
    assert len(stage.agents.requests) == 1


async def test_an_effect_without_a_key_is_not_sent_to_the_next_agent(stage: AccessStage) -> None:
    stage.bindings.latest[HOME] = SECOND
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.refused(OutcomeUnknown, stage.kill))
        await stage.wait_until_slow()
    assert stage.agents.asked == [FIRST]


async def test_a_request_that_did_not_arrive_is_sent_again_without_a_key(
    stage: AccessStage,
) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.kill())
        await stage.agents.until(requests=1)
        stage.agents.lose(0, ConnectFailed("refused"))
        await stage.agents.until(requests=2)
        stage.agents.reply(1)


async def test_a_read_has_no_outcome_that_could_be_unknown(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(AgentUnreachable, stage.read))
        for number in range(2):
            await stage.agents.until(requests=number + 1)
            stage.agents.lose(number)
    assert refusal.result() == "cut off"


@pytest.mark.promise("P7")
async def test_a_workspace_that_stops_during_an_effect_leaves_its_outcome_unknown(
    stage: AccessStage,
) -> None:
    stage.bindings.latest.clear()
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(OutcomeUnknown, stage.start))
        await stage.agents.until(requests=1)
        stage.agents.lose()
    assert "start_workspace" in refusal.result()


@pytest.mark.covers("binding-3")
async def test_a_fast_failure_goes_to_the_latest_agent(stage: AccessStage) -> None:
    stage.bindings.latest[HOME] = SECOND
    stage.agents.unreachable.add(FIRST.id)
    assert await stage.start() == str(SECOND.id)
    assert stage.agents.handshakes == [FIRST, SECOND]
    assert stage.agents.asked == [SECOND]


@pytest.mark.covers("binding-3")
async def test_after_a_fast_failure_the_right_agent_is_tried_twice_and_not_a_third_time(
    stage: AccessStage,
) -> None:
    stage.agents.unreachable.add(FIRST.id)
    assert await stage.refused(AgentUnreachable, stage.start) == "refused"
    assert stage.agents.handshakes == [FIRST, FIRST]
    assert stage.bindings.calls.count("latest") == 1


@pytest.mark.covers("binding-3")
async def test_a_fast_failure_without_an_agent_says_how_to_start_one(stage: AccessStage) -> None:
    stage.bindings.latest.clear()
    stage.agents.unreachable.add(FIRST.id)
    assert "start_workspace" in await stage.refused(WorkspaceUnavailable, stage.start)
    assert stage.agents.handshakes == [FIRST]


@pytest.mark.covers("binding-3")
@pytest.mark.parametrize("broken", ["latest", "remember"])
async def test_a_fast_failure_that_cannot_be_checked_names_both_failures(
    stage: AccessStage, broken: str
) -> None:
    stage.bindings.latest[HOME] = SECOND
    stage.bindings.broken.add(broken)
    stage.agents.unreachable.add(FIRST.id)
    with pytest.raises(AgentUnreachable) as error:
        await stage.start()
    # The database's own message may name what a chat must not know.
    assert error.value.message == "refused The workspace's latest build could not be looked up."
    assert isinstance(error.value.__cause__, Unavailable)
    assert stage.agents.asked == []


async def test_after_a_failure_the_next_call_makes_a_new_handshake(stage: AccessStage) -> None:
    stage.agents.unreachable.add(FIRST.id)
    await stage.refused(AgentUnreachable, stage.read)
    stage.agents.unreachable.clear()
    assert await stage.read() == FIRST
    assert stage.agents.handshakes == [FIRST] * 3


async def wait_for_silence(stage: AccessStage, kind: type[ChatdError]) -> str:
    stage.agents.silent.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(kind, stage.start))
        assert await stage.clock.wait_for_sleeper("agent_timeout") == AGENT_REPLY_TIMEOUT_S
        await stage.wait_until_slow()
        await stage.clock.advance_past("agent_timeout")
    assert stage.agents.cancelled == [FIRST]
    return refusal.result()


@pytest.mark.promise("P14")
async def test_an_agent_that_does_not_answer_in_time_may_answer_next_time(
    stage: AccessStage,
) -> None:
    assert "next time" in await wait_for_silence(stage, AgentUnreachable)
    stage.agents.silent.clear()
    assert await stage.read() == FIRST


@pytest.mark.promise("P14")
async def test_an_agent_that_is_long_gone_and_does_not_answer_asks_for_a_restart(
    stage: AccessStage,
) -> None:
    stage.bindings.latest[HOME] = replace(
        FIRST,
        last_connected_at=NOW - timedelta(seconds=100),
        disconnected_at=NOW - timedelta(seconds=90),
    )
    assert "stop_workspace" in await wait_for_silence(stage, WorkspaceUnavailable)


@pytest.mark.covers("binding-3")
async def test_the_timeout_does_not_wait_for_the_database(stage: AccessStage) -> None:
    stage.agents.is_held = True
    stage.bindings.latest_open.clear()
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.wait_until_slow()
        await stage.clock.advance_past("agent_timeout")
        stage.bindings.latest_open.set()
        await stage.agents.until(requests=2)
        stage.agents.reply(1)
    assert started.result() == str(FIRST.id)


@pytest.mark.promise("P14")
async def test_the_second_attempt_ends_in_time_too(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(OutcomeUnknown, stage.start))
        await stage.agents.until(requests=1)
        stage.agents.lose()
        await stage.agents.until(requests=2)
        assert await stage.clock.advance_past("agent_timeout") == RESEND_TIMEOUT_S
    assert "next time" in refusal.result()


async def test_a_reply_is_preferred_to_a_timeout_at_the_same_moment(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        started = group.create_task(stage.start())
        await stage.agents.until(requests=1)
        await stage.clock.wait_for_sleeper("agent_timeout")
        stage.agents.reply()
        stage.clock.advance(AGENT_REPLY_TIMEOUT_S)
    assert started.result() == str(FIRST.id)


async def test_a_cancelled_call_leaves_no_request_behind(stage: AccessStage) -> None:
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stage.start())
        await stage.agents.until(requests=1)
        task.cancel()
    assert task.cancelled()
    assert stage.agents.cancelled == [FIRST]
    assert stage.bindings.calls == ["binding", "agent"]
    assert stage.access.in_use() == set()
    assert stage.clock.sleeping("rebind_check") == stage.clock.sleeping("agent_timeout") == []


async def test_a_call_can_be_cancelled_during_its_handshake(stage: AccessStage) -> None:
    stage.agents.silent.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stage.start())
        await stage.agents.until(handshakes=1)
        task.cancel()
    assert stage.agents.cancelled == [FIRST]
    stage.agents.silent.clear()
    assert await stage.read() == FIRST


ALIVE = agent(1)


@pytest.mark.parametrize(
    ("row", "kind", "word"),
    [
        (ALIVE, AgentUnreachable, "next time"),
        (
            replace(ALIVE, disconnected_at=NOW - timedelta(seconds=89)),
            AgentUnreachable,
            "next time",
        ),
        (
            replace(ALIVE, last_connected_at=NOW - timedelta(seconds=89)),
            AgentUnreachable,
            "next time",
        ),
        (
            replace(ALIVE, last_connected_at=NOW - timedelta(seconds=90)),
            WorkspaceUnavailable,
            "stop_workspace",
        ),
        (
            replace(
                ALIVE,
                last_connected_at=NOW - timedelta(hours=1),
                disconnected_at=NOW - timedelta(seconds=89),
            ),
            AgentUnreachable,
            "next time",
        ),
        (replace(ALIVE, last_connected_at=None), WorkspaceUnavailable, "never connected"),
        (replace(ALIVE, last_connected_at=None, created_at=NOW), AgentUnreachable, "next time"),
        (
            replace(ALIVE, last_connected_at=None, connection_timeout_s=0),
            AgentUnreachable,
            "next time",
        ),
    ],
)
def test_a_restart_is_advised_only_after_a_long_silence(
    row: AgentRow, kind: type[ChatdError], word: str
) -> None:
    error = timeout_error(AgentObservation(agent=row, now=NOW))
    assert type(error) is kind
    assert word in error.message
