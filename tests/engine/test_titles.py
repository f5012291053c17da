"""Titles: generated once, during the first turn; a user's title is never replaced."""

import msgspec
import pytest

from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.spend import SpendRefusal
from chatd.domain.errors import TitleFailed, UsageLimit
from chatd.domain.ids import ChatId
from chatd.domain.prompt.titles import fallback_title
from chatd.store.chat import chats
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, engine_rig_with
from tests.support.factories import HARNESS
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply
from tests.support.store import session_to

QUESTION = "please fix the flaky test in main.py for me"
FALLBACK = fallback_title(QUESTION)


class TitleApi(FakeCompatible):
    """Answers title requests with `first_reply`, then `default_reply`; others from the script."""

    def __init__(self) -> None:
        super().__init__()
        self.titles: list[RecordedRequest] = []
        self.gate: Gate | None = None
        self.first_reply: Reply | None = None
        self.default_reply = Reply(steps=(_title("Fix flaky test"), chunk(finish="stop"), DONE))

    def answer(self, request: RecordedRequest) -> Reply:
        if b"Name the chat" not in request.body:
            return super().answer(request)
        self.titles.append(request)
        if (refusal := self.refuse(request)) is not None:
            return refusal
        reply, self.first_reply = self.first_reply or self.default_reply, None
        return reply if self.gate is None else Reply(steps=(self.gate, *reply.steps))


def _title(text: str) -> bytes:
    return chunk(content=msgspec.json.encode({"title": text}).decode())


async def new_chat(rig: EngineRig) -> ChatId:
    rig.answer("on it")
    return await rig.create(QUESTION, title=FALLBACK)


async def wait_title_task(rig: EngineRig) -> None:
    await rig.events.wait("background_task_done", task="title")


async def test_a_new_chat_gets_a_title_generated_from_its_first_message(dsn: str) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api, titles=True) as rig:
        chat_id = await new_chat(rig)
        rested = await rig.wait_chat_task_left(chat_id)
        await wait_title_task(rig)
        chat = await rig.chat(chat_id)
        assert chat.title == "Fix flaky test"
        assert QUESTION.encode() in api.titles[0].body
        assert await rig.transcript(chat_id) == [f"user: {QUESTION}", "assistant: on it"]
        assert sorted(kind for kind, _, _ in await rig.recorded_usage()) == ["title", "turn"]
        # The version by which viewers resume has not changed.
        assert chat.snapshot_version == 2
        assert chat.updated_at == rested.updated_at


async def test_every_call_names_its_chat_in_a_header_that_is_configured_to(dsn: str) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api, titles=True) as rig:
        chat_id = await new_chat(rig)
        chat = await rig.wait_chat_task_left(chat_id)
        await wait_title_task(rig)
        assert len(api.titles) == 1
        assert len(api.requests) >= 1
        for sent in (*api.requests, *api.titles):
            assert sent.headers["x-chat"] == f"{chat_id} of {chat.owner_id}"
            assert "x-workspace" not in sent.headers


async def test_only_the_first_turn_generates_a_title(dsn: str) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api, titles=True) as rig:
        chat_id = await new_chat(rig)
        await rig.wait_chat_task_left(chat_id, epoch=1)
        await wait_title_task(rig)
        rig.answer("sure")
        await rig.send(chat_id, "and another one")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        assert len(api.titles) == 1


@pytest.mark.covers("O12")
async def test_a_title_that_a_user_set_is_not_replaced(dsn: str) -> None:
    """Nor is one that the user sets while the title is being generated."""
    async with TitleApi.running() as api, engine_rig_with(dsn, api, titles=True) as rig:
        rig.answer("on it")
        mine = await rig.create(QUESTION, title="Mine")
        await rig.wait_chat_task_left(mine)
        assert api.titles == []
        api.gate = Gate()
        chat_id = await new_chat(rig)
        await api.gate.reached.wait()
        await chats.set_title(rig.pool, HARNESS, chat_id, expected=FALLBACK, title="Mine too")
        api.gate.open()
        await wait_title_task(rig)
        assert (await rig.chat(chat_id)).title == "Mine too"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, steps=(b"{}",)),
        Reply(steps=(_title(""), chunk(finish="stop"), DONE)),
        Reply(steps=(_title("x"),)),
    ],
    ids=["fails", "is empty", "is cut"],
)
async def test_a_failed_title_call_leaves_the_old_title(dsn: str, reply: Reply) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api, titles=True) as rig:
        api.default_reply = reply
        chat_id = await new_chat(rig)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        await wait_title_task(rig)
        assert (await rig.chat(chat_id)).title == FALLBACK


