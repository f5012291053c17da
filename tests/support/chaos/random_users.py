"""Users that send, interrupt, edit, reorder and delete at random while replicas fail.

Each user has one chat at a time. A request without a reply is repeated with the same key at another
replica; the outcome is recorded by the judge.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Final, get_args
from uuid import UUID

from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ChatId
from tests.support.chaos.replica_orders import OrderKind, OrderReply
from tests.support.chaos.replicas import ReplicaGone
from tests.support.chaos.roaming_viewers import RoamingViewers
from tests.support.chaos.running_replicas import RunningReplicas
from tests.support.chaos.transcript_judge import SentMessage, TranscriptJudge

REPLY_TIMEOUT_S: Final = 8.0

ACTION_WEIGHTS: Final = {
    "queue": 30,
    "steer": 12,
    "interrupt": 10,
    "rollback": 8,
    "reject": 6,
    "stop": 8,
    "edit": 8,
    "promote": 6,
    "move": 4,
    "delete": 4,
    "edit_queued": 6,
}
"""The actions of a user on a chat, and how often each occurs."""


class RandomUsers:
    def __init__(
        self,
        replicas: RunningReplicas,
        judge: TranscriptJudge,
        viewers: RoamingViewers,
        dice: random.Random,
        *,
        has_subagents: bool = False,
    ) -> None:
        self._replicas = replicas
        self._judge = judge
        self._viewers = viewers
        self._dice = dice
        self._kinds = ("m", "m", "once", *(("team",) * 3 if has_subagents else ()))
        self._names = 0
        self.actions: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    async def run_user(self) -> None:
        while True:
            chat = ChatId(self._uuid())
            async with asyncio.TaskGroup() as group:
                await self._say(chat, "create")
                watching = [
                    group.create_task(self._viewers.watch(chat))
                    for _ in range(self._dice.choice((1, 1, 2)))
                ]
                for _ in range(self._dice.randint(0, 6)):
                    await asyncio.sleep(self._dice.choice((0, 0, 0.1, 1.0, 3.0)))
                    await self._do(chat)
                await asyncio.sleep(self._dice.uniform(0, 3))
                for viewer in watching:
                    viewer.cancel()

    async def _do(self, chat: ChatId) -> None:
        deed = self._dice.choices(list(ACTION_WEIGHTS), weights=list(ACTION_WEIGHTS.values()))[0]
        self.actions[deed] += 1
        match deed:
            case "stop":
                await self._stop(chat)
            case "edit":
                await self._edit(chat)
            case "promote" | "move" | "delete" | "edit_queued":
                await self._reorder(chat, deed)
            case _:
                for way in get_args(WhenBusy):
                    if way == deed:
                        await self._say(chat, "send", way)

    # Sending

    async def _say(self, chat: ChatId, do: OrderKind, way: WhenBusy = "queue") -> None:
        if way in ("interrupt", "steer"):
            self._judge.record_hurry(chat)
        sent = self._judge.record_send(chat, self._words())
        await self._until_answered(sent, do, when_busy=way)

    async def _edit(self, chat: ChatId) -> None:
        """Edit one of the user's visible messages. This clears the queue."""
        own = [row.id for row in self._viewers.state(chat).messages.values() if row.role == "user"]
        if own:
            self._judge.record_queue_cleared(chat)
            sent = self._judge.record_send(chat, self._words())
            await self._until_answered(sent, "edit", target=self._dice.choice(own))

    async def _until_answered(self, sent: SentMessage, do: OrderKind, **fields: object) -> None:
        key, certain = self._uuid(), True
        while True:
            sent.asked()
            try:
                done = await self._ask(do, sent.chat, text=sent.text, key=key, **fields)
            except (ReplicaGone, TimeoutError):
                certain = False  # the request may still arrive
                await asyncio.sleep(0.1)
                continue
            if done.error is None:
                sent.answered(done.state)
                return
            self.refusals[done.error] += 1
            if not _passes(done):
                sent.refused = certain
                return
            await asyncio.sleep(0.1)

    # The queue

    async def _reorder(self, chat: ChatId, deed: str) -> None:
        """Change a visible queued message; it may have left the queue by now."""
        queue = self._viewers.state(chat).queue
        if not queue:
            return
        item = self._dice.choice(queue)
        words = "".join(part.text for part in item.content if isinstance(part, TextPart))
        self._judge.record_queued(chat, item.id, words)
        match deed:
            case "promote":
                self._judge.record_hurry(chat)
                await self._once("promote_queued", chat, target=item.id)
            case "move":
                await self._once("move_queued", chat, target=item.id)
            case "delete":
                self._judge.record_removal(chat, item.id)
                if await self._once("delete_queued", chat, target=item.id) is None:
                    self._judge.record_unknown(chat, item.id)
            case _:
                await self._edit_queued(chat, item.id)

    async def _edit_queued(self, chat: ChatId, item: int) -> None:
        """The queue may have changed since the user saw it."""
        self._judge.record_removal(chat, item)
        sent = self._judge.record_send(chat, self._words())
        self._judge.record_queued(chat, item, sent.text)
        sent.asked()
        done = await self._once("edit_queued", chat, target=item, text=sent.text)
        if done is None:
            self._judge.record_unknown(chat, item)
        elif done.error is None:
            sent.answered(done.state)

    async def _stop(self, chat: ChatId) -> None:
        self._judge.record_interrupt(chat)
        await self._once("interrupt", chat)

    async def _once(self, do: OrderKind, chat: ChatId, **fields: object) -> OrderReply | None:
        """None if the outcome is unknown: the write may still arrive."""
        with suppress(ReplicaGone, TimeoutError):
            done = await self._ask(do, chat, **fields)
            if done.error is not None:
                self.refusals[done.error] += 1
                if _passes(done):
                    return None
            return done
        return None

    async def _ask(self, do: OrderKind, chat: ChatId, **fields: object) -> OrderReply:
        replica = self._replicas.any()
        if replica is None:
            raise ReplicaGone
        said = f"{do} {fields} at {replica.setup.name}"
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                done = await replica.order(do, chat, **fields)
        except BaseException as error:
            self._judge.add_note(chat, f"{said}: {error!r}")
            raise
        self._judge.add_note(chat, f"{said}: {done.error or done.state}")
        return done

    def _words(self) -> str:
        self._names += 1
        kind = self._dice.choice(self._kinds)
        if kind == "team":
            return f"{kind}{self._names} {self._dice.choice((1, 2, 5))}"
        return f"{kind}{self._names} {self._dice.choice((0, 0, 1, 3))}"

    def _uuid(self) -> UUID:
        return UUID(int=self._dice.getrandbits(128), version=4)


def _passes(done: OrderReply) -> bool:
    """Whether a repeat makes sense."""
    error = done.error or ""
    return error.startswith("database") or error == "unavailable"
