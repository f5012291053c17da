"""Chats that are long, and what they must not do: grow faster than what is said in them, or be
read whole where a page will do."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.domain.ports import ToolContext
from chatd.store.pool import Pool
from tests.support.house import House, a_house
from tests.support.streaming import Client
from tests.support.tools import GatedTool

STEPS = 20
OUTPUT_BYTES = 20_000
MANY = 20_000


class WordyTool(GatedTool):
    """Nothing of what it says can be packed."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del args
        words = (f"{hash((context.call_id, n)):x}" for n in range(OUTPUT_BYTES // 16))
        return ToolOutput(text=" ".join(words)[:OUTPUT_BYTES])


async def stored_bytes(pool: Pool) -> int:
    """All that chats are made of, live parts excepted, as it is before it is packed."""
    return await pool.fetchval(
        """SELECT (SELECT coalesce(sum(length(m::text)), 0) FROM chat_messages m)
                + (SELECT coalesce(sum(length(c::text)), 0) FROM chats c)
                + (SELECT coalesce(sum(length(u::text)), 0) FROM usage_events u)
                + (SELECT coalesce(sum(length(q::text)), 0) FROM chat_queued_messages q)
                + (SELECT coalesce(sum(length(t::text)), 0) FROM chat_tool_runs t)"""
    )


async def steps_of(house: House, count: int) -> ChatId:
    for number in range(count):
        house.calls((f"c{number}", "echo", "{}"))
    house.says("done")
    chat_id = await house.create("go")
    await house.until(chat_id, "W")
    return chat_id


@pytest.mark.covers("T12")
async def test_what_is_stored_grows_with_what_is_said_and_not_with_its_square(dsn: str) -> None:
    async with a_house(dsn, tools=[WordyTool()]) as house:
        await steps_of(house, STEPS // 2)
        half = await stored_bytes(house.pool)
        assert half > STEPS // 2 * OUTPUT_BYTES
        await house.pool.execute("DELETE FROM chats")
        await house.pool.execute("DELETE FROM usage_events")
        await steps_of(house, STEPS)
        whole = await stored_bytes(house.pool)
        assert whole < half * 2.2


async def lengthen(pool: Pool, chat: Chat, by: int) -> None:
    """As if that much had been said already."""
    words = msgspec.json.encode([{"type": "text", "text": "word"}]).decode()
    await pool.execute(
        """INSERT INTO chat_messages (chat_id, root_chat_id, id, revision, role, visibility,
                  content, content_version)
           SELECT c.id, c.root_chat_id, c.next_message_id + n, c.snapshot_version,
                  CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both', $2::json, 1
           FROM chats c, generate_series(0, $3 - 1) n WHERE c.id = $1""",
        chat.id,
        words,
        by,
    )
    await pool.execute(
        "UPDATE chats SET next_message_id = next_message_id + $2 WHERE id = $1", chat.id, by
    )


@pytest.mark.covers("T29")
@pytest.mark.promise("P8")
async def test_a_chat_of_twenty_thousand_messages_is_a_chat_like_any_other(dsn: str) -> None:
    """It is shown by its newest messages, goes on, and holds nobody up."""
    async with a_house(dsn) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        chat = await house.rests(chat_id)
        await lengthen(house.pool, chat, MANY)
        house.says("still here")
        await house.send(chat_id, "and now?")
        house.says("at once")
        other = await house.create("me too")
        await house.until(other, "W")
        chat = await house.until(chat_id, "W")
        viewer = Client(chat_id)
        await viewer.see(
            house.replica.feeds, lambda seen: seen.state.version >= chat.snapshot_version
        )
        assert viewer.state.has_older
        assert len(viewer.state.messages) <= 1000
        assert max(viewer.state.messages) == MANY + 4
