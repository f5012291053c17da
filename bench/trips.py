"""Round trips to the database for each thing the product does, counted and not assumed.

Twice: the statements that the pool sends, and the trips that a tap on the line sees. They
differ when the driver has something of its own to ask.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from chatd.bench.ground import Ground, fresh
from chatd.bench.report import Line, at_most
from chatd.bench.wire import Tap, tapped
from chatd.bench.workload import (
    OWNER,
    WORKER,
    answer,
    ask,
    commit,
    creation,
    new_change_id,
    new_chat,
    prompt,
    result,
    running_chat,
    tell_nobody,
)
from chatd.domain.chat.commands import (
    ChatCommand,
    DeleteQueued,
    EditQueued,
    FinishTurn,
    InterruptChat,
    MoveQueued,
    PromoteQueued,
    SendMessage,
)
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import NO_SLOTS, ReservedSlots
from chatd.domain.ids import QueueId
from chatd.store.chat import chats, messages, updates, workers
from chatd.store.chat.chats import ChatListFilter
from chatd.store.chat.transactor import AppliedChange, Operation, Transactor
from chatd.store.chat.workers import Heartbeat
from chatd.store.pool import Pool

_FIRST: Final = QueueId(1)


class Errand(Struct, frozen=True, kw_only=True):
    """`prepare` makes the chat that `run` works on, and is not counted."""

    name: str
    most: int
    run: Callable[["Desk", Chat], Awaitable[object]]
    prepare: Callable[["Desk"], Awaitable[Chat]]


class Desk:
    """The product's doors to the database, over one session that is counted."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transactor = Transactor(pool, tell_nobody)

    async def run(self, chat: Chat, command: ChatCommand, *, known: bool = False) -> Chat:
        operation = Operation(
            chat_id=chat.id,
            command=command,
            actor=None,
            change_id=new_change_id(),
            slots=ReservedSlots(root=WORKER),
            known=chat if known else None,
        )
        outcome = await self.transactor.run(operation)
        assert isinstance(outcome, AppliedChange), "every errand changes something"
        return outcome.chat

    async def running(self) -> Chat:
        return await running_chat(self.transactor)

    async def idle(self) -> Chat:
        return await self.finish(await self.running())

    async def ten_pending(self) -> Chat:
        pending = [replace(creation(new_chat()), slots=NO_SLOTS) for _ in range(10)]
        return [await self.transactor.run(each) for each in pending][-1].chat

    async def with_queue(self) -> Chat:
        chat = await self.running()
        for words in ("and then?", "and after that?"):
            chat = await self.send(chat, words)
        return chat

    async def send(self, chat: Chat, words: str = "Go on.", *, known: bool = True) -> Chat:
        return await self.run(chat, SendMessage(prompt=prompt(words)), known=known)

    async def finish(self, chat: Chat) -> Chat:
        return await self.run(chat, FinishTurn(**asdict(answer(chat))), known=True)


async def measure(*, quick: bool) -> list[Line]:
    del quick  # takes no time
    async with fresh() as ground, tapped(ground) as tap:
        return await _count(ground, tap)


async def _count(ground: Ground, tap: Tap) -> list[Line]:
    sent: list[str] = []
    async with ground.pool(1, on_statement=sent.append, dsn=tap.dsn) as pool:
        desk = Desk(pool)
        lines: list[Line] = []
        for errand in ERRANDS:
            for counts in (False, True):  # the first time a statement is also prepared
                chat = await errand.prepare(desk)
                statements, trips = len(sent), tap.trips
                await errand.run(desk, chat)
                statements, trips = len(sent) - statements, tap.trips - trips
                if counts:
                    note = "" if statements == trips else f"{statements} statements"
                    lines.append(
                        at_most(f"round trips, {errand.name}", trips, errand.most, note=note)
                    )
    return lines


async def _create(desk: Desk, _: Chat) -> object:
    return await desk.transactor.run(creation(new_chat()))


