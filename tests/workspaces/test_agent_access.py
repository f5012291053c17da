"""A request of a chat to its agent: when the binding is checked, what is sent again, what an error
says."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    WorkspaceBinding,
    WorkspaceUnavailable,
)
from chatd.domain.workspace.entities import AgentRow
from chatd.workspaces.agents.agent_access import (
    OWNER_UNREAD_TEXT,
    REBIND_CHECK_AFTER_S,
    RESEND_TIMEOUT_S,
    timeout_error,
)
from chatd.workspaces.agents.agent_client import OutcomeUnknown, OwnerUnproven
from chatd.workspaces.agents.agent_resolver import AgentObservation
from chatd.workspaces.agents.agent_session import AGENT_REPLY_TIMEOUT_S, ConnectFailed
from tests.support.clock import FakeClock
from tests.workspaces.fake_agents import (
    AWAY,
    CHAT,
    FAR,
    FIRST,
    HOME,
    NOW,
    SECOND,
    AccessRig,
    agent,
)


@pytest.fixture
def rig(clock: FakeClock) -> AccessRig:
    """The chat is bound to FIRST, which is the agent of the latest build."""
    rig = AccessRig(clock)
    rig.bindings.bind(FIRST)
    return rig


@pytest.mark.covers("binding-1")
async def test_a_fast_reply_needs_no_look_at_the_latest_build(rig: AccessRig) -> None:
    assert await rig.start() == str(FIRST.id)
    assert rig.bindings.calls == ["binding", "agent"]


async def test_the_calls_of_a_turn_share_one_handshake(rig: AccessRig) -> None:
    for _ in range(3):
        assert await rig.read() == FIRST
    assert rig.agents.handshakes == [FIRST]
    assert rig.bindings.calls == ["binding", "agent"]


async def test_concurrent_calls_share_one_handshake(rig: AccessRig) -> None:
    rig.agents.handshake_open = held = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(rig.read())
        await rig.agents.until(handshakes=1)
        held.set_result(None)
    assert rig.agents.handshakes == [FIRST]
    assert rig.agents.asked == [FIRST] * 3


@pytest.mark.covers("binding-1")
async def test_a_slow_reply_of_the_right_agent_is_awaited(rig: AccessRig) -> None:
    async with rig.held(rig.start()) as started:
        assert await rig.clock.wait_for_sleeper("rebind_check") == REBIND_CHECK_AFTER_S
        await rig.wait_until_slow()
        rig.agents.reply()
    assert started.result() == str(FIRST.id)
    assert rig.agents.asked == [FIRST]
    assert rig.bindings.calls.count("latest") == 1


async def test_a_request_that_asks_the_agent_to_wait_is_slow_only_after_that(
    rig: AccessRig,
) -> None:
    rig.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        client = await rig.client()
        waiting = group.create_task(client.context(wait_s=40))
        assert await rig.clock.wait_for_sleeper("rebind_check") == 40 + REBIND_CHECK_AFTER_S
        assert await rig.clock.wait_for_sleeper("agent_timeout") == 40 + AGENT_REPLY_TIMEOUT_S
        waiting.cancel()


@pytest.mark.covers("binding-1")
@pytest.mark.promise("P14")
async def test_a_slow_reply_fails_at_once_if_the_workspace_has_no_agent(
    rig: AccessRig,
) -> None:
    rig.bindings.latest.clear()
    async with rig.held(rig.refused(WorkspaceUnavailable, rig.read)) as refusal:
        await rig.wait_until_slow()
    assert "start_workspace" in refusal.result()
    assert rig.agents.cancelled == [FIRST]


@pytest.mark.covers("binding-1")
async def test_a_slow_reply_of_a_replaced_agent_is_asked_of_the_latest(rig: AccessRig) -> None:
    rig.bindings.latest[HOME] = SECOND
    async with rig.held(rig.start()) as started:
        await rig.wait_until_slow()
        await rig.reply(1)
    assert started.result() == str(SECOND.id)
    assert rig.agents.cancelled == [FIRST]
    assert rig.agents.keys == ["the-key", "the-key"]
    assert rig.bindings.row.agent_id == SECOND.id


async def test_a_reply_that_comes_during_the_check_is_used(rig: AccessRig) -> None:
    rig.bindings.latest[HOME] = SECOND
    rig.bindings.latest_open.clear()
    async with rig.held(rig.start()) as started:
        await rig.wait_until_slow()
        rig.agents.reply()
    assert started.result() == str(FIRST.id)
    assert rig.agents.asked == [FIRST]


@pytest.mark.covers("binding-3")
async def test_a_slow_reply_that_cannot_be_checked_is_awaited(rig: AccessRig) -> None:
    rig.bindings.broken.add("latest")
    async with rig.held(rig.start()) as started:
        await rig.wait_until_slow()
        rig.agents.reply()
    assert started.result() == str(FIRST.id)


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_a_lost_reply_is_asked_for_again_under_the_same_key(rig: AccessRig) -> None:
    async with rig.held(rig.start()) as started:
        await rig.lose(0)
        await rig.reply(1)
    assert started.result() == str(FIRST.id)
    assert rig.agents.keys == ["the-key", "the-key"]
    assert rig.agents.handshakes == [FIRST, FIRST]


async def test_a_slow_reply_that_is_lost_is_asked_for_again(rig: AccessRig) -> None:
    async with rig.held(rig.start()) as started:
        await rig.wait_until_slow()
        rig.agents.lose()
        await rig.reply(1)
    assert started.result() == str(FIRST.id)
    assert rig.agents.keys == ["the-key", "the-key"]


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_a_reply_that_is_lost_twice_leaves_the_outcome_unknown(rig: AccessRig) -> None:
    async with rig.held(rig.refused(OutcomeUnknown, rig.start)) as refusal:
        await rig.lose(0)
        await rig.lose(1)
    assert "cut off" in refusal.result()
    assert "outcome of this call is unknown" in refusal.result()
    assert len(rig.agents.requests) == 2


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_an_effect_without_a_key_is_sent_once(rig: AccessRig) -> None:
    async with rig.held(rig.refused(OutcomeUnknown, rig.kill)) as refusal:
        await rig.lose(0)
    assert "outcome of this call is unknown" in refusal.result()
    assert len(rig.agents.requests) == 1


@pytest.mark.promise("P7")
async def test_an_agent_that_asks_for_the_owner_after_a_lost_reply_leaves_the_outcome_unknown(
    rig: AccessRig,
) -> None:
    """The agent acted, was restarted and knows no owner; the database does not answer."""
    async with rig.held(rig.refused(OutcomeUnknown, rig.start)) as refusal:
        await rig.lose(0)
        await rig.lose(1, OwnerUnproven(OWNER_UNREAD_TEXT, "mark"))
    assert "outcome of this call is unknown" in refusal.result()
    assert "Nothing was done" not in refusal.result()


async def test_an_owner_that_is_not_proven_at_once_has_done_nothing(rig: AccessRig) -> None:
    async with rig.held(rig.refused(OwnerUnproven, rig.start)) as refusal:
        await rig.lose(0, OwnerUnproven(OWNER_UNREAD_TEXT, "mark"))
    assert "Nothing was done" in refusal.result()


async def test_an_effect_without_a_key_is_not_sent_to_the_next_agent(rig: AccessRig) -> None:
    rig.bindings.latest[HOME] = SECOND
    async with rig.held(rig.refused(OutcomeUnknown, rig.kill)):
        await rig.wait_until_slow()
    assert rig.agents.asked == [FIRST]


async def test_a_request_that_did_not_arrive_is_sent_again_without_a_key(
    rig: AccessRig,
) -> None:
    async with rig.held(rig.kill()):
        await rig.lose(0, ConnectFailed("refused"))
        await rig.reply(1)


async def test_a_read_has_no_outcome_that_could_be_unknown(rig: AccessRig) -> None:
    async with rig.held(rig.refused(AgentUnreachable, rig.read)) as refusal:
        await rig.lose(0)
        await rig.lose(1)
    assert refusal.result() == "cut off"


@pytest.mark.promise("P7")
async def test_a_workspace_that_stops_during_an_effect_leaves_its_outcome_unknown(
    rig: AccessRig,
) -> None:
    rig.bindings.latest.clear()
    async with rig.held(rig.refused(OutcomeUnknown, rig.start)) as refusal:
        await rig.lose(0)
    assert "start_workspace" in refusal.result()


@pytest.mark.promise("P7")
async def test_an_effect_that_may_have_arrived_is_not_sent_to_another_workspace(
    rig: AccessRig,
) -> None:
    async with rig.held(rig.refused(OutcomeUnknown, rig.start)) as refusal:
        await rig.agents.until(requests=1)
        rig.bindings.bind(FAR)
        rig.access.on_bound(CHAT, AWAY)
        rig.agents.lose()
    assert "outcome of this call is unknown" in refusal.result()
    assert rig.agents.asked == [FIRST]


async def test_a_running_call_cannot_use_a_workspace_that_was_detached(rig: AccessRig) -> None:
    client = await rig.client()
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=None)
    rig.access.forget(CHAT)
    await rig.refused(WorkspaceUnavailable, client.processes)
    assert rig.agents.asked == []


async def test_only_a_reply_counts_as_use_of_the_workspace(rig: AccessRig) -> None:
    await rig.client()
    assert rig.used == []
    await rig.read()
    assert rig.used == [HOME]


@pytest.mark.covers("binding-3")
async def test_a_fast_failure_goes_to_the_latest_agent(rig: AccessRig) -> None:
    rig.bindings.latest[HOME] = SECOND
    rig.agents.unreachable.add(FIRST.id)
    assert await rig.start() == str(SECOND.id)
    assert rig.agents.handshakes == [FIRST, SECOND]
    assert rig.agents.asked == [SECOND]


@pytest.mark.covers("binding-3")
async def test_after_a_fast_failure_the_right_agent_is_tried_twice_and_not_a_third_time(
    rig: AccessRig,
) -> None:
    rig.agents.unreachable.add(FIRST.id)
    assert await rig.refused(AgentUnreachable, rig.start) == "refused"
    assert rig.agents.handshakes == [FIRST, FIRST]
    assert rig.bindings.calls.count("latest") == 1


@pytest.mark.covers("binding-3")
async def test_a_fast_failure_without_an_agent_says_how_to_start_one(rig: AccessRig) -> None:
    rig.bindings.latest.clear()
    rig.agents.unreachable.add(FIRST.id)
    assert "start_workspace" in await rig.refused(WorkspaceUnavailable, rig.start)
    assert rig.agents.handshakes == [FIRST]


@pytest.mark.covers("binding-3")
@pytest.mark.parametrize("broken", ["latest", "remember"])
async def test_a_fast_failure_that_cannot_be_checked_names_both_failures(
    rig: AccessRig, broken: str
) -> None:
    rig.bindings.latest[HOME] = SECOND
    rig.bindings.broken.add(broken)
    rig.agents.unreachable.add(FIRST.id)
    with pytest.raises(AgentUnreachable) as error:
        await rig.start()
    # The database's own message may name what a chat must not know.
    assert error.value.message == "refused The workspace's latest build could not be looked up."
    assert isinstance(error.value.__cause__, Unavailable)
    assert rig.agents.asked == []


async def test_after_a_failure_the_next_call_makes_a_new_handshake(rig: AccessRig) -> None:
    rig.agents.unreachable.add(FIRST.id)
    await rig.refused(AgentUnreachable, rig.read)
    rig.agents.unreachable.clear()
    assert await rig.read() == FIRST
    assert rig.agents.handshakes == [FIRST] * 3


async def wait_for_silence(rig: AccessRig, kind: type[ChatdError]) -> str:
    rig.agents.silent.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(rig.refused(kind, rig.start))
        assert await rig.clock.wait_for_sleeper("agent_timeout") == AGENT_REPLY_TIMEOUT_S
        await rig.wait_until_slow()
        await rig.clock.advance_past("agent_timeout")
    assert rig.agents.cancelled == [FIRST]
    return refusal.result()


@pytest.mark.promise("P14")
async def test_an_agent_that_does_not_answer_in_time_may_answer_next_time(
    rig: AccessRig,
) -> None:
    assert "in time" in await wait_for_silence(rig, AgentUnreachable)
    rig.agents.silent.clear()
    assert await rig.read() == FIRST


@pytest.mark.promise("P14")
async def test_an_agent_that_is_long_gone_and_does_not_answer_asks_for_a_restart(
    rig: AccessRig,
) -> None:
    rig.bindings.latest[HOME] = seen(last_connected_at=100, disconnected_at=90)
    assert "stop_workspace" in await wait_for_silence(rig, WorkspaceUnavailable)


@pytest.mark.covers("binding-3")
async def test_the_timeout_does_not_wait_for_the_database(rig: AccessRig) -> None:
    rig.bindings.latest_open.clear()
    async with rig.held(rig.start()) as started:
        await rig.wait_until_slow()
        await rig.clock.advance_past("agent_timeout")
        rig.bindings.latest_open.set()
        await rig.reply(1)
    assert started.result() == str(FIRST.id)


@pytest.mark.promise("P14")
async def test_the_second_attempt_ends_in_time_too(rig: AccessRig) -> None:
    async with rig.held(rig.refused(OutcomeUnknown, rig.start)) as refusal:
        await rig.lose(0)
        await rig.agents.until(requests=2)
        assert await rig.clock.advance_past("agent_timeout") == RESEND_TIMEOUT_S
    assert "in time" in refusal.result()


async def test_a_reply_is_preferred_to_a_timeout_at_the_same_moment(rig: AccessRig) -> None:
    async with rig.held(rig.start()) as started:
        await rig.agents.until(requests=1)
        await rig.clock.wait_for_sleeper("agent_timeout")
        rig.agents.reply()
        rig.clock.advance(AGENT_REPLY_TIMEOUT_S)
    assert started.result() == str(FIRST.id)


async def test_a_cancelled_call_leaves_no_request_behind(rig: AccessRig) -> None:
    async with rig.held(rig.start()) as task:
        await rig.agents.until(requests=1)
        task.cancel()
    assert task.cancelled()
    assert rig.agents.cancelled == [FIRST]
    assert rig.bindings.calls == ["binding", "agent"]
    assert rig.access.in_use() == set()
    assert rig.clock.sleeping("rebind_check") == rig.clock.sleeping("agent_timeout") == []


async def test_a_call_can_be_cancelled_during_its_handshake(rig: AccessRig) -> None:
    rig.agents.silent.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rig.start())
        await rig.agents.until(handshakes=1)
        task.cancel()
    assert rig.agents.cancelled == [FIRST]
    rig.agents.silent.clear()
    assert await rig.read() == FIRST


def seen(**seconds_ago: float | None) -> AgentRow:
    """An agent whose times are that many seconds ago, or never."""
    times = {
        name: None if ago is None else NOW - timedelta(seconds=ago)
        for name, ago in seconds_ago.items()
    }
    return replace(agent(1), **times)


@pytest.mark.parametrize(
    ("row", "kind", "word"),
    [
        (agent(1), AgentUnreachable, "in time"),
        (seen(disconnected_at=89), AgentUnreachable, "in time"),
        (seen(last_connected_at=89), AgentUnreachable, "in time"),
        (seen(last_connected_at=90), WorkspaceUnavailable, "stop_workspace"),
        (seen(last_connected_at=3600, disconnected_at=89), AgentUnreachable, "in time"),
        (seen(last_connected_at=None), WorkspaceUnavailable, "never connected"),
        (seen(last_connected_at=None, created_at=0), AgentUnreachable, "in time"),
        (
            replace(seen(last_connected_at=None), connection_timeout_s=0),
            AgentUnreachable,
            "in time",
        ),
    ],
)
def test_a_restart_is_advised_only_after_a_long_silence(
    row: AgentRow, kind: type[ChatdError], word: str
) -> None:
    error = timeout_error(AgentObservation(agent=row, now=NOW))
    assert type(error) is kind
    assert word in error.message
