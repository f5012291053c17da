"""Content comes back byte for byte, whichever statement stored it.

A provider's prompt cache and its signatures depend on every byte.
"""

import pytest
from msgspec import Raw

from chatd.domain.chat.commands import SendMessage
from chatd.domain.chat.messages import UserInput, encode_parts, pending_calls
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, UnknownPart
from chatd.domain.chat.row import ChatError
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import send_message
from chatd.domain.chat.worker_transitions import commit_step, fail_turn, finish_turn, require_action
from chatd.domain.ids import ToolCallId
from chatd.store.chat import chats, message_pages, messages
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, HARNESS, OWNER, WORKER, call, draft, text
from tests.support.outcomes import present
from tests.support.seeds import CLIENT_TOOL, Seed, failing, step
from tests.support.store import insert_seed, open_chat, write


def args(raw: bytes) -> ToolCallPart:
    """A provider-executed call, which needs no result."""
    return ToolCallPart(
        tool_call_id=ToolCallId("c1"), tool_name="search", args=Raw(raw), provider_executed=True
    )


AWKWARD: dict[str, Part] = {
    "order, spacing and repeated keys": args(b'{ "b" : 1,\t"a":[1 , 2 ],\n "b": 2 }'),
    "numbers as they were written": args(b"[1.0, 1e400, -0, 123456789012345678901234567890]"),
    "escapes as they were written": args(rb'"\u0041\/\u00e9\ud83d\ude00"'),
    "an escaped NUL": args(rb'{"a":"\u0000"}'),
    "NUL in words": TextPart(text="a\0b"),
    "words that look like SQL and JSON": TextPart(
        text='\'); DROP TABLE chats; -- {"a": \\u0000 $1'
    ),
    "characters of every length": TextPart(text="aé€😀\u2028\ufeff\ufffd"),
    "a megabyte": TextPart(text="ß" * 500_000 + "."),
    "a kind of part that is not known yet": UnknownPart(
        raw=Raw(b'{"type":"scent", "of" : ["tea",  1]}')
    ),
    "a part that lost its type": UnknownPart(raw=Raw(b"[ null ]")),
}


LAST_MESSAGE = "SELECT content::text FROM chat_messages ORDER BY id DESC LIMIT 1"
LAST_QUEUED = "SELECT content::text FROM chat_queued_messages ORDER BY id DESC LIMIT 1"


async def comes_back(pool: Pool, sent: UserInput) -> None:
    """Through every statement that reads the newest message."""
    *_, last = await messages.load_history(pool, HARNESS, CHAT)
    page = present(
        await message_pages.load_page(pool, HARNESS, CHAT, message_pages.MessageRange(limit=1))
    )
    [paged] = page.messages
    loaded = await chats.load_for_transition(pool, HARNESS, CHAT, "chats.write", message_id=last.id)
    whole, newer = (
        await chats.load_changes_since(pool, HARNESS, CHAT, 0),
        await chats.load_changes_since(pool, HARNESS, CHAT, 1),
    )
    assert loaded is not None
    assert whole is not None
    assert newer is not None
    assert last.content == sent.content
    assert [paged, loaded.target, whole.messages[-1], newer.messages[-1]] == [last] * 4


@pytest.mark.covers("loop-37")
@pytest.mark.parametrize("part", AWKWARD.values(), ids=AWKWARD.keys())
async def test_content_survives_appending_queueing_and_promotion(pool: Pool, part: Part) -> None:
    sent = SendMessage(
        prompt=UserInput(content=(text("so"), part, text("it is")), created_by=OWNER)
    )
    written = encode_parts(sent.prompt.content)
    chat = await insert_seed(pool, Seed(state=State.W))

    appended = await write(pool, send_message(chat, sent, WORKER))
    assert await pool.fetchval(LAST_MESSAGE) == written
    assert appended.messages[-1].content == sent.prompt.content
    await comes_back(pool, sent.prompt)

    queued = await write(pool, send_message(appended.chat, sent, None))
    assert await pool.fetchval(LAST_QUEUED) == written
    loaded = present(
        await chats.load_for_transition(pool, HARNESS, CHAT, "chats.write", with_queue=True)
    )
    assert [item.content for item in loaded.queue] == [sent.prompt.content]

    answer = draft("assistant", text("One."))
    promoted = await write(pool, finish_turn(queued.chat, step(queued.chat, answer)))
    assert await pool.fetchval(LAST_MESSAGE) == written
    assert promoted.messages[-1].content == sent.prompt.content
    await comes_back(pool, sent.prompt)


