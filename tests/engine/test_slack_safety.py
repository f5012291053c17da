"""What could go wrong around Slack: two replicas at one thread, other people's codes, connections
that end at once, work that waits for other work."""

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.commands import UpdateChat
from chatd.domain.errors import Forbidden
from chatd.domain.tool_policy.rules import ToolRule
from chatd.services.slack import slack_worker
from chatd.services.slack.connections import NewSlackBody, SlackPatch
from chatd.services.slack.slack_worker import SlackWorker
from chatd.store.deployment import slack, slack_work
from tests.engine.test_slack import ADMIN, MENTION, SlackRig, rig, rig_of
from tests.support.eventually import eventually
from tests.support.providers.server import Gate
from tests.support.slack_api import APP_TOKEN, BOT_TOKEN, CHANNEL, DIRECT, EVE
from tests.support.tools import GatedTool

__all__ = ["rig"]


_IS_DUE = "UPDATE slack_threads SET is_shown = false, due_at = now(), shown_version = 0"


async def _settle(rig: SlackRig, worker: SlackWorker) -> None:
    while await worker.run_due():
        pass


@pytest.mark.promise("P10")
@pytest.mark.parametrize("next_event", ["reply", "press"])
async def test_a_replica_leaves_a_thread_alone_where_another_one_posts(
    rig: SlackRig, next_event: str
) -> None:
    gate = Gate()
    rig.engine.answer(gate, "Hello.")
    rig.engine.answer("And more.")
    thread = await rig.ask("hello")
    progress = rig.with_button("stop")
    gate.open()
    await rig.engine.wait_state((await rig.chat_ids())[0], "W")
    await rig.pool.execute("UPDATE slack_threads SET due_at = now()")
    posting = rig.fake.hold["chat.postMessage"] = asyncio.Event()
    before = rig.fake.asked("chat.postMessage")
    first = asyncio.create_task(rig.worker.run_due())  # noqa: TID251
    await rig.fake.until(lambda: rig.fake.asked("chat.postMessage") == before + 1)
    # The first replica waits for Slack. Meanwhile the thread gets another event.
    if next_event == "reply":
        await rig.fake.say("more", thread=thread)
    else:
        await rig.fake.press(progress, "stop")
    other = asyncio.create_task(_settle(rig, rig.new_worker()))  # noqa: TID251
    await eventually(lambda: _has_ended_all(rig))
    asked_twice = asyncio.create_task(  # noqa: TID251
        rig.fake.until(lambda: rig.fake.asked("chat.postMessage") > before + 1, 1.0)
    )
    await asyncio.wait({asked_twice, other}, return_when=asyncio.FIRST_COMPLETED)
    posting.set()
    await asyncio.gather(first, other)
    await asyncio.gather(asked_twice, return_exceptions=True)
    await rig.finish()
    assert rig.texts(thread).count("Hello.") == 1


async def _has_ended_all(rig: SlackRig) -> bool:
    query = "SELECT NOT EXISTS (SELECT FROM slack_events WHERE ended_at IS NULL)"
    return bool(await rig.pool.fetchval(query))


@pytest.mark.promise("P10")
async def test_a_late_failure_of_a_replica_that_lost_a_thread_changes_nothing(
    rig: SlackRig,
) -> None:
    rig.engine.answer("Hello.")
    await rig.ask("hello")
    await rig.pool.execute(_IS_DUE)
    (old,) = await slack_work.claim_threads(rig.pool, limit=1, claim_s=0.0)
    (new,) = await slack_work.claim_threads(rig.pool, limit=1, claim_s=300.0)
    assert (old.id, old.claim + 1) == (new.id, new.claim)
    await slack_work.postpone(rig.pool, old, None, "late")
    row = await rig.pool.fetchrow(
        "SELECT is_shown, failure, due_at > now() AS is_claimed FROM slack_threads"
    )
    assert row is not None
    assert (row["is_shown"], row["failure"], row["is_claimed"]) == (False, "", True)


async def test_a_press_does_not_wait_for_the_file_of_another_message(rig: SlackRig) -> None:
    gate = Gate()
    rig.engine.answer("So far", gate, "never")
    await rig.ask("go")
    await gate.reached.wait()
    stop = rig.with_button("stop")
    held = rig.fake.hold["files"] = asyncio.Event()
    file = rig.fake.add_file("notes.txt", "text/plain", b"remember")
    working = asyncio.create_task(rig.worker.run())  # noqa: TID251
    try:
        rig.engine.answer("Read.")
        await rig.fake.say("read", channel=DIRECT, files=(file,))
        await rig.fake.until(lambda: rig.fake.asked("files") == 1)
        await rig.fake.press(stop, "stop")
        await rig.engine.wait_state((await rig.chat_ids())[0], "W")
        held.set()
        await eventually(lambda: _has_ended_all(rig))
        await rig.engine.wait_state((await rig.chat_ids())[1], "W")
    finally:
        gate.open()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@pytest.mark.promise("P6")
