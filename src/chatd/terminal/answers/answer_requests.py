"""Requests of the answer panel to the server: it sends answers, and finds the subagents that wait
for a person."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.client.connection import Connection
from chatd.client.drafts import CallAnswer
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import FollowedChat
from chatd.client.frames import ChatChanged, ListEvent, ListReady
from chatd.client.resources import Chat
from chatd.client.server import ServerApi, new_key
from chatd.client.state import ShownChat
from chatd.domain.ids import ChatId

_LATE_CODES: Final = frozenset({"call_not_waiting", "invalid_state", "chat_archived"})


class SendOutcome(Struct, frozen=True):
    """`sent`: the server has it. `late`: the call does not wait any more, `text` says why.
    `failed`: nothing is known to have changed, and the same answer may be sent again."""

    state: Literal["sent", "late", "failed"]
    text: str = ""


class AnswerSender:
    """Sends answers, each once. The idempotency key belongs to what was answered: somebody who
    presses the same key again after a lost connection sends the same request; another answer is
    another request, and the server says who was first."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._keys: dict[bytes, str] = {}

    async def send(self, chat_id: ChatId, answers: Sequence[CallAnswer]) -> SendOutcome:
        name = msgspec.json.encode((chat_id, answers))
        key = self._keys.setdefault(name, new_key())
        outcome = SendOutcome("sent")
        try:
            await self._api.answer_calls(chat_id, answers, key=key)
        except ServerUnreachable as error:
            return SendOutcome("failed", f"{error.message} Answer again when it does.")
        except ApiError as error:
            if error.is_temporary:
                return SendOutcome("failed", error.message)
            details = "; ".join(one.detail for one in error.validations if one.detail)
            text = error.message if details in error.message else f"{error.message} {details}"
            outcome = SendOutcome("late" if error.code in _LATE_CODES else "failed", text)
        self._keys.pop(name, None)
        return outcome


# The subagents of the open chat that wait for a person: their asks are answered at the parent too.
#
# The list of chats tells which subagents wait; only those are followed, and only while they wait.

MAX_FOLLOWED: Final = 20
"""Subagents of one chat that are followed at once; more may wait, and come when others have got
their answers."""
_PAGE: Final = 200
_MAX_PAGES: Final = 20
Stop = Callable[[], None]


class WaitingChildren:
    """`changed` is called when the asks of a subagent may be others. `wants_list` is called when
    the subagents must be read: the owner runs `read` then, in a worker."""

    def __init__(
        self,
        api: ServerApi,
        connection: Connection,
        changed: Callable[[], None],
        wants_list: Callable[[], None],
    ) -> None:
        self._api = api
        self._connection = connection
        self._changed = changed
        self._wants_list = wants_list
        self._parent: ChatId | None = None
        self._stop_list: Stop | None = None
        self._known: dict[ChatId, Chat] = {}
        self._stops: dict[ChatId, Stop] = {}
        self._shown: dict[ChatId, ShownChat] = {}

    @property
    def shown(self) -> list[tuple[ShownChat, str]]:
        """The chats that wait, with their titles, in the order in which they were started."""
        ordered = sorted(self._shown, key=lambda one: (self._known[one].created_at, str(one)))
        return [(self._shown[one], self._known[one].title) for one in ordered]

    def watch(self, parent: ChatId | None) -> None:
        """The subagents of this chat, in place of those of the chat before."""
        if parent == self._parent:
            return
        self.close()
        self._parent = parent
        if parent is not None:
            self._stop_list = self._connection.follow_list(self._on_list)

    def close(self) -> None:
        if self._stop_list is not None:
            self._stop_list()
        for stop in self._stops.values():
            stop()
        self._stop_list, self._parent = None, None
        self._known, self._stops, self._shown = {}, {}, {}

    async def read(self) -> None:
        """Raises ApiError and ServerUnreachable."""
        parent, cursor = self._parent, None
        if parent is None:
            return
        for _ in range(_MAX_PAGES):
            page = await self._api.list_subagents(parent, limit=_PAGE, cursor=cursor)
            if parent != self._parent:
                return
            for chat in page.items:
                self._note(chat)
            cursor = page.next_cursor
            if cursor is None:
                break
        self._follow()

    def _on_list(self, event: ListEvent) -> None:
        match event:
            case ListReady():
                self._wants_list()
            case ChatChanged(kind=kind, chat=chat) if chat.parent_chat_id == self._parent:
                self._note(chat)
                if kind == "deleted":
                    self._known.pop(chat.id, None)
                self._follow()
            case _:
                pass

    def _note(self, chat: Chat) -> None:
        """Versions only grow: a page that was read before an event must not undo it."""
        known = self._known.get(chat.id)
        if known is None or chat.version >= known.version:
            self._known[chat.id] = chat

    def _follow(self) -> None:
        waiting = [one.id for one in self._known.values() if one.status == "requires_action"]
        for chat_id in set(self._stops).difference(waiting):
            self._stops.pop(chat_id)()
            self._shown.pop(chat_id, None)
        for chat_id in waiting:
            if chat_id not in self._stops and len(self._stops) < MAX_FOLLOWED:
                self._stops[chat_id] = lambda: None
                self._stops[chat_id] = self._connection.follow_chat(chat_id, self._on_child)
        self._changed()

    def _on_child(self, chat: FollowedChat) -> None:
        if chat.chat_id in self._stops:
            self._shown[chat.chat_id] = chat.shown
            self._changed()
