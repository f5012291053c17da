"""The server commits and the reply is lost: a retry finds one copy, its own."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import CommitStep
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.errors import StaleFence, Unavailable
from chatd.domain.ids import ChangeId, RequestId
from chatd.store.chat import chats
from chatd.store.chat.apply import APPLY, APPLY_STEP, INSERT_ROOT_CHAT
from chatd.store.chat.change_writer import apply
from chatd.store.chat.operation import AppliedChange, Operation, OperationOutcome
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.change_log import stored_prompts
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, OWNER, draft, prompt, text
from tests.support.operations import (
    archiving,
    create_chat,
    ignore_applied,
    new_chat,
    operation,
    sending,
    tree,
)
from tests.support.proxy import Proxy
from tests.support.stored import stored

pytestmark = pytest.mark.promise("P1")

KEY = IdempotencyKey(scope=OWNER, id=RequestId(UUID(int=9)), op="send", fingerprint="second")


class Line:
    """A replica behind a proxy that fails at the statement a test names."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.told: list[AppliedChange] = []
        link = ConnectConfig(dsn=proxy.dsn)
        # One session: what was prepared on it stays prepared, so a statement is one message.
        self.pool = Pool(PoolConfig(connect=link, max_size=1), on_statement=self._on_statement)
        self.transactor = Transactor(self.pool, self.tell)
        self._at: tuple[str, Callable[[], None]] | None = None
        self._there = asyncio.Event()

    def tell(self, applied: AppliedChange) -> None:
        self.told.append(applied)

    def _on_statement(self, query: str) -> None:
        if self._at is not None and self._at[0] == query:
            _, fail = self._at
            self._at = None
            fail()
            self._there.set()

    def fails_at(self, query: str, how: Callable[[], None]) -> None:
        self._there.clear()
        self._at = (query, how)

    async def has_failed(self) -> None:
        async with asyncio.timeout(30):
            await self._there.wait()


@pytest.fixture
async def line(proxy: Proxy) -> AsyncGenerator[Line]:
    line = Line(proxy)
    yield line
    await line.pool.close()


async def started(line: Line, number: int = 1) -> Chat:
    """A chat owned by this replica, and a session with all statements prepared."""
    made = await create_chat(line.transactor, new_chat(number), ChangeId(number))
    applied = await line.transactor.run(sending("first", ChangeId(number + 100), made.chat.id))
    assert isinstance(applied, AppliedChange)
    late = commit_step(made.chat, answer(made.chat))
    assert await apply(line.pool, late, ChangeId(0)) is None, "only to have it prepared"
    line.told.clear()
    return applied.chat


def answer(chat: Chat) -> CommitStep:
    return CommitStep(fence=Fence.of(chat), messages=(draft("assistant", text("It is so.")),))


def answering(chat: Chat, change_id: ChangeId) -> Operation:
    return operation(answer(chat), change_id, chat.id, known=chat)


async def lose_reply(
    line: Line, near: Pool, work: Awaitable[object], *, of: str, version: int
) -> None:
    """The statement is applied and its reply is lost."""
    line.fails_at(of, line.proxy.hold_replies)
    async with asyncio.TaskGroup() as group:
        trying = group.create_task(fails(work))
        await line.has_failed()
        await eventually(lambda: is_at(near, version))
        line.proxy.cut()
    assert trying.result().maybe_applied


async def fails(work: Awaitable[object]) -> Unavailable:
    with pytest.raises(Unavailable) as failure:
        await work
    return failure.value


async def is_at(near: Pool, version: int) -> bool:
    newest = await near.fetchval("SELECT max(snapshot_version) FROM chats")
    return newest == version


def replayed(outcome: OperationOutcome) -> AppliedChange:
    assert isinstance(outcome, AppliedChange)
    assert outcome.replayed
    return outcome


async def test_an_answer_with_a_lost_reply_is_stored_once(line: Line, pool: Pool) -> None:
    chat = await started(line)
    step = answering(chat, ChangeId(7))
    await lose_reply(line, pool, line.transactor.run(step), of=APPLY_STEP.text, version=3)

    again = replayed(await line.transactor.run(step))

    assert again.chat.snapshot_version == 3
    assert [message.content for message in again.messages] == [(text("It is so."),)]
    found = (await stored(pool))[chat.id]
    assert [message.role for message in found.messages] == ["user", "assistant"]
    assert line.told == [again], "the callback runs at last"


async def test_an_answer_repeated_under_another_id_is_refused_by_its_fence(
    line: Line, pool: Pool
) -> None:
    chat = await started(line)
    step = answering(chat, ChangeId(7))
    await lose_reply(line, pool, line.transactor.run(step), of=APPLY_STEP.text, version=3)

    with pytest.raises(StaleFence):
        await line.transactor.run(answering(chat, ChangeId(8)))
    assert await is_at(pool, 3)


async def test_a_message_with_a_lost_reply_is_queued_once(line: Line, pool: Pool) -> None:
    chat = await started(line)
    send = replace(sending("second", ChangeId(7)), known=chat)
    await lose_reply(line, pool, line.transactor.run(send), of=APPLY.text, version=3)

    replayed(await line.transactor.run(send))

    assert await stored_prompts(pool, chat.id) == ["hello 1", "first", "second"]
    assert await is_at(pool, 3)


