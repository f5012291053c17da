"""Titles: given beside the first turn, once, and never over a person's own."""

import msgspec
import pytest

from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.ids import ChatId
from chatd.domain.prompt.titles import fallback_title
from chatd.store.chat import chats
from tests.support.house import House, a_house_with
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, Recorded, Reply

SAID = "please fix the flaky test in main.py for me"
FALLBACK = fallback_title(SAID)


class Namer(FakeCompatible):
    """Knows a request for a title when it sees one, and answers it out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.titles: list[Recorded] = []
        self.gate: Gate | None = None
        self.first: Reply | None = None
        self.usual = Reply(steps=(_title("Fix flaky test"), chunk(finish="stop"), DONE))

    def answer(self, request: Recorded) -> Reply:
        if b"Name the chat" not in request.body:
            return super().answer(request)
        self.titles.append(request)
        if (refusal := self.refuse(request)) is not None:
            return refusal
        reply, self.first = self.first or self.usual, None
        return reply if self.gate is None else Reply(steps=(self.gate, *reply.steps))


def _title(text: str) -> bytes:
    return chunk(content=msgspec.json.encode({"title": text}).decode())


async def new_chat(house: House) -> ChatId:
    house.says("on it")
    return await house.create(SAID, title=FALLBACK)


async def named(house: House) -> None:
    await house.events.wait("background_task_done", task="title")


async def test_a_new_chat_is_named_after_its_first_message(dsn: str) -> None:
    async with Namer.running() as api, a_house_with(dsn, api, titles=True) as house:
        chat_id = await new_chat(house)
        rested = await house.rests(chat_id)
        await named(house)
        chat = await house.chat(chat_id)
        assert chat.title == "Fix flaky test"
        assert SAID.encode() in api.titles[0].body
        assert await house.transcript(chat_id) == [f"user: {SAID}", "assistant: on it"]
        assert sorted(kind for kind, _, _ in await house.booked()) == ["title", "turn"]
        # Nothing that viewers resume by has moved for it.
        assert chat.snapshot_version == 2
        assert chat.updated_at == rested.updated_at


async def test_only_the_first_turn_is_named_after(dsn: str) -> None:
    async with Namer.running() as api, a_house_with(dsn, api, titles=True) as house:
        chat_id = await new_chat(house)
        await house.rests(chat_id, epoch=1)
        await named(house)
        house.says("sure")
        await house.send(chat_id, "and another one")
        await house.rests(chat_id, epoch=3)
        assert len(api.titles) == 1


@pytest.mark.covers("O12")
async def test_a_title_that_a_person_has_given_stays(dsn: str) -> None:
    """Also one that is given while the model thinks of another."""
    async with Namer.running() as api, a_house_with(dsn, api, titles=True) as house:
        house.says("on it")
        mine = await house.create(SAID, title="Mine")
        await house.rests(mine)
        assert api.titles == []
        api.gate = Gate()
        chat_id = await new_chat(house)
        await api.gate.reached.wait()
        await chats.set_title(house.pool, chat_id, was=FALLBACK, now="Mine too")
        api.gate.open()
        await named(house)
        assert (await house.chat(chat_id)).title == "Mine too"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, steps=(b"{}",)),
        Reply(steps=(_title(""), chunk(finish="stop"), DONE)),
        Reply(steps=(_title("x"),)),
    ],
    ids=["fails", "says nothing", "breaks off"],
)
async def test_a_title_that_does_not_come_is_nobodys_loss(dsn: str, reply: Reply) -> None:
    async with Namer.running() as api, a_house_with(dsn, api, titles=True) as house:
        api.usual = reply
        chat_id = await new_chat(house)
        assert (await house.rests(chat_id)).state == "W"
        await named(house)
        assert (await house.chat(chat_id)).title == FALLBACK


async def test_a_model_that_takes_no_temperature_is_asked_without(dsn: str) -> None:
    refused = {"error": {"message": "Unsupported parameter: temperature"}}
    async with Namer.running() as api, a_house_with(dsn, api, titles=True) as house:
        api.first = Reply(
            status=400,
            headers={"content-type": "application/json"},
            steps=(msgspec.json.encode(refused),),
        )
        chat_id = await new_chat(house)
        await house.rests(chat_id)
        await named(house)
        assert (await house.chat(chat_id)).title == "Fix flaky test"
        assert ["temperature" in request.json for request in api.titles] == [True, False]


class Broke:
    """Satisfies `ports.Budget`."""

    def __init__(self) -> None:
        self.asked = 0

    async def check(self, chat: Chat) -> ChatError | None:
        del chat
        self.asked += 1
        return ChatError(kind="usage_limit", message="Enough.")


@pytest.mark.promise("P11")
async def test_past_the_limit_no_model_is_asked_for_a_title(dsn: str) -> None:
    budget = Broke()
    async with Namer.running() as api, a_house_with(dsn, api, titles=True, budget=budget) as house:
        chat_id = await new_chat(house)
        await house.rests(chat_id)
        await named(house)
        assert budget.asked == 2
        assert api.titles == []
        assert (await house.chat(chat_id)).title == FALLBACK