async def test_a_retried_answer_does_not_repeat_a_failed_title_call(
    dsn: str, clock: FakeClock
) -> None:
    async with (
        TitleApi.running() as api,
        engine_rig_with(dsn, api, clock=clock, titles=True) as rig,
    ):
        api.default_reply = Reply(status=500, steps=(b"{}",))
        api.reply(503, {"error": {"message": "busy"}})
        chat_id = await new_chat(rig)
        await wait_title_task(rig)
        await clock.advance_past("retry_backoff")
        await rig.wait_chat_task_left(chat_id)
        assert len(api.titles) == 1


async def test_a_model_that_rejects_the_temperature_is_called_without_it(dsn: str) -> None:
    refused = {"error": {"message": "Unsupported parameter: temperature"}}
    async with TitleApi.running() as api, engine_rig_with(dsn, api, titles=True) as rig:
        api.first_reply = Reply(
            status=400,
            headers={"content-type": "application/json"},
            steps=(msgspec.json.encode(refused),),
        )
        chat_id = await new_chat(rig)
        await rig.wait_chat_task_left(chat_id)
        await wait_title_task(rig)
        assert (await rig.chat(chat_id)).title == "Fix flaky test"
        assert ["temperature" in request.json for request in api.titles] == [True, False]


class SpentBudget:
    """Satisfies `Budget`: allows no call."""

    def __init__(self) -> None:
        self.checks = 0

    def is_unlimited(self, chat: Chat) -> bool:
        del chat
        return False

    def reserve_unchecked(self, chat: Chat, call: StartedCall) -> SpendRefusal | None:
        raise AssertionError(chat, call)

    async def check(self, chat: Chat) -> SpendRefusal | None:
        del chat
        return SpendRefusal(message="Enough.")

    async def reserve(self, chat: Chat, call: StartedCall) -> SpendRefusal | None:
        del call
        self.checks += 1
        return await self.check(chat)

    def on_booked(self, chat: Chat) -> None:
        pass


@pytest.mark.promise("P11")
async def test_past_the_spend_limit_no_title_is_generated(dsn: str) -> None:
    budget = SpentBudget()
    async with (
        TitleApi.running() as api,
        engine_rig_with(dsn, api, titles=True, budget=budget) as rig,
    ):
        chat_id = await new_chat(rig)
        await rig.wait_chat_task_left(chat_id)
        await wait_title_task(rig)
        assert budget.checks == 2
        assert api.titles == []
        assert (await rig.chat(chat_id)).title == FALLBACK


@pytest.mark.promise("P11")
async def test_a_title_call_that_a_shutdown_cancels_is_recorded(dsn: str, gate: Gate) -> None:
    async with TitleApi.running() as api:
        async with engine_rig_with(dsn, api, titles=True) as rig:
            api.gate = gate
            await rig.wait_chat_task_left(await new_chat(rig))
            await gate.reached.wait()
        async with session_to(dsn) as session:
            rows = await session.fetch("SELECT kind, ok, estimated FROM usage_events ORDER BY kind")
        assert [tuple(row.values()) for row in rows] == [
            ("title", False, True),
            ("turn", True, True),
        ]


# When a user asks


async def test_a_title_is_suggested_also_without_automatic_titles_and_its_usage_is_recorded(
    dsn: str,
) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api) as rig:
        chat_id = await new_chat(rig)
        await rig.wait_chat_task_left(chat_id)
        assert api.titles == []
        suggested = await rig.replica.titles.suggest(await rig.chat(chat_id), "User: hi")
        assert suggested == "Fix flaky test"
        assert b"is excerpted below" in api.titles[0].body
        assert (await rig.chat(chat_id)).title == FALLBACK
        await rig.replica.usage_writer.wait_idle()
        assert sorted(kind for kind, _, _ in await rig.recorded_usage()) == ["title", "turn"]


@pytest.mark.promise("P11")
async def test_past_the_spend_limit_no_title_is_suggested(dsn: str) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api, budget=SpentBudget()) as rig:
        chat_id = await new_chat(rig)
        await rig.wait_chat_task_left(chat_id)
        with pytest.raises(UsageLimit, match="Enough"):
            await rig.replica.titles.suggest(await rig.chat(chat_id), "User: hi")
        assert api.titles == []


async def test_a_suggestion_without_a_usable_title_is_an_error(dsn: str) -> None:
    async with TitleApi.running() as api, engine_rig_with(dsn, api) as rig:
        api.default_reply = Reply(status=500, steps=(b"{}",))
        chat_id = await new_chat(rig)
        await rig.wait_chat_task_left(chat_id)
        with pytest.raises(TitleFailed):
            await rig.replica.titles.suggest(await rig.chat(chat_id), "User: hi")
