"""What a person does to a chat of the list: requests, and the sentence about the result."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from chatd.client.drafts import ChatChange
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.frames import ChatChanged, ChatRemoved, ListEvent, ListReady
from chatd.client.resources import Chat, ListedChat
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.terminal.chats.chat_directory import (
    Alert,
    Attention,
    ChatDirectory,
    ChatPages,
    KnownChats,
    ListFilter,
    View,
    is_active,
    is_subagent,
)
from chatd.terminal.chats.chat_rows import list_rows
from chatd.terminal.chats.chat_tree import ChatTree
from chatd.terminal.dialogs import LinePrompt, Question
from chatd.terminal.messages import COPY_READY, OpenChat, ShowNotice
from chatd.terminal.session import app_of, session_of

# What a person does to a chat of the list: the question, the request, the sentence after it.


class ListActions:
    """`put` shows a chat as the server replied it, `removed` takes a deleted one away."""

    def __init__(
        self, host: Widget, *, put: Callable[[Chat], None], removed: Callable[[ChatId], None]
    ) -> None:
        self._host = host
        self._put = put
        self._removed = removed
        self._last_archived: Chat | None = None

    def do(self, what: str, chat: Chat, next_pin_order: int) -> None:
        match what:
            case "rename":
                self._rename(chat)
            case "fork":
                self._host.run_worker(partial(self._fork, chat))
            case _ if is_subagent(chat):
                text = "Choose the chat that the subagent belongs to: they are one."
                self._host.post_message(ShowNotice(text, "warning"))
            case "pin":
                place = 0 if chat.pin_order else next_pin_order
                self._run(lambda api: api.amend_chat(chat.id, ChatChange(pin_order=place)))
            case "archive":
                self._archive(chat)
            case "delete":
                self._delete(chat)
            case _:
                raise AssertionError(what)

    def _rename(self, chat: Chat) -> None:
        def named(title: str | None) -> None:
            if title is not None:
                self._run(lambda api: api.amend_chat(chat.id, ChatChange(title=title)))

        app_of(self._host).push_screen(LinePrompt("Rename the chat", chat.title), named)

    def _archive(self, chat: Chat) -> None:
        done = "Taken out of the archive."
        if not chat.archived:
            done = "Archived. U takes it out again, V shows the archive."

        def archive() -> None:
            self._last_archived = None if chat.archived else chat
            change = ChatChange(archived=not chat.archived)
            self._run(lambda api: api.amend_chat(chat.id, change), done)

        if chat.archived or not is_active(chat):
            archive()
            return
        text = f"«{chat.title}» is working. Interrupt and archive it?"
        self._ask(Question(text, yes="Archive"), archive)

    def undo_archive(self) -> None:
        """Of the chat that was archived last, with its pin."""
        chat, self._last_archived = self._last_archived, None
        if chat is None:
            self._host.post_message(ShowNotice("No chat was archived here."))
            return
        archived = chat

        async def take_out(api: ServerApi) -> Chat:
            found = await api.amend_chat(archived.id, ChatChange(archived=False))
            place = archived.pin_order
            if not place:
                return found
            return await api.amend_chat(archived.id, ChatChange(pin_order=place))

        self._run(take_out, "Taken out of the archive.")

    def _delete(self, chat: Chat) -> None:
        text = f"Delete «{chat.title}» with its messages and subagents? This cannot be undone."
        question = Question(text, yes="Delete", is_dangerous=True)
        self._ask(question, lambda: self._host.run_worker(partial(self._send_delete, chat)))

    def _ask(self, question: Question, go_on: Callable[[], object]) -> None:
        def answered(is_sure: bool | None) -> None:  # noqa: FBT001
            if is_sure:
                go_on()

        app_of(self._host).push_screen(question, answered)

    async def _send_delete(self, chat: Chat) -> None:
        try:
            await session_of(self._host).api.delete_chat(chat.id)
        except (ApiError, ServerUnreachable) as error:
            self._host.post_message(ShowNotice(error.message, "error"))
            return
        self._removed(chat.id)
        self._host.post_message(ShowNotice("Deleted."))

    async def _fork(self, chat: Chat) -> None:
        try:
            forked = await session_of(self._host).api.fork_chat(chat.id)
        except (ApiError, ServerUnreachable) as error:
            self._host.post_message(ShowNotice(error.message, "error"))
            return
        self._put(forked)
        is_here = self._host.has_focus_within
        self._host.post_message(OpenChat(forked.id) if is_here else ShowNotice(COPY_READY))

    def _run(self, act: Callable[[ServerApi], Awaitable[Chat]], done: str = "") -> None:
        async def run() -> None:
            try:
                self._put(await act(session_of(self._host).api))
            except (ApiError, ServerUnreachable) as error:
                self._host.post_message(ShowNotice(error.message, "error"))
                return
            if done:
                self._host.post_message(ShowNotice(done))

        self._host.run_worker(run)


# The list of chats: reads it page by page, keeps it current, and does what a person asks for.

PAGE_SIZE: Final = 50
MAX_REREAD: Final = 1000
"""Chats that are read again; the rest comes when the list is scrolled."""
READ_AGAIN_S: Final = 5.0
"""After the list could not be read."""
DRAW_S: Final = 0.1
"""Between two states of the list on the screen: many chats may change at once."""
SEARCH_S: Final = 0.25
"""After the last letter of a search."""
_VIEWS: Final[dict[View, str]] = {
    "active": "Chats",
    "shared": "Shared with you",
    "archived": "Archived",
}


class ChatList(Vertical):
    """Tells by `Changed` that the list is different from before."""

    class Changed(Message):
        """The chats, or what they need, have changed."""

    class Alerted(Message):
        def __init__(self, alert: Alert) -> None:
            super().__init__()
            self.alert = alert

    class Left(Message):
        """Back to the chat."""

    class Deleted(Message):
        def __init__(self, chat_id: ChatId) -> None:
            super().__init__()
            self.chat_id = chat_id

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "end_search", "End the search", show=False)
    ]

    def __init__(self) -> None:
        super().__init__()
        self._actions = ListActions(self, put=self.put, removed=self._removed)
        self.directory = ChatDirectory()
        self._known = KnownChats()
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
    def _pages(self) -> ChatPages:
        return ChatPages(session_of(self).api)

    @property
    def chats(self) -> ChatTree:
        return self.query_one(ChatTree)

    # What is shown

    def find(self, chat_id: ChatId) -> Chat | None:
        """A chat of the list, or the open one if the list does not show it."""
        return self.directory.find(chat_id) or self._known.find(chat_id)

    def put(self, chat: Chat) -> None:
        """A chat as a reply to an action describes it."""
        self._take(chat)
        self._draw_soon()

    def _removed(self, chat_id: ChatId) -> None:
        self.directory.remove(chat_id)
        self.post_message(self.Deleted(chat_id))
        self._draw_soon()

    def show_open(self, chat_id: ChatId | None) -> None:
        self.chats.open_chat = chat_id
        if chat_id is None:
            return
        if (listed := self.directory.find(chat_id)) is not None:
            self._known.keep(listed)
        else:
            self.run_worker(partial(self._read_one, chat_id))

    async def _read_one(self, chat_id: ChatId) -> None:
        try:
            self._known.keep(await session_of(self).api.get_chat(chat_id))
        except (ApiError, ServerUnreachable):
            return  # the chat itself says that it is gone, or the banner that nobody answers
        self._draw_soon()

    def _take(self, chat: Chat) -> None:
        self.directory.put(chat)
        self._known.update(chat)
        if (alert := self._attention.see(chat)) is not None:
            self.post_message(self.Alerted(alert))

    def _on_event(self, event: ListEvent) -> None:
        """In the connection's task: textual's timers need to be started in a task of the app."""
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
        self._reading += 1
        directory.begin_reading()
        try:
            chats, cursor = await self._pages.read_first(directory.filter, wanted)
        except (ApiError, ServerUnreachable) as error:
            self.post_message(ShowNotice(f"The chat list: {error.message}", "error"))
            self.set_timer(READ_AGAIN_S, self._read_again)
            return
        finally:
            self._reading -= 1
        directory.replace_with(chats, cursor)
        self._see(directory, chats)
        self._draw_soon()

    def _see(self, directory: ChatDirectory, read: Iterable[ListedChat]) -> None:
        """An alert for what happened while the connection was lost; none for the first list. An
        event may have told more than what was read."""
        for listed in read:
            for chat in directory.family(listed.id):
                self._known.update(chat)
                if (alert := self._attention.see(chat)) is not None:
                    self.post_message(self.Alerted(alert))

    @on(ChatTree.NearEnd)
    def read_more(self) -> None:
        if self.directory.next_cursor is not None and self._reading == 0:
            self.run_worker(partial(self._read_next, self.directory), group="list", exclusive=True)

    async def _read_next(self, directory: ChatDirectory) -> None:
        self._reading += 1
        directory.begin_reading()
        try:
            page = await self._pages.read(directory.filter, PAGE_SIZE, directory.next_cursor)
        except (ApiError, ServerUnreachable) as error:
            self.post_message(ShowNotice(f"The chat list: {error.message}", "error"))
            return
        finally:
            self._reading -= 1
        directory.add_page(page.items, page.next_cursor)
        self._see(directory, page.items)
        self._draw_soon()

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
                self._actions.undo_archive()
            case _, None:
                return
            case what, chat:
                self._actions.do(what, chat, self.directory.next_pin_order())
