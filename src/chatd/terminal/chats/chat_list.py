"""The list of chats: reads it page by page, keeps it current, and does what a person asks for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, Static

from chatd.client.calls import Call
from chatd.client.drafts import ChatChange
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.frames import ChatChanged, ChatRemoved, ListEvent, ListReady
from chatd.client.resources import Chat, ListedChat, Page
from chatd.domain.ids import ChatId
from chatd.terminal.chats.chat_directory import (
    Alert,
    Attention,
    ChatDirectory,
    ListFilter,
    View,
    is_active,
    is_subagent,
)
from chatd.terminal.chats.chat_rows import list_rows
from chatd.terminal.chats.chat_tree import ChatTree
from chatd.terminal.dialogs import LinePrompt, Question, ask
from chatd.terminal.messages import COPY_READY, OpenChat, ShowNotice, telling_errors
from chatd.terminal.session import app_of, session_of

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
"""The server's own limit of one page."""
MAX_REREAD: Final = 1000
"""How many chats are read again; the rest comes when the list is scrolled."""
MAX_KNOWN: Final = 200
"""How many chats are kept that were opened and may be outside of what the list shows."""
READ_AGAIN_S: Final = 5.0
"""When to try again after the list could not be read."""
DRAW_S: Final = 0.1
"""Minimum time between two drawings of the list: many chats may change at once."""
SEARCH_S: Final = 0.25
"""How long after the last letter a search begins."""
_VIEWS: Final[dict[View, str]] = {
    "active": "Chats",
    "shared": "Shared with you",
    "archived": "Archived",
}