async def test_a_run_with_a_lost_reply_still_reports_its_change(line: Line, pool: Pool) -> None:
    chat = await started(line)
    run = line.transactor.start(replace(sending("second", ChangeId(7)), known=chat))
    await lose_reply(line, pool, run.attempt(), of=APPLY.text, version=3)
    await Transactor(pool, ignore_applied).run(sending("third", ChangeId(8)))

    again = replayed(await run.attempt())

    assert again.chat.snapshot_version == 4
    assert again.change is not None
    assert again.change.after.snapshot_version == 3
    assert [item.prompt for item in again.change.enqueue] == [prompt("second")]
    assert again.loaded == LoadedChat(chat=chat)


async def test_a_message_that_never_arrived_is_written_by_the_next_try(
    line: Line, pool: Pool
) -> None:
    chat = await started(line)
    send = replace(sending("second", ChangeId(7)), known=chat)
    line.fails_at(APPLY.text, line.proxy.stall)
    async with asyncio.TaskGroup() as group:
        trying = group.create_task(fails(line.transactor.run(send)))
        await line.has_failed()
        line.proxy.cut()
    assert trying.result().maybe_applied, "the outcome is unknown"
    line.proxy.resume()

    outcome = await line.transactor.run(send)

    assert isinstance(outcome, AppliedChange)
    assert not outcome.replayed
    assert await stored_prompts(pool, chat.id) == ["hello 1", "first", "second"]


async def test_a_key_finds_the_message_however_much_has_happened_since(
    line: Line, pool: Pool
) -> None:
    """The row remembers the last few changes only; a key is kept for a day. And the client may
    come back to another replica, which knows of no change id."""
    chat = await started(line)
    send = replace(sending("second", ChangeId(7)), known=chat, request=KEY)
    await lose_reply(line, pool, line.transactor.run(send), of=APPLY.text, version=3)
    elsewhere = Transactor(pool, ignore_applied)
    for number in range(200, 212):
        await elsewhere.run(sending(f"more {number}", ChangeId(number)))

    again = replayed(await elsewhere.run(replace(send, change_id=ChangeId(8), known=None)))

    assert again.request is not None
    assert again.request.version == 3
    assert (await stored_prompts(pool, chat.id)).count("second") == 1


async def test_a_chat_creation_with_a_lost_reply_creates_one_chat(line: Line, pool: Pool) -> None:
    await started(line, 1)
    command = new_chat(2)
    creating = create_chat(line.transactor, command, ChangeId(2))
    line.fails_at(INSERT_ROOT_CHAT.text, line.proxy.hold_replies)
    async with asyncio.TaskGroup() as group:
        trying = group.create_task(fails(creating))
        await line.has_failed()
        await eventually(lambda: chats.get(pool, HARNESS, command.id))
        line.proxy.cut()
    assert trying.result().maybe_applied

    again = await create_chat(line.transactor, command, ChangeId(2))

    assert again.replayed
    assert again.chat.snapshot_version == 1
    assert await stored_prompts(pool, command.id) == ["hello 2"]


async def test_a_tree_archived_with_a_lost_reply_is_archived_once(line: Line, pool: Pool) -> None:
    root = (await started(line)).id
    child = (await create_chat(line.transactor, new_chat(2, root), ChangeId(2))).chat.id
    archive = archiving(root, ChangeId(7))
    await lose_reply(line, pool, line.transactor.run(archive), of="COMMIT", version=3)

    again = tree(await line.transactor.run(archive))

    assert [applied.replayed for applied in again] == [True, True]
    found = await stored(pool)
    assert {
        chat: (row.chat.archived, row.chat.snapshot_version) for chat, row in found.items()
    } == {
        root: (True, 3),
        child: (True, 2),
    }


async def test_a_change_under_the_row_lock_with_a_lost_reply_is_stored_once(
    line: Line, pool: Pool
) -> None:
    """Two conflicts, then the row lock, then the reply to the commit is lost."""
    chat = await started(line)
    rival = Transactor(pool, ignore_applied)
    send = sending("second", ChangeId(7))
    line.fails_at(APPLY.text, line.proxy.stall)
    async with asyncio.TaskGroup() as group:
        trying = group.create_task(fails(line.transactor.run(send)))
        await line.has_failed()
        await rival.run(sending("faster", ChangeId(8)))
        line.fails_at(APPLY.text, line.proxy.stall)
        line.proxy.resume()
        await line.has_failed()
        await rival.run(sending("fastest", ChangeId(9)))
        line.fails_at("COMMIT", line.proxy.hold_replies)
        line.proxy.resume()
        await line.has_failed()
        await eventually(lambda: is_at(pool, 5))
        line.proxy.cut()
    assert trying.result().maybe_applied

    replayed(await line.transactor.run(send))

    words = await stored_prompts(pool, chat.id)
    assert words == ["hello 1", "first", "faster", "fastest", "second"]
