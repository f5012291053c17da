"""What waits at the open chat, what was answered here, and what was written and not sent yet."""

from collections.abc import Iterable, Sequence
from typing import Final

from chatd.client.state import ShownChat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.asks import (
    Ask,
    AskKey,
    ProposedPlan,
    asks_of,
    ending_text,
    proposed_plan,
)

MAX_DRAFTS: Final = 100
Item = Ask | ProposedPlan


def key_of(item: Item) -> AskKey:
    return item.key if isinstance(item, Ask) else (item.chat_id, item.call_id)


def is_same(one: Item, other: Item) -> bool:
    """Whether a form that was made for the one still says what the other would have done. Models
    may use an id again, and arguments may arrive after the call."""
    if isinstance(one, Ask) and isinstance(other, Ask):
        is_same_call = (one.call.tool_name, one.call.kind) == (
            other.call.tool_name,
            other.call.kind,
        )
        return one.key == other.key and is_same_call and one.args == other.args
    return one == other


class OpenAsks:
    """`chat` and `children` are what is known; `refresh` makes `items` of them. Drafts outlive a
    look at another chat."""

    def __init__(self) -> None:
        self.chat: ShownChat | None = None
        self.has_pending = False
        """A message is on its way: it continues the chat, with or without the plan."""
        self.children: Sequence[tuple[ShownChat, str]] = ()
        self.items: list[Item] = []
        self.sending: set[AskKey] = set()
        self._answered: set[AskKey] = set()
        self._drafts: dict[AskKey, object] = {}
        self._seen_at: ChatId | None = None

    @property
    def chat_id(self) -> ChatId | None:
        return None if self.chat is None else self.chat.chat_id

    def refresh(self) -> list[str]:
        """Returns what ended meanwhile without an answer from here, in words."""
        chats = self._chats()
        self._forget_ended(chat for chat, _ in chats)
        before = self.items if self._seen_at == self.chat_id else []
        self.items, self._seen_at = self._find(chats), self.chat_id
        now = {key_of(item) for item in self.items}
        shown = {chat.chat_id: chat for chat, _ in chats}
        return [
            ending_text(item, shown.get(item.chat_id))
            for item in before
            if isinstance(item, Ask) and item.key not in now | self._answered | self.sending
        ]

    def current(self, item: Item | None) -> Item | None:
        """The item with its newest content, or the first if it has gone."""
        key = None if item is None else key_of(item)
        found = (one for one in self.items if key_of(one) == key)
        return next(found, next(iter(self.items), None))

    def beside(self, item: Item, step: int) -> Item:
        """The one before or after it, in a circle."""
        return self.items[(self.place_of(item) - 1 + step) % len(self.items)]

    def place_of(self, item: Item) -> int:
        """From 1."""
        return [key_of(one) for one in self.items].index(key_of(item)) + 1

    def note_answered(self, keys: Iterable[AskKey]) -> None:
        """Hide them now: the events that remove them may still be on their way."""
        self._answered.update(keys)

    def is_answered_here(self, item: Item) -> bool:
        return key_of(item) in self._answered | self.sending

    def draft_of(self, item: Item) -> object:
        return self._drafts.get(key_of(item))

    def keep_draft(self, key: AskKey, draft: object) -> None:
        self._drafts.pop(key, None)
        self._drafts[key] = draft
        while len(self._drafts) > MAX_DRAFTS:
            self._drafts.pop(next(iter(self._drafts)))

    def _chats(self) -> list[tuple[ShownChat, str]]:
        return [] if self.chat is None else [(self.chat, ""), *self.children]

    def _find(self, chats: Sequence[tuple[ShownChat, str]]) -> list[Item]:
        asks = [ask for chat, name in chats for ask in asks_of(chat, name, answered=self._answered)]
        asks.sort(key=lambda ask: ask.call.kind == "client")
        plan = None if self.chat is None else proposed_plan(self.chat)
        if plan is None or self.has_pending or key_of(plan) in self._answered:
            return [*asks]
        return [*asks, plan]

    def _forget_ended(self, chats: Iterable[ShownChat]) -> None:
        """What was answered is remembered until the chat shows it no more."""
        for chat in chats:
            if not chat.is_loaded:
                continue
            waiting = {(chat.chat_id, call.tool_call_id) for call in chat.requested_calls}
            plan = proposed_plan(chat)
            if plan is not None:
                waiting.add(key_of(plan))
            gone = {key for key in self._answered if key[0] == chat.chat_id} - waiting
            self._answered -= gone
            for key in [key for key in self._drafts if key[0] == chat.chat_id]:
                if key not in waiting:
                    del self._drafts[key]
