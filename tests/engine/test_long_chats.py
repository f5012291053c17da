"""Long chats: storage grows linearly, and only a page is read where a page is enough."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.domain.ports import ToolContext
from chatd.store.pool import Pool
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.stream_replica import StreamClient
from tests.support.tools import GatedTool

STEPS = 20
OUTPUT_BYTES = 20_000
MESSAGE_COUNT = 20_000


class IncompressibleTool(GatedTool):
    """Its output cannot be compressed."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del args
        text = (f"{hash((context.call_id, n)):x}" for n in range(OUTPUT_BYTES // 16))
        return ToolOutput(text=" ".join(text)[:OUTPUT_BYTES])


async def stored_bytes(pool: Pool) -> int:
    """Size of all rows of chats without live parts, before compression."""
    return await pool.fetchval(
        """SELECT (SELECT coalesce(sum(length(m::text)), 0) FROM chat_messages m)
                + (SELECT coalesce(sum(length(c::text)), 0) FROM chats c)
                + (SELECT coalesce(sum(length(u::text)), 0) FROM usage_events u)
                + (SELECT coalesce(sum(length(q::text)), 0) FROM chat_queued_messages q)
                + (SELECT coalesce(sum(length(t::text)), 0) FROM chat_tool_runs t)"""
    )


async def run_steps(rig: EngineRig, count: int) -> ChatId:
    for number in range(count):
        rig.call_tools((f"c{number}", "echo", "{}"))
    chat_id = await rig.ask("go", "done")
    await rig.wait_state(chat_id, "W")
    return chat_id


@pytest.mark.covers("T12")
async def test_stored_bytes_grow_linearly_with_the_chat(dsn: str) -> None:
    async with engine_rig(dsn, tools=[IncompressibleTool()]) as rig:
        await run_steps(rig, STEPS // 2)
        half = await stored_bytes(rig.pool)
        assert half > STEPS // 2 * OUTPUT_BYTES
        await rig.pool.execute("DELETE FROM chats")
        await rig.pool.execute("DELETE FROM usage_events")
        await run_steps(rig, STEPS)
        whole = await stored_bytes(rig.pool)
        assert whole < half * 2.2


async def lengthen(pool: Pool, chat: Chat, by: int) -> None:
    """Insert that many messages."""
    text = msgspec.json.encode([{"type": "text", "text": "word"}]).decode()
    await pool.execute(
        """INSERT INTO chat_messages (chat_id, root_chat_id, id, revision, role, visibility,
                  content, content_version)
           SELECT c.id, c.root_chat_id, c.next_message_id + n, c.snapshot_version,
                  CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both', $2::json, 1
           FROM chats c, generate_series(0, $3 - 1) n WHERE c.id = $1""",
        chat.id,
        text,
        by,
    )
    await pool.execute(
        "UPDATE chats SET next_message_id = next_message_id + $2 WHERE id = $1", chat.id, by
    )


@pytest.mark.covers("T29")
@pytest.mark.promise("P8")
async def test_a_chat_of_twenty_thousand_messages_works_and_delays_no_other_chat(
    rig: EngineRig,
) -> None:
    """A viewer gets its newest messages."""
    chat_id = await rig.ask("hi", "hello")
    chat = await rig.wait_chat_task_left(chat_id)
    await lengthen(rig.pool, chat, MESSAGE_COUNT)
    rig.answer("still here")
    await rig.send(chat_id, "and now?")
    other = await rig.ask("me too", "at once")
    await rig.wait_state(other, "W")
    chat = await rig.wait_state(chat_id, "W")
    viewer = StreamClient(chat_id)
    await viewer.see(rig.replica.feeds, lambda seen: seen.state.version >= chat.snapshot_version)
    assert viewer.state.has_older
    assert len(viewer.state.messages) <= 1000
    assert max(viewer.state.messages) == MESSAGE_COUNT + 4