async def test_a_lone_surrogate_is_replaced_and_reported_as_stored(pool: Pool) -> None:
    """A surrogate pair becomes one character."""
    sent = SendMessage(
        prompt=UserInput(content=(TextPart(text="a\ud800b\ud83d\ude00"),), created_by=OWNER)
    )
    chat = await insert_seed(pool, Seed(state=State.W))
    appended = await write(pool, send_message(chat, sent, WORKER))
    assert appended.messages[-1].content == (text("a\ufffdb😀"),)
    assert (await messages.load_history(pool, HARNESS, CHAT))[-1] == appended.messages[-1]

    queued = await write(pool, send_message(appended.chat, sent, None))
    answer = draft("assistant", text("One."))
    promoted = await write(pool, finish_turn(queued.chat, step(queued.chat, answer)))
    assert promoted.messages[-1].content == (text("a\ufffdb😀"),)
    assert (await messages.load_history(pool, HARNESS, CHAT))[-1] == promoted.messages[-1]


async def test_an_error_that_quotes_a_lone_surrogate_can_be_stored(pool: Pool) -> None:
    """Otherwise the turn could neither continue nor fail."""
    chat = await insert_seed(pool, Seed(state=State.R0))
    failure = failing(step(chat), ChatError(message="cannot read \udcff\0", detail="\ud800"))
    failed = await write(pool, fail_turn(chat, failure))
    assert failed.chat.last_error == ChatError(message="cannot read \ufffd\0", detail="\ufffd")
    assert await chats.get(pool, HARNESS, CHAT) == failed.chat


async def test_a_call_id_with_a_lone_surrogate_is_the_same_in_row_and_history(
    pool: Pool,
) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0))
    asked = draft("assistant", call("c\ud800", "to\udc00"))
    done = await write(pool, commit_step(chat, step(chat, asked)))
    assert await chats.get(pool, HARNESS, CHAT) == done.chat
    found = pending_calls(await messages.load_history(pool, HARNESS, CHAT))
    assert [(it.tool_call_id, it.tool_name) for it in found] == [
        (it.id, it.name) for it in done.chat.pending_calls
    ]


async def test_arguments_for_a_client_are_the_models_own_bytes(pool: Pool) -> None:
    written = '{ "b" : 1, "a":"\\u0000", "b": 2 }'
    chat = await insert_seed(pool, Seed(state=State.R0))
    asked = draft("assistant", call("c1", CLIENT_TOOL, written))
    done = await write(pool, require_action(chat, step(chat, asked)))
    [stored_call] = (
        await chats.load_changes_since(pool, HARNESS, CHAT, 0) or done
    ).chat.pending_calls
    assert stored_call.args == Raw(written.encode())
    assert await chats.get(pool, HARNESS, CHAT) == done.chat


async def test_a_title_may_quote_anything(pool: Pool) -> None:
    chat = await open_chat(pool, CHAT.int, title="a\0b\ud800")
    assert chat.title == "a\ufffdb\ufffd"
    renamed = present(await chats.set_title(pool, HARNESS, CHAT, expected=chat.title, title="\0"))
    assert renamed.title == "\ufffd"


async def test_client_tools_and_labels_are_stored(pool: Pool) -> None:
    tools = Raw(b'[ {"name":"ask", "x" : 1.0} ]')
    labels = {"team": "a'b", "ключ": "значение"}
    chat = await open_chat(pool, CHAT.int, client_tools=tools, labels=labels, mode="plan")
    assert (chat.client_tools, chat.labels, chat.mode) == (tools, labels, "plan")
    assert await chats.get(pool, HARNESS, CHAT) == chat