class ChatList(Vertical):
    """Posts `Changed` when the list has changed."""

    class Changed(Message):
        """The chats, or what they need, have changed."""

    @dataclass
    class Alerted(Message):
        alert: Alert

    class Left(Message):
        """Back to the chat."""

    @dataclass
    class Deleted(Message):
        chat_id: ChatId

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "end_search", "End the search", show=False)
    ]

    def __init__(self) -> None:
        super().__init__()
        self.directory = ChatDirectory()
        self._known: dict[ChatId, Chat] = {}
        """Chats that were opened, as the newest event or reply describes them."""
        self._last_archived: Chat | None = None
        self._attention = Attention()
        self._folded: frozenset[ChatId] = frozenset()
        self._drawing: Timer | None = None
        self._searching: Timer | None = None
        self._reading = 0
        self._is_changed = False
        self._stop: Callable[[], None] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="list-head", markup=False)
        yield Input(placeholder="/ to search", id="list-search", compact=True)
        yield ChatTree(session_of(self).clock)

    def on_mount(self) -> None:
        self._stop = session_of(self).connection.follow_list(self._on_event)
        self._draw()

    def on_unmount(self) -> None:
        if self._stop is not None:
            self._stop()

    @property
    def chats(self) -> ChatTree:
        return self.query_one(ChatTree)

    # What is shown

    def find(self, chat_id: ChatId) -> Chat | None:
        """The chat from the list, or the open one if the list does not show it."""
        return self.directory.find(chat_id) or self._known.get(chat_id)

    def show_open(self, chat_id: ChatId | None) -> None:
        self.chats.open_chat = chat_id
        if chat_id is None:
            return
        if (listed := self.directory.find(chat_id)) is not None:
            self._keep(listed)
        else:
            self.run_worker(partial(self._read_one, chat_id))

    async def _read_one(self, chat_id: ChatId) -> None:
        try:
            self._keep(await session_of(self).api.get_chat(chat_id))
        except (ApiError, ServerUnreachable):
            return  # the chat itself says that it is gone, or the banner that no server answers
        self._draw_soon()

    def _keep(self, chat: Chat) -> None:
        known = self._known.pop(chat.id, None)
        self._known[chat.id] = known if known is not None and known.version > chat.version else chat
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _take(self, chat: Chat) -> None:
        """Take in a chat as it is now, from an event or the reply to an action."""
        self.directory.put(chat)
        self._see(chat)

    def _see(self, chat: Chat) -> None:
        if chat.id in self._known:
            self._keep(chat)
        if (alert := self._attention.see(chat)) is not None:
            self.post_message(self.Alerted(alert))

    def _on_event(self, event: ListEvent) -> None:
        """Called in the connection's task: textual's timers must be started in a task of the
        app."""
        match event:
            case ListReady():
                self.call_later(self._read_again)
            case ChatRemoved(chat_id=chat_id):
                self.directory.remove(chat_id)
            case ChatChanged(kind="deleted", chat=chat) if is_subagent(chat):
                self.directory.remove_child(chat)
            case ChatChanged(kind="deleted", chat=chat):
                self.directory.remove(chat.id)
            case ChatChanged(chat=chat):
                self._take(chat)
            case _:
                return
        if not self._is_changed:
            self._is_changed = True
            self.call_later(self._draw_soon)

    def _draw_soon(self) -> None:
        if self._drawing is None:
            self._drawing = self.set_timer(DRAW_S, self._draw)

    def _draw(self) -> None:
        self._drawing, self._is_changed = None, False
        now = session_of(self).clock.now()
        directory = self.directory
        self.chats.show_rows(list_rows(directory.chats(), directory.filter, self._folded, now))
        self.query_one("#list-head", Static).update(self._head())
        self.post_message(self.Changed())

    def _head(self) -> str:
        name = _VIEWS[self.directory.filter.view]
        if not self.directory.is_loaded:
            return f"{name}: reading"
        count = self.directory.count_needing()
        needs = f"  ◆ {count} {'needs' if count == 1 else 'need'} you" if count else ""
        return f"{name}{needs}" if len(self.directory) else f"{name}: none"

    # Reading

    def _read_again(self) -> None:
        wanted = min(max(len(self.directory), PAGE_SIZE), MAX_REREAD)
        self.run_worker(
            partial(self._read_from_start, self.directory, wanted), group="list", exclusive=True
        )

    async def _read_from_start(self, directory: ChatDirectory, wanted: int) -> None:
        chats: list[ListedChat] = []
        cursor: str | None = None
        self._reading += 1
        directory.begin_reading()
        try:
            while len(chats) < wanted:
                limit = min(wanted - len(chats), MAX_PAGE_SIZE)
                page = await self._page(directory.filter, limit, cursor)
                chats += page.items
                if (cursor := page.next_cursor) is None:
                    break
        except (ApiError, ServerUnreachable) as error:
            self.post_message(ShowNotice(f"The chat list: {error.message}", "error"))
            self.set_timer(READ_AGAIN_S, self._read_again)
            return
        finally:
            self._reading -= 1
        directory.replace_with(chats, cursor)
        self._show_read(directory, chats)

    def _page(self, wanted: ListFilter, limit: int, cursor: str | None) -> Call[Page[ListedChat]]:
        return session_of(self).api.list_chats(
            source="shared" if wanted.view == "shared" else "all",
            archived=wanted.view == "archived" or None,
            q=wanted.query or None,
            limit=limit,
            cursor=cursor,
        )

    def _show_read(self, directory: ChatDirectory, read: Iterable[ListedChat]) -> None:
        """Take in what was read, with an alert for what happened while the connection was lost;
        none for the first list. An event may be newer than what was read."""
        for listed in read:
            for chat in directory.family(listed.id):
                self._see(chat)
        self._draw_soon()

    @on(ChatTree.NearEnd)
    def read_more(self) -> None:
        if self.directory.next_cursor is not None and self._reading == 0:
            self.run_worker(partial(self._read_next, self.directory), group="list", exclusive=True)

    async def _read_next(self, directory: ChatDirectory) -> None:
        self._reading += 1
        directory.begin_reading()
        try:
            with telling_errors(self, "The chat list: "):
                page = await self._page(directory.filter, PAGE_SIZE, directory.next_cursor)
                directory.add_page(page.items, page.next_cursor)
                self._show_read(directory, page.items)
        finally:
            self._reading -= 1

    # Search and views

    @on(Input.Changed, "#list-search")
    def search_soon(self) -> None:
        if self._searching is not None:
            self._searching.stop()
        self._searching = self.set_timer(SEARCH_S, self._search)

    @on(Input.Submitted, "#list-search")
    def search_now(self) -> None:
        self._search()
        self.chats.focus()

    def _search(self) -> None:
        self._searching = None
        query = self.query_one("#list-search", Input).value.strip()
        self._show_filter(ListFilter(view=self.directory.filter.view, query=query))

    def _show_filter(self, filter_: ListFilter) -> None:
        if filter_ != self.directory.filter:
            self.directory = ChatDirectory(filter_)
            self._draw()
            self._read_again()

    def _next_view(self) -> None:
        views = tuple(_VIEWS)
        view = views[(views.index(self.directory.filter.view) + 1) % len(views)]
        self._show_filter(ListFilter(view=view, query=self.directory.filter.query))

    def action_end_search(self) -> None:
        self.query_one("#list-search", Input).value = ""
        self.chats.focus()

    # What a person does

    @on(ChatTree.Chosen)
    def open_chosen(self, event: ChatTree.Chosen) -> None:
        self.post_message(OpenChat(event.chat.id))

    @on(ChatTree.Folded)
    def fold(self, event: ChatTree.Folded) -> None:
        one = frozenset((event.chat_id,))
        self._folded = self._folded - one if event.is_open else self._folded | one
        self._draw()

    @on(ChatTree.Asked)
    def do_asked(self, event: ChatTree.Asked) -> None:
        match event.what, event.chat:
            case "search", _:
                self.query_one("#list-search", Input).focus()
            case "view", _:
                self._next_view()
            case "leave", _:
                self.post_message(self.Left())
            case "undo", _:
                self._undo_archive()
            case what, chat if chat is not None:
                self._do(what, chat)
            case _:
                return

    def _do(self, what: str, chat: Chat) -> None:
        match what:
            case "rename":
                self._rename(chat)
            case "fork":
                self.run_worker(partial(self._fork, chat))
            case _ if is_subagent(chat):
                text = "Choose the chat that the subagent belongs to: they are one."
                self.post_message(ShowNotice(text, "warning"))
            case "pin":
                place = 0 if chat.pin_order else self.directory.next_pin_order()
                self._amend(chat.id, ChatChange(pin_order=place))
            case "archive":
                self._archive(chat)
            case "delete":
                text = (
                    f"Delete «{chat.title}» with its messages and subagents? This cannot be undone."
                )
                question = Question(text, yes="Delete", is_dangerous=True)
                ask(self, question, lambda: self.run_worker(partial(self._delete, chat)))
            case _:
                raise AssertionError(what)

    def _rename(self, chat: Chat) -> None:
        def named(title: str | None) -> None:
            if title is not None:
                self._amend(chat.id, ChatChange(title=title))

        app_of(self).push_screen(LinePrompt("Rename the chat", chat.title), named)

    def _archive(self, chat: Chat) -> None:
        done = "Taken out of the archive."
        if not chat.archived:
            done = "Archived. U takes it out again, V shows the archive."

        def archive() -> None:
            self._last_archived = None if chat.archived else chat
            self._amend(chat.id, ChatChange(archived=not chat.archived), done=done)

        if chat.archived or not is_active(chat):
            archive()
        else:
            text = f"«{chat.title}» is working. Interrupt and archive it?"
            ask(self, Question(text, yes="Archive"), archive)

    def _undo_archive(self) -> None:
        """Undo for the chat that was archived last, with its pin."""
        chat, self._last_archived = self._last_archived, None
        if chat is None:
            self.post_message(ShowNotice("No chat was archived here."))
            return
        changes = [ChatChange(archived=False)]
        if chat.pin_order:
            changes.append(ChatChange(pin_order=chat.pin_order))
        self._amend(chat.id, *changes, done="Taken out of the archive.")

    def _amend(self, chat_id: ChatId, *changes: ChatChange, done: str = "") -> None:
        async def amend() -> None:
            with telling_errors(self):
                for change in changes:
                    self._take(await session_of(self).api.amend_chat(chat_id, change))
                if done:
                    self.post_message(ShowNotice(done))
            self._draw_soon()

        self.run_worker(amend)

    async def _delete(self, chat: Chat) -> None:
        with telling_errors(self):
            await session_of(self).api.delete_chat(chat.id)
            self.directory.remove(chat.id)
            self.post_message(self.Deleted(chat.id))
            self.post_message(ShowNotice("Deleted."))
            self._draw_soon()

    async def _fork(self, chat: Chat) -> None:
        with telling_errors(self):
            forked = await session_of(self).api.fork_chat(chat.id)
            self._take(forked)
            self._draw_soon()
            is_here = self.has_focus_within
            self.post_message(OpenChat(forked.id) if is_here else ShowNotice(COPY_READY))
