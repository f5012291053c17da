"""Giving a new chat a title, beside its first turn.

A title is no part of history: it is written next to it, and only if nobody has given the chat
another one meanwhile. What to ask and what counts as a title is the domain's to say.
"""

import asyncio
from collections.abc import Callable, Sequence

from chatd.domain.answer import Answer
from chatd.domain.assemble import Assembler
from chatd.domain.chat import Chat
from chatd.domain.ids import ChatId
from chatd.domain.messages import Message
from chatd.domain.model import Failed, ModelRequest, ProviderFailed, ProviderFault
from chatd.domain.parts import Text
from chatd.domain.ports import Env, ModelChoice
from chatd.domain.step_rows import Call, usage_entry
from chatd.domain.titles import (
    TIMEOUT_S,
    read_title,
    title_input,
    title_request,
    wants_title,
    without_temperature,
)
from chatd.engine.periodic import BackgroundTasks
from chatd.engine.spend_guard import SpendGuard
from chatd.store import chats, usage
from chatd.store.conn import Conn

Announce = Callable[[Chat, str], None]
Namers = Callable[[ModelChoice], Sequence[ModelChoice]]


def itself(choice: ModelChoice) -> Sequence[ModelChoice]:
    """The chat's own model gives it its title."""
    return (choice,)


class TitleGenerator:
    """`namers` says whom to ask, one after the other, for a chat with this model."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        chores: BackgroundTasks,
        purse: SpendGuard,
        *,
        announce: Announce,
        namers: Namers = itself,
    ) -> None:
        self._conn = conn
        self._chores = chores
        self._purse = purse
        self._announce = announce
        self._env = env
        self._namers = namers
        self._under_way: set[ChatId] = set()

    def consider(self, chat: Chat, history: Sequence[Message], choice: ModelChoice) -> None:
        """Never waits. Children are named by whoever makes them."""
        first = next((row for row in history if row.begins_turn), None)
        said = "" if first is None else title_input(first.content, {})
        wanted = chat.is_root and wants_title(history, chat.title, said)
        if not wanted or chat.id in self._under_way:
            return
        if self._chores.submit("title", lambda: self._name(chat, said, choice)):
            self._under_way.add(chat.id)

    async def _name(self, chat: Chat, said: str, choice: ModelChoice) -> None:
        try:
            for namer in self._namers(choice):
                if await self._purse.check(chat) is not None:
                    return
                title = await self._ask(chat, namer, title_request(namer.config.model, said))
                if title is not None:
                    await self._give(chat, title)
                    return
        finally:
            self._under_way.discard(chat.id)

    async def _give(self, chat: Chat, title: str) -> None:
        named = await chats.set_title(self._conn, chat.id, was=chat.title, now=title)
        if named is not None:
            self._announce(named, "title")

    async def _ask(self, chat: Chat, namer: ModelChoice, request: ModelRequest) -> str | None:
        answer, fault = await self._answer(namer, request)
        if fault is not None and (plainer := without_temperature(request, fault)) is not None:
            answer, fault = await self._answer(namer, plainer)
        if answer is None:
            self._env.emit("title_failed", chat_id=chat.id, provider=namer.config.provider)
            return None
        paid = usage_entry("title", Call(config=namer.config), answer.usage, ok=fault is None)
        await usage.book(self._conn, chat, paid)
        text = "".join(part.text for part in answer.content if isinstance(part, Text))
        return read_title(text) if fault is None else None

    async def _answer(
        self, namer: ModelChoice, request: ModelRequest
    ) -> tuple[Answer | None, ProviderFault | None]:
        """No answer at all: the model was not reached, and there is nothing to pay."""
        assembler, reached = Assembler(), False
        try:
            async with asyncio.timeout(TIMEOUT_S), namer.provider.stream(request) as events:
                reached = True
                async for event in events:
                    if isinstance(event, Failed):
                        return assembler.finished(), event.fault
                    assembler.feed(event)
        except ProviderFailed as failed:
            return (assembler.finished() if reached else None), failed.fault
        except TimeoutError:
            late = ProviderFault(message="no title in time", transport="timeout")
            return (assembler.finished() if reached else None), late
        return assembler.finished(), None