async def test_what_a_dead_process_had_begun_goes_on_after_seconds(
    rig: SlackRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack_worker, "RENEWAL_S", 0.05)
    held = rig.fake.hold["files"] = asyncio.Event()
    file = rig.fake.add_file("notes.txt", "text/plain", b"remember")
    working = asyncio.create_task(rig.worker.run())  # noqa: TID251
    try:
        rig.engine.answer("Read.")
        await rig.fake.say("read", channel=DIRECT, files=(file,))
        await rig.fake.until(lambda: rig.fake.asked("files") == 1)
        first = await _due_at(rig)
        # The process lives, so that its claim does not end.
        await eventually(lambda: _is_later(rig, first))
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        held.set()
    left_s = await rig.pool.fetchval("SELECT extract(epoch FROM due_at - now()) FROM slack_events")
    assert left_s < 35
    await rig.later()
    await rig.finish()
    assert rig.texts()[-1] == "Read."


async def test_the_claim_of_a_thread_is_renewed_only_while_it_is_held(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    await rig.ask("hello")
    await rig.pool.execute(_IS_DUE)
    (old,) = await slack_work.claim_threads(rig.pool, limit=1, claim_s=0.0)
    await slack_work.renew_threads(rig.pool, [(old.id, old.claim)], claim_s=0.0)
    (new,) = await slack_work.claim_threads(rig.pool, limit=1, claim_s=30.0)
    await slack_work.renew_threads(rig.pool, [(old.id, old.claim)], claim_s=3000.0)
    await slack_work.renew_threads(rig.pool, [(new.id, new.claim)], claim_s=60.0)
    left_s = await rig.pool.fetchval("SELECT extract(epoch FROM due_at - now()) FROM slack_threads")
    assert 30 < left_s <= 60
    await slack_work.postpone(rig.pool, new, 1.0, "Slack failed")
    await slack_work.renew_threads(rig.pool, [(new.id, new.claim)], claim_s=60.0)
    left_s = await rig.pool.fetchval("SELECT extract(epoch FROM due_at - now()) FROM slack_threads")
    assert left_s <= 1


async def _due_at(rig: SlackRig) -> datetime:
    return await rig.pool.fetchval("SELECT due_at FROM slack_events")


async def _is_later(rig: SlackRig, than: datetime) -> bool:
    return await _due_at(rig) > than


async def test_a_thread_that_meets_a_bug_is_given_up_at_last(
    rig: SlackRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object, **_named: object) -> None:
        raise RuntimeError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(slack_work, "list_posts", fail)
        rig.engine.answer("Hello.")
        await rig.ask("hello")
        await rig.pool.execute("UPDATE slack_threads SET attempts = 30, due_at = now()")
        await rig.settle()
    row = await rig.pool.fetchrow("SELECT is_shown, failure FROM slack_threads")
    assert row is not None
    assert row["is_shown"]
    assert row["failure"]


# Who acts as whom


async def test_a_limited_token_makes_no_code(rig: SlackRig) -> None:
    limited = UserActor(user_id=rig.engine.owner, role="member", scopes=frozenset({"account"}))
    with pytest.raises(Forbidden):
        await rig.administration.make_code(limited)


@pytest.mark.parametrize(
    "text",
    ["link CODE", f"{MENTION} please link CODE", f"{MENTION} `link CODE`", "here: link code CODE"],
)
async def test_a_code_in_a_channel_counts_no_more_whatever_is_around_it(
    dsn: str, text: str
) -> None:
    async with rig_of(dsn, is_linked=False) as rig:
        owner = UserActor(user_id=rig.engine.owner, role="member")
        made = await rig.administration.make_code(owner)
        await rig.fake.say(text.replace("CODE", made.code))
        await rig.settle()
        assert "no longer counts" in rig.fake.told()[0]
        await rig.fake.say(f"link {made.code}", user=EVE, channel=CHANNEL)
        await rig.fake.say(f"link {made.code}", channel=DIRECT)
        await rig.settle()
        assert await slack.list_links(rig.pool, owner) == []


async def test_a_code_in_the_thread_of_a_chat_is_not_sent_to_the_model(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    thread = await rig.ask("hello")
    chat_id = await rig.finish()
    owner = UserActor(user_id=rig.engine.owner, role="member")
    made = await rig.administration.make_code(owner)
    await rig.fake.say(f"link {made.code}", thread=thread)
    await rig.settle()
    assert made.code not in str(await rig.engine.transcript(chat_id))
    assert "no longer counts" in rig.fake.told()[-1]


async def test_links_end_when_the_tokens_are_of_another_workspace(rig: SlackRig) -> None:
    other = "xoxb-other-token-123"
    rig.fake.tokens.add(other)
    patch = SlackPatch(bot_token=other)
    await rig.administration.update(ADMIN, rig.connection.id, patch)
    await rig.fake.until(lambda: rig.fake.opened == 2)
    assert await slack.find_person(rig.pool, rig.connection.id, "U0ADA") is not None
    rig.fake.team = "T0OTHER"
    patch = SlackPatch(bot_token=BOT_TOKEN)
    await rig.administration.update(ADMIN, rig.connection.id, patch)
    await rig.fake.until(lambda: rig.fake.opened == 3)
    assert await slack.find_person(rig.pool, rig.connection.id, "U0ADA") is None


async def test_the_same_call_of_a_later_chat_in_a_thread_is_asked_again(dsn: str) -> None:
    tool = GatedTool()
    async with rig_of(dsn, tools=[tool]) as rig:
        await rig.engine.set_policy(ToolRule(tool="echo", action="ask"))
        rig.engine.call_tools(("c1", "echo", "{}"))
        thread = await rig.ask("go")
        chat_id = await rig.wait_asking()
        first = rig.with_button("approve")
        payload = rig.fake.press_payload(first, "approve")
        rig.engine.answer("No.")
        await rig.fake.press(first, "deny")
        await rig.settle()
        await rig.finish()
        await rig.engine.run(chat_id, UpdateChat(archived=True))
        rig.engine.call_tools(("c1", "echo", "{}"))
        await rig.ask("go", thread=thread)
        await rig.wait_asking()
        await rig.fake.deliver("interactive", payload)  # of the earlier chat
        await rig.settle()
        assert tool.runs == []
        rig.engine.answer("Done.")
        second = rig.with_button("approve")
        await rig.fake.press(second, "approve")
        await rig.settle()
        await rig.finish()
        assert tool.runs == ["c1"]


# What is shown, and kept


async def test_nobody_is_pinged_by_the_text_of_a_notification(dsn: str) -> None:
    async with rig_of(dsn) as rig:
        rig.engine.answer("<!channel> <@U0EVE> now.")
        await rig.ask("hello")
        await rig.finish()
        sent = [str(fields.get("text")) for _, fields in rig.fake.requests]
        assert any("channel" in text for text in sent)
        assert not any("<" in text for text in sent)


async def test_an_event_that_has_ended_keeps_no_text(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    file = rig.fake.add_file("notes.txt", "text/plain", b"remember the milk")
    await rig.ask("my own words", files=(file,))
    await rig.finish()
    (stored,) = await slack_work.list_events(
        rig.pool, ADMIN.actor, rig.connection.id, before=None, limit=5
    )
    assert (stored.outcome, stored.event.text, stored.event.files) == ("done", "", ())
    assert stored.event.user == "U0ADA"


async def test_a_message_with_empty_fields_is_not_lost(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    tombstone: dict[str, Any] = {
        "id": "F0GONE",
        "name": None,
        "mimetype": None,
        "size": None,
        "mode": "tombstone",
        "url_private_download": None,
    }
    await rig.ask("hello", files=(tombstone,))
    await rig.finish()
    assert "hello" in (await rig.engine.transcript((await rig.chat()).id))[0]


# Connections


async def test_an_app_of_slack_has_one_connection(rig: SlackRig) -> None:
    body = NewSlackBody(name="Twin", bot_token=BOT_TOKEN, app_token=APP_TOKEN)
    twin = await rig.administration.add(ADMIN, body)
    await eventually(lambda: _has_problem(rig, twin.id))
    assert rig.fake.opened == 1
    stored = await slack.get(rig.pool, ADMIN.actor, twin.id)
    assert "Acme has this app" in (stored.connection.problem or "")
    trial = await rig.administration.try_connection(ADMIN.actor, twin.id)
    assert (trial.ok, "Acme has this app" in trial.reason) == (False, True)
    trial = await rig.administration.try_connection(ADMIN.actor, rig.connection.id)
    assert trial.ok


async def _has_problem(rig: SlackRig, connection_id: UUID) -> bool:
    return (await slack.get(rig.pool, ADMIN.actor, connection_id)).connection.problem is not None


async def test_what_waited_while_slack_was_disabled_is_not_done_later(rig: SlackRig) -> None:
    await rig.fake.say(f"{MENTION} delete everything")
    await rig.administration.update(ADMIN, rig.connection.id, SlackPatch(enabled=False))
    await rig.settle()
    await rig.administration.update(ADMIN, rig.connection.id, SlackPatch(enabled=True))
    await rig.settle()
    assert await rig.chat_ids() == []
    assert await rig.outcomes() == [("ignored", "the connection is disabled")]