async def _one_step_turn(desk: Desk, chat: Chat) -> object:
    chat = await desk.send(chat)
    await messages.load_history(desk.pool, chat.id)
    return await desk.finish(chat)


async def _tool_round(desk: Desk, chat: Chat) -> object:
    chat = await commit(desk.transactor, chat, ask)
    return await commit(desk.transactor, chat, result)


async def _interrupt(desk: Desk, chat: Chat) -> object:
    return await desk.run(chat, InterruptChat(), known=True)


def _running(command: ChatCommand) -> Callable[[Desk, Chat], Awaitable[object]]:
    return lambda desk, chat: desk.run(chat, command)


async def _acquire(desk: Desk, _: Chat) -> object:
    taken = await workers.acquire(desk.pool, WORKER, roots=10, children=0)
    assert len(taken) == 10, "all that were pending"
    return taken


async def _list(desk: Desk, _: Chat) -> object:
    return await chats.list_roots(desk.pool, ChatListFilter(owner_id=OWNER))


async def _tick(desk: Desk, chat: Chat) -> object:
    return await workers.send_heartbeat(
        desk.pool, Heartbeat(worker_id=WORKER, running={chat.id: chat.epoch})
    )


ERRANDS: Final[Sequence[Errand]] = (
    Errand(name="one-step turn", most=3, prepare=Desk.idle, run=_one_step_turn),
    Errand(name="tool round", most=2, prepare=Desk.running, run=_tool_round),
    Errand(name="create", most=1, prepare=Desk.idle, run=_create),
    Errand(name="send, row known", most=1, prepare=Desk.idle, run=Desk.send),
    Errand(
        name="send, row not known",
        most=2,
        prepare=Desk.idle,
        run=lambda desk, chat: desk.send(chat, known=False),
    ),
    Errand(name="send to a busy chat", most=1, prepare=Desk.running, run=Desk.send),
    Errand(
        name="commit a step",
        most=1,
        prepare=Desk.running,
        run=lambda desk, chat: commit(desk.transactor, chat, answer),
    ),
    Errand(name="finish a turn", most=1, prepare=Desk.running, run=Desk.finish),
    Errand(name="finish, next in queue", most=1, prepare=Desk.with_queue, run=Desk.finish),
    Errand(name="interrupt", most=1, prepare=Desk.running, run=_interrupt),
    Errand(
        name="edit a queued message",
        most=2,
        prepare=Desk.with_queue,
        run=_running(EditQueued(id=_FIRST, prompt=prompt("No, this."))),
    ),
    Errand(
        name="move a queued message",
        most=2,
        prepare=Desk.with_queue,
        run=_running(MoveQueued(id=_FIRST, before=None)),
    ),
    Errand(
        name="promote a queued message",
        most=2,
        prepare=Desk.with_queue,
        run=_running(PromoteQueued(id=_FIRST)),
    ),
    Errand(
        name="delete a queued message",
        most=2,
        prepare=Desk.with_queue,
        run=_running(DeleteQueued(id=_FIRST)),
    ),
    Errand(
        name="acquire ten",
        most=1,
        prepare=Desk.ten_pending,
        run=_acquire,
    ),
    Errand(name="tick", most=1, prepare=Desk.running, run=_tick),
    Errand(
        name="what changed since",
        most=1,
        prepare=Desk.running,
        run=lambda desk, chat: chats.load_changes_since(desk.pool, chat.id, 0),
    ),
    Errand(
        name="history",
        most=1,
        prepare=Desk.running,
        run=lambda desk, chat: messages.load_history(desk.pool, chat.id),
    ),
    Errand(
        name="page of messages",
        most=1,
        prepare=Desk.running,
        run=lambda desk, chat: updates.page(desk.pool, chat.id, updates.Range()),
    ),
    Errand(
        name="list of chats",
        most=1,
        prepare=Desk.running,
        run=_list,
    ),
)
