"""Threads of Slack are chats: started, continued, answered and shown once each, whatever dies in
between."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID, UserActor
from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.slack import workspace_of
from chatd.domain.files import FileLimits
from chatd.domain.ids import ChatId, ModelConfigId, UserId
from chatd.domain.ports import Tool
from chatd.domain.tool_policy.rules import ToolRule
from chatd.domain.workspace.entities import TemplateSpec
from chatd.domain.workspace.template_definition import TemplateDefinition
from chatd.services.slack.connections import NewSlackBody, SlackConfig, SlackConnections, SlackPatch
from chatd.services.slack.slack_api import SlackRequests
from chatd.services.slack.slack_socket import SOCKET_LEASE_S, SlackSockets
from chatd.services.slack.slack_worker import SlackParts, SlackWorker
from chatd.store.account.audit import ChangeAuthor
from chatd.store.chat import chats
from chatd.store.deployment import slack, slack_work
from chatd.tools.plans import QuestionTools
from chatd.workspaces.templates import sync_templates
from tests.engine.test_repositories import BuildHost
from tests.engine.test_webhooks import RING, add_key
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.factories import chat as make_chat
from tests.support.providers.server import Gate
from tests.support.seeds import QUESTIONS
from tests.support.slack_api import (
    ADA,
    APP_TOKEN,
    BOT,
    BOT_TOKEN,
    CHANNEL,
    DIRECT,
    EVE,
    FakeSlack,
    Message,
    running_slack,
)
from tests.support.tools import GatedTool

ADMIN = ChangeAuthor(actor=UserActor(user_id=ADMIN_USER_ID, role="admin"), ip=None)
MENTION = f"<@{BOT}>"
SITE = "https://chatd.example.com"


class QuickClock(FakeClock):
    """No sleep takes any time."""

    async def sleep(self, seconds: float, tag: str) -> None:
        self.advance(seconds)
        await super().sleep(0, tag)


async def no_model(_model: ModelConfigId) -> object | None:
    return None


class SlackRig:
    """A replica, Slack, and a connection between them, whose socket is open. `settle` lets the
    worker do all that is due; `later` first lets the time pass for which something was put off."""

    def __init__(self, engine: EngineRig, fake: FakeSlack) -> None:
        self.engine = engine
        self.fake = fake
        self.pool = engine.pool
        self.clock = QuickClock()
        self.requests = SlackRequests(fake.url, self.clock, allow_private=True)
        self.builds = BuildHost()
        self.worker = self.new_worker()
        self.administration = SlackConnections(
            self.pool,
            RING,
            engine.replica.env,
            no_model,
            self.requests,
            on_change=self.worker.on_change,
        )
        self.connection: SlackConfig

    def new_worker(self) -> SlackWorker:
        parts = SlackParts(
            ring=RING,
            requests=self.requests,
            workspaces=self.builds,
            stores=self.engine.replica.files,
            limits=FileLimits(max_bytes=1000),
            site=SITE,
        )
        env = self.engine.replica.env
        return SlackWorker(self.pool, self.engine.replica.transactor, env, parts)

    async def connect(self, **fields: Any) -> None:
        await add_key(self.engine)
        body = NewSlackBody(name="Acme", bot_token=BOT_TOKEN, app_token=APP_TOKEN, **fields)
        self.connection = await self.administration.add(ADMIN, body)

    async def link(self, slack_user: str = ADA, user_id: UserId | None = None) -> None:
        await self.pool.execute(
            "INSERT INTO slack_links (id, connection_id, slack_user, user_id)"
            " VALUES ($1, $2, $3, $4)",
            self.engine.replica.env.new_id(),
            self.connection.id,
            slack_user,
            user_id or self.engine.owner,
        )

    async def ask(self, text: str, **fields: Any) -> str:
        """The thread of a mention, acted upon."""
        ts = await self.fake.say(f"{MENTION} {text}", **fields)
        await self.settle()
        return fields.get("thread") or ts

    async def settle(self) -> None:
        while await self.worker.run_due():
            pass

    async def later(self) -> None:
        await self.pool.execute("UPDATE slack_connections SET rest_until = NULL")
        await self.pool.execute("UPDATE slack_events SET due_at = now() WHERE due_at IS NOT NULL")
        await self.pool.execute("UPDATE slack_threads SET due_at = now()")
        await self.settle()

    async def chat_ids(self) -> list[ChatId]:
        rows = await self.pool.fetch("SELECT id FROM chats ORDER BY created_at")
        return [ChatId(row["id"]) for row in rows]

    async def chat(self) -> Chat:
        (chat_id,) = await self.chat_ids()
        found = await chats.get(self.pool, HARNESS, chat_id)
        assert found is not None
        return found

    async def finish(self) -> ChatId:
        """The newest chat has ended its turn, and its thread shows so."""
        chat_id = (await self.chat_ids())[-1]
        await eventually(lambda: self._is_in(chat_id, "waiting", "error"))
        await self.later()
        return chat_id

    async def wait_asking(self) -> ChatId:
        chat_id = (await self.chat_ids())[-1]
        await eventually(lambda: self._is_in(chat_id, "requires_action"))
        await self.later()
        return chat_id

    async def _is_in(self, chat_id: ChatId, *statuses: str) -> bool:
        return (await self.engine.chat(chat_id)).status in statuses

    async def outcomes(self) -> list[tuple[str, str]]:
        found = await slack_work.list_events(
            self.pool, ADMIN.actor, self.connection.id, before=None, limit=50
        )
        return [(one.outcome, one.detail) for one in reversed(found)]

    def texts(self, thread: str | None = None) -> list[str]:
        return [one.shown() for one in self.fake.posted(thread)]

    def with_button(self, action: str) -> Message:
        return next(one for one in reversed(self.fake.posted()) if action in one.buttons())


@asynccontextmanager
async def rig_of(
    dsn: str,
    *,
    tools: list[Tool] | None = None,
    is_linked: bool = True,
    **fields: Any,
) -> AsyncGenerator[SlackRig]:
    fake = FakeSlack()
    async with running_slack(fake), engine_rig(dsn, tools=tools or []) as engine:
        rig = SlackRig(engine, fake)
        await rig.connect(**fields)
        if is_linked:
            await rig.link()
        sockets = asyncio.create_task(rig.worker.sockets.run())  # noqa: TID251
        try:
            await fake.until(lambda: bool(fake.sockets))
            yield rig
        finally:
            sockets.cancel()
            await asyncio.gather(sockets, return_exceptions=True)


@pytest.fixture
async def rig(dsn: str) -> AsyncGenerator[SlackRig]:
    async with rig_of(dsn) as rig:
        yield rig


async def test_a_mention_becomes_a_chat_whose_answer_is_in_the_thread(rig: SlackRig) -> None:
    gate = Gate()
    rig.engine.answer(gate, "It is **done**, <!channel>.")
    thread = await rig.ask("please &lt;repair&gt; it")
    (progress,) = rig.fake.posted(thread)
    assert progress.shown() == "⏳ Working on it."
    assert set(progress.buttons()) == {"stop", "open"}
    gate.open()
    chat_id = await rig.finish()
    assert rig.texts(thread) == ["✅ Done.", "It is *done*, &lt;!channel&gt;."]
    assert f"{SITE}/c/{chat_id}" in str(progress.blocks)
    chat = await rig.chat()
    assert (chat.owner_id, chat.labels) == (rig.engine.owner, {"slack": "Acme"})
    assert (await rig.engine.transcript(chat_id))[0] == "user: please <repair> it"
    # The mention came as two events, of which one counts.
    assert await rig.outcomes() == [("done", "")]
    before = len(rig.fake.requests)
    await rig.later()
    assert len(rig.fake.requests) == before  # all is shown: Slack is asked nothing


async def test_replies_continue_the_chat_and_wait_in_its_queue(rig: SlackRig) -> None:
    gate = Gate()
    rig.engine.answer(gate, "The first.")
    thread = await rig.ask("one")
    await rig.fake.say("two", thread=thread)
    await rig.settle()
    assert (await rig.chat()).queue_len == 1
    rig.engine.answer("The second.")
    gate.open()
    chat_id = await rig.finish()
    answers = [text for text in rig.texts(thread) if text.startswith("The ")]
    assert answers == ["The first.", "The second."]
    assert [line for line in await rig.engine.transcript(chat_id) if line.startswith("user")] == [
        "user: one",
        "user: two",
    ]
    assert "⏳" not in "".join(rig.texts(thread))


async def test_a_direct_message_needs_no_mention(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    ts = await rig.fake.say("hi", channel=DIRECT)
    await rig.settle()
    await rig.finish()
    assert rig.texts(ts)[-1] == "Hello."


async def test_what_people_say_elsewhere_is_not_stored(rig: SlackRig) -> None:
    ts = await rig.fake.say("lunch?")
    await rig.fake.say("yes", user=EVE, thread=ts)
    await rig.settle()
    assert await rig.outcomes() == []
    assert await rig.chat_ids() == []


async def test_a_person_links_by_a_code_in_a_direct_message(dsn: str) -> None:
    async with rig_of(dsn, is_linked=False) as rig:
        await rig.ask("hello")
        (told,) = rig.fake.told()
        assert "`link CODE`" in told
        assert await rig.outcomes() == [("ignored", "the person is not linked to a user")]
        owner = UserActor(user_id=rig.engine.owner, role="member")
        made = await rig.administration.make_code(owner)
        await rig.fake.say(f"link {made.code.lower()}", channel=DIRECT)
        await rig.settle()
        (linked,) = await slack.list_links(rig.pool, owner)
        assert (linked.slack_user, linked.slack_name) == (ADA, "Ada")
        await rig.fake.say(f"link {made.code}", channel=DIRECT)
        await rig.settle()
        assert "was used already" in rig.texts()[-1]
        rig.engine.answer("Hello.")
        await rig.ask("hello")
        await rig.finish()
        assert (await rig.chat()).owner_id == rig.engine.owner
        await rig.administration.unlink(ChangeAuthor(actor=owner, ip=None), linked.id)
        await rig.ask("again")
        assert len(await rig.chat_ids()) == 1
        audit = await rig.pool.fetch("SELECT action FROM audit_log WHERE object_type LIKE 'slack%'")
        assert [row["action"] for row in audit] == [
            "slack_connection.create",
            "slack_link.create",
            "slack_link.delete",
        ]


async def test_a_code_that_others_could_read_counts_no_more(dsn: str) -> None:
    async with rig_of(dsn, is_linked=False) as rig:
        owner = UserActor(user_id=rig.engine.owner, role="member")
        made = await rig.administration.make_code(owner)
        await rig.ask(f"link {made.code}")
        assert "no longer counts" in rig.fake.told()[0]
        await rig.fake.say(f"link {made.code}", channel=DIRECT)
        await rig.settle()
        assert await slack.list_links(rig.pool, owner) == []


@pytest.mark.parametrize(
    ("match_email", "changes", "is_known"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"is_email_confirmed": False}, False),
        (True, {"is_restricted": True}, False),
        (True, {"team_id": "T0OTHER"}, False),
    ],
)
async def test_a_confirmed_email_counts_only_if_the_connection_says_so(
    dsn: str, *, match_email: bool, changes: dict[str, Any], is_known: bool
) -> None:
    async with rig_of(dsn, is_linked=False, match_email=match_email) as rig:
        rig.fake.scopes.add("users:read.email")
        rig.fake.users[ADA] |= changes
        await rig.pool.execute(
            "UPDATE users SET email = 'Ada@Example.com' WHERE id = $1", rig.engine.owner
        )
        rig.engine.answer("Hello.")
        await rig.ask("hello")
        assert bool(await rig.chat_ids()) is is_known
        if is_known:
            await rig.finish()


@pytest.mark.promise("P12")
async def test_nobody_continues_or_answers_the_chat_of_another_person(dsn: str) -> None:
    tool = GatedTool()
    async with rig_of(dsn, tools=[tool]) as rig:
        await rig.engine.set_policy(ToolRule(tool="echo", action="ask"))
        await rig.link(EVE, UserId(UUID(int=8)))
        rig.engine.call_tools(("c1", "echo", '{"say":"a"}'))
        thread = await rig.ask("go")
        await rig.wait_asking()
        await rig.ask("do something else", user=EVE, thread=thread)
        await rig.fake.say("and me", user=EVE, thread=thread)
        await rig.fake.press(rig.with_button("approve"), "approve", EVE)
        await rig.fake.press(rig.with_button("stop"), "stop", EVE)
        await rig.settle()
        assert len([text for text in rig.fake.told(EVE) if "somebody else" in text]) == 3
        assert (await rig.chat()).status == "requires_action"
        assert tool.runs == []


async def test_a_button_approves_exactly_one_call_once(dsn: str) -> None:
    tool = GatedTool()
    async with rig_of(dsn, tools=[tool]) as rig:
        await rig.engine.set_policy(ToolRule(tool="echo", action="ask"))
        rig.engine.call_tools(("c1", "echo", '{"say":"<a>"}'))
        thread = await rig.ask("go")
        await rig.wait_asking()
        asked = rig.with_button("approve")
        assert "Allow `echo`?" in asked.shown()
        assert '{"say":"&lt;a&gt;"}' in asked.shown()
        rig.engine.answer("Done.")
        payload = rig.fake.press_payload(asked, "approve")
        for _ in range(2):
            await rig.fake.deliver("interactive", payload)
        other = rig.fake.press_payload(asked, "deny")
        await rig.fake.deliver("interactive", other)
        await rig.settle()
        await rig.finish()
        assert tool.runs == ["c1"]
        assert asked.buttons() == {}
        assert asked.shown().endswith("approved it.")
        assert rig.texts(thread)[-1] == "Done."
        assert [outcome for outcome, _ in await rig.outcomes()] == ["done", "done", "ignored"]


async def test_a_denied_call_does_not_run(dsn: str) -> None:
    tool = GatedTool()
    async with rig_of(dsn, tools=[tool]) as rig:
        await rig.engine.set_policy(ToolRule(tool="echo", action="ask"))
        rig.engine.call_tools(("c1", "echo", "{}"))
        await rig.ask("go")
        await rig.wait_asking()
        asked = rig.with_button("deny")
        rig.engine.answer("As you wish.")
        await rig.fake.press(asked, "deny")
        await rig.settle()
        await rig.finish()
        assert tool.runs == []
        assert asked.shown().endswith("denied it.")


async def test_a_call_with_a_hidden_part_is_not_approved_in_slack(dsn: str) -> None:
    tool = GatedTool()
    async with rig_of(dsn, tools=[tool]) as rig:
        await rig.engine.set_policy(ToolRule(tool="echo", action="ask"))
        rig.engine.call_tools(("c1", "echo", '{"command":"curl --password hunter2hunter2"}'))
        await rig.ask("go")
        await rig.wait_asking()
        asked = rig.with_button("deny")
        assert "approve" not in asked.buttons()
        assert "hunter2" not in str(asked.blocks)
        forged = rig.fake.press_payload(asked, "deny")
        forged["actions"][0]["action_id"] = "approve"
        await rig.fake.deliver("interactive", forged)
        await rig.settle()
        assert tool.runs == []


async def test_a_question_is_answered_by_a_button_or_by_a_reply(dsn: str) -> None:
    tools = await QuestionTools().tools(make_chat())
    async with rig_of(dsn, tools=list(tools)) as rig:
        rig.engine.call_tools(("q1", "ask_user_question", QUESTIONS))
        thread = await rig.ask("go")
        await rig.wait_asking()
        asked = rig.with_button("option-0")
        rig.engine.call_tools(("q2", "ask_user_question", QUESTIONS))
        await rig.fake.press(asked, "option-0")
        await rig.settle()
        await eventually(lambda: _has_call(rig, "q2"))
        await rig.later()
        assert asked.shown().endswith("answered.")
        rig.engine.answer("Thanks.")
        await rig.fake.say("my own words", thread=thread)
        await rig.settle()
        chat_id = await rig.finish()
        assert "my own words" in str(await rig.engine.transcript(chat_id))
        assert rig.texts(thread)[-1] == "Thanks."


async def _has_call(rig: SlackRig, call_id: str) -> bool:
    chat = await rig.chat()
    return chat.status == "requires_action" and chat.pending_calls[0].id == call_id


async def test_the_stop_button_and_the_word_stop_interrupt(rig: SlackRig) -> None:
    for stop in ("button", "word"):
        gate = Gate()
        rig.engine.answer("So far", gate, "never")
        thread = await rig.ask(f"go {stop}")
        await gate.reached.wait()
        if stop == "button":
            await rig.fake.press(rig.with_button("stop"), "stop")
        else:
            await rig.fake.say("Stop", thread=thread)
        await rig.settle()
        await rig.finish()
        assert rig.texts(thread)[-1] == "So far"
        gate.open()


async def test_a_long_answer_becomes_several_messages(rig: SlackRig) -> None:
    rig.engine.answer("\n\n".join(f"Paragraph {n} " + "word " * 100 for n in range(120)))
    thread = await rig.ask("write")
    await rig.finish()
    texts = [text for text in rig.texts(thread) if "Paragraph" in text]
    assert len(texts) > 1
    joined = "\n".join(texts)
    assert joined.index("Paragraph 0 ") < joined.index("Paragraph 60 ")
    assert all(f"Paragraph {n} " in joined for n in range(120))


async def test_files_become_attachments(rig: SlackRig) -> None:
    good = rig.fake.add_file("notes.txt", "text/plain", b"remember the milk")
    large = rig.fake.add_file("large.txt", "text/plain", b"x" * 2000)
    elsewhere = {**good, "id": "F0EVIL", "url_private_download": "https://evil.example/f"}
    rig.engine.answer("Read.")
    await rig.ask("read this", files=(good, large, elsewhere))
    chat_id = await rig.finish()
    (row,) = await rig.pool.fetch(
        "SELECT f.name, f.size_bytes, f.owner_id FROM files f JOIN chat_files l ON l.file_id = f.id"
        " WHERE l.chat_id = $1",
        chat_id,
    )
    assert (row["name"], row["size_bytes"], row["owner_id"]) == ("notes.txt", 17, rig.engine.owner)
    first = (await rig.engine.transcript(chat_id))[0]
    assert "large.txt was not attached" in first


async def test_a_template_gives_each_chat_a_workspace(dsn: str) -> None:
    async with rig_of(dsn) as rig:
        template = TemplateDefinition(name="app", description="The app.", spec=TemplateSpec())
        env = rig.engine.replica.env
        (stored,) = await sync_templates(rig.pool, env, (template,), built_in=False)
        await rig.administration.update(ADMIN, rig.connection.id, SlackPatch(template_id=stored.id))
        rig.engine.answer("Hello.")
        await rig.ask("hello")
        chat_id = await rig.finish()
        assert (await rig.chat()).workspace_id == workspace_of(chat_id)
        owner = await rig.pool.fetchval("SELECT owner_id FROM workspaces")
        assert (owner, rig.builds.woken) == (rig.engine.owner, 1)


async def test_an_archived_chat_is_followed_by_a_new_one(rig: SlackRig) -> None:
    rig.engine.answer("One.")
    thread = await rig.ask("one")
    chat_id = await rig.finish()
    await rig.engine.run(chat_id, UpdateChat(archived=True))
    rig.engine.answer("Two.")
    await rig.ask("two", thread=thread)
    await rig.finish()
    assert len(await rig.chat_ids()) == 2
    assert rig.texts(thread)[-1] == "Two."


class _Death(BaseException):
    """The end of the process: nothing after it runs."""


async def _die(*_args: object, **_named: object) -> None:
    raise _Death


@pytest.mark.promise("P1", "P10")
@pytest.mark.parametrize(
    "point",
    ["place_thread", "begin_request", "show", "end_event", "begin_post", "set_ts", "set_shown"],
)
async def test_a_process_that_dies_before_any_step_doubles_and_loses_nothing(
    rig: SlackRig, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    gate = Gate()
    rig.engine.answer(gate, "Hello.")
    with monkeypatch.context() as patch:
        patch.setattr(slack_work, point, _die)
        await rig.fake.say(f"{MENTION} hello")
        with pytest.raises(BaseExceptionGroup):
            await rig.settle()
    await rig.later()
    gate.open()
    await rig.finish()
    await rig.later()
    assert rig.texts() == ["✅ Done.", "Hello."]
    assert len(await rig.engine.transcript((await rig.chat()).id)) == 2


@pytest.mark.parametrize("point", ["set_ts", "close_post", "advance", "set_shown"])
async def test_a_process_that_dies_while_it_posts_the_answer_posts_it_once(
    rig: SlackRig, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    gate = Gate()
    rig.engine.answer(gate, "Hello.")
    thread = await rig.ask("hello")
    chat_id = (await rig.chat_ids())[0]
    gate.open()
    await rig.engine.wait_state(chat_id, "W")
    for number in range(250):  # the answer is not on the first page
        rig.fake.messages.append(Message(rig.fake.next_ts(), CHANNEL, EVE, str(number), thread))
    with monkeypatch.context() as patch:
        patch.setattr(slack_work, point, _die)
        with pytest.raises(BaseExceptionGroup):
            await rig.later()
    await rig.later()
    assert rig.texts(thread).count("Hello.") == 1
    assert "⏳" not in "".join(rig.texts(thread))


async def test_a_reply_of_slack_that_was_lost_posts_nothing_twice(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    rig.fake.lost = ["chat.postMessage", "chat.postMessage"]
    await rig.ask("hello")
    await rig.finish()
    await rig.later()
    await rig.later()
    assert rig.texts().count("Hello.") == 1


@pytest.mark.promise("P10")
async def test_two_replicas_start_one_chat_and_post_one_answer(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    await rig.fake.say(f"{MENTION} hello")
    other = rig.new_worker()
    for _ in range(3):
        await asyncio.gather(rig.worker.run_due(), other.run_due())
    await rig.finish()
    assert rig.texts().count("Hello.") == 1


@pytest.mark.promise("P1")
async def test_slack_is_told_that_an_event_arrived_only_when_it_is_stored(
    rig: SlackRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.answer("Hello.")
    real, refused = slack_work.store_event, asyncio.Event()

    async def fail(*_args: object) -> str:
        refused.set()
        await asyncio.Event().wait()
        raise AssertionError

    rig.fake.ack_s = 4.0
    monkeypatch.setattr(slack_work, "store_event", fail)
    saying = asyncio.create_task(rig.fake.say("hi", channel=DIRECT))  # noqa: TID251
    async with asyncio.timeout(30):
        await refused.wait()
    assert rig.fake.acks == {}
    monkeypatch.setattr(slack_work, "store_event", real)
    await saying
    assert rig.fake.deliveries > len(rig.fake.acks) == 1
    await rig.settle()
    await rig.finish()
    assert rig.texts()[-1] == "Hello."


async def test_a_delivery_of_the_same_event_again_starts_nothing(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    event = {
        "type": "message",
        "channel_type": "im",
        "channel": DIRECT,
        "user": ADA,
        "text": "hi",
        "ts": "1700000000.000001",
    }
    for _ in range(3):
        await rig.fake.deliver("events_api", rig.fake.event_callback(event))
    await rig.settle()
    await rig.finish()
    assert len(await rig.chat_ids()) == 1
    assert len(await rig.engine.transcript((await rig.chat()).id)) == 2


@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_slack_may_ask_for_a_new_connection(rig: SlackRig, reason: str) -> None:
    await rig.fake.disconnect(reason)
    await rig.fake.until(lambda: rig.fake.opened == 2 and len(rig.fake.sockets) == 1)
    rig.engine.answer("Hello.")
    await rig.ask("hello")
    await rig.finish()
    assert rig.texts()[-1] == "Hello."


async def test_a_connection_that_breaks_is_opened_again(rig: SlackRig) -> None:
    await rig.fake.sockets[-1].close()
    await rig.fake.until(lambda: rig.fake.opened == 2 and len(rig.fake.sockets) == 1)


async def test_one_process_holds_the_connection_and_another_takes_over(rig: SlackRig) -> None:
    env = rig.engine.replica.env
    other = SlackSockets(rig.pool, env, RING, rig.requests, lambda: None)
    task = asyncio.create_task(other.run())  # noqa: TID251
    try:
        await eventually(lambda: _is_connected(rig))
        assert rig.fake.opened == 1
        # As if the first had died: it prolongs its lease no more, and the time is over.
        await rig.pool.execute(
            "UPDATE slack_connections SET socket_holder = $1,"
            " socket_until = now() - interval '1 s'",
            env.new_id(),
        )
        other.on_change()
        await rig.fake.until(lambda: rig.fake.opened == 2)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert SOCKET_LEASE_S < 60


async def _is_connected(rig: SlackRig) -> bool:
    query = "SELECT EXISTS (SELECT FROM slack_connections WHERE connected_at IS NOT NULL)"
    return bool(await rig.pool.fetchval(query))


async def test_a_refused_token_is_shown_and_works_again_when_replaced(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    rig.fake.tokens = {"xoxb-other-token-123"}
    await rig.ask("hello")
    stored = await slack.get(rig.pool, ADMIN.actor, rig.connection.id)
    assert "invalid_auth" in (stored.connection.problem or "")
    trial = await rig.administration.try_connection(ADMIN.actor, rig.connection.id)
    assert (trial.ok, BOT_TOKEN in trial.reason) == (False, False)
    patch = SlackPatch(bot_token="xoxb-other-token-123")
    await rig.administration.update(ADMIN, rig.connection.id, patch)
    await rig.later()
    await rig.finish()
    await rig.later()
    assert rig.texts()[-1] == "Hello."
    trial = await rig.administration.try_connection(ADMIN.actor, rig.connection.id)
    assert (trial.ok, trial.team, trial.bot) == (True, "Acme", "chatd")


async def test_the_test_says_which_scopes_are_missing(rig: SlackRig) -> None:
    rig.fake.scopes -= {"files:read"}
    trial = await rig.administration.try_connection(ADMIN.actor, rig.connection.id)
    assert (trial.ok, trial.missing_scopes) == (False, ("files:read",))
    rig.fake.app_tokens.clear()
    trial = await rig.administration.try_connection(ADMIN.actor, rig.connection.id)
    assert "apps.connections.open: invalid_auth" in trial.reason


async def test_slack_is_left_alone_for_as_long_as_it_says(rig: SlackRig) -> None:
    rig.engine.answer("Hello.")
    rig.fake.limited = [37]
    await rig.ask("hello")
    until = await rig.pool.fetchval(
        "SELECT extract(epoch FROM rest_until - now()) FROM slack_connections"
    )
    assert 20 < until <= 37
    asked = len(rig.fake.requests)
    await rig.settle()
    assert len(rig.fake.requests) == asked
    await rig.finish()
    assert rig.texts()[-1] == "Hello."


async def test_edits_of_one_channel_are_a_second_apart(rig: SlackRig) -> None:
    rig.engine.answer("One.")
    rig.engine.answer("Two.")
    began = rig.clock.monotonic()
    await rig.ask("one")
    await rig.finish()
    await rig.ask("two")
    await rig.finish()
    writes = rig.fake.asked("chat.postMessage") + rig.fake.asked("chat.update")
    assert rig.clock.monotonic() - began >= writes - 1


async def test_a_channel_that_is_gone_ends_what_is_shown_there(rig: SlackRig) -> None:
    gate = Gate()
    rig.engine.answer(gate, "Hello.")
    await rig.ask("hello")
    rig.fake.members[CHANNEL].discard(BOT)
    gate.open()
    await rig.finish()
    row = await rig.pool.fetchrow("SELECT is_shown, failure FROM slack_threads")
    assert row is not None
    assert row["is_shown"]
    assert "not_in_channel" in row["failure"]


async def test_bots_and_people_of_other_workspaces_are_ignored(rig: SlackRig) -> None:
    event = {
        "type": "app_mention",
        "channel": CHANNEL,
        "user": ADA,
        "text": f"{MENTION} hi",
        "ts": "1700000000.000001",
    }
    for change in ({"bot_id": "B1"}, {"user": BOT}, {"user_team": "T0OTHER"}):
        await rig.fake.deliver("events_api", rig.fake.event_callback({**event, **change}))
    other = {**rig.fake.event_callback(event), "team_id": "T0OTHER"}
    await rig.fake.deliver("events_api", other)
    await rig.settle()
    assert await rig.outcomes() == []
