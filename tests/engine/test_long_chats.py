"""Long chats: storage grows linearly, and only a page is read where a page is enough."""

from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChangeId, ChatId
from chatd.domain.ports import ToolContext
from chatd.engine.kept_histories import KeptHistories, KeptHistory
from chatd.store.database.pool import Pool
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


def sent_texts(rig: EngineRig) -> list[str]:
    """What the last request said, without the instructions."""
    texts: list[str] = []
    for each in msgspec.json.decode(rig.api.requests[-1].body)["messages"]:
        content = each["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part["text"] for part in parts if "text" in part]
    return texts


async def take_turn(rig: EngineRig, chat_id: ChatId, words: str, answer: str) -> None:
    rig.answer(answer)
    chat = await rig.send(chat_id, words)
    await rig.wait_chat_task_left(chat_id, epoch=chat.epoch)


async def test_a_kept_history_follows_new_messages_edits_and_summaries(rig: EngineRig) -> None:
    kept = rig.replica.kept_histories
    chat_id = await rig.ask("one", "first")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    await take_turn(rig, chat_id, "two", "second")
    await take_turn(rig, chat_id, "three", "third")
    assert sent_texts(rig)[-5:] == ["one", "first", "two", "second", "three"]
    assert len(kept) == 1
    rig.answer("fourth")
    chat = await rig.edit(chat_id, "rather this")
    await rig.wait_chat_task_left(chat_id, epoch=chat.epoch)
    assert sent_texts(rig)[-1] == "rather this"
    assert "three" not in sent_texts(rig)
    rig.answer("a summary of it all")
    chat = await rig.compact(chat_id)
    await rig.wait_chat_task_left(chat_id, epoch=chat.epoch)
    assert len(kept) == 0, "most of it is no longer needed"
    await take_turn(rig, chat_id, "five", "fifth")
    assert "first" not in sent_texts(rig)
    assert "a summary of it all" in "".join(sent_texts(rig))
    assert len(kept) == 1


async def test_kept_histories_stay_within_their_budget(rig: EngineRig) -> None:
    chat_id = await rig.ask("one", "first")
    chat = await rig.wait_chat_task_left(chat_id, epoch=1)
    history = await rig.history(chat_id)
    chats = [msgspec.structs.replace(chat, id=ChatId(UUID(int=number))) for number in range(1, 5)]
    size = KeptHistory(chat, history).measure()
    kept = KeptHistories(max_bytes=3 * size)
    for one in (*chats[:3], chats[0], chats[3]):
        kept.keep(KeptHistory(one, list(history)))
    assert [kept.find(one) is not None for one in chats] == [True, False, True, True]
    assert kept.size == 3 * size
    for one in chats:
        kept.forget(one.id)
    assert (len(kept), kept.size) == (0, 0)


@pytest.mark.parametrize("why", ["another past", "too old", "added to since"])
async def test_a_history_of_another_past_is_not_used(rig: EngineRig, why: str) -> None:
    chat_id = await rig.ask("one", "first")
    chat = await rig.wait_chat_task_left(chat_id, epoch=1)
    history = KeptHistory(chat, await rig.history(chat_id))
    kept = KeptHistories()
    kept.keep(history)
    assert kept.find(chat) is history
    match why:
        case "another past":
            changes = tuple(ChangeId(number + 5) for number in chat.recent_changes)
            chat = msgspec.structs.replace(chat, recent_changes=changes)
        case "too old":
            version = chat.snapshot_version + len(chat.recent_changes)
            chat = msgspec.structs.replace(chat, snapshot_version=version)
        case _:
            later = msgspec.structs.replace(
                history.messages[-1], revision=chat.snapshot_version + 1
            )
            history.messages.append(later)
    assert kept.find(chat) is None


@pytest.mark.covers("T29")
@pytest.mark.promise("P8")
async def test_a_chat_of_twenty_thousand_messages_works_and_delays_no_other_chat(
    rig: EngineRig,
) -> None:
    """A viewer gets its newest messages."""
    chat_id = await rig.ask("hi", "hello")
    chat = await rig.wait_chat_task_left(chat_id)
    await lengthen(rig.pool, chat, MESSAGE_COUNT)
    rig.replica.kept_histories.forget(chat_id)
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
