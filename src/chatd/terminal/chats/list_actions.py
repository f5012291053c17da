"""What a person does to a chat of the list: the question, the request, the sentence after it."""

from collections.abc import Awaitable, Callable
from functools import partial

from textual.widget import Widget

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Chat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.actions import ChatActions
from chatd.terminal.chats.signs import is_active, is_subagent
from chatd.terminal.dialogs import LinePrompt, Question
from chatd.terminal.messages import COPY_READY, OpenChat, ShowNotice
from chatd.terminal.session import app_of, session_of


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
                self._run(lambda actions: actions.pin(chat.id, place))
            case "archive":
                self._archive(chat)
            case "delete":
                self._delete(chat)
            case _:
                raise AssertionError(what)

    def _rename(self, chat: Chat) -> None:
        def named(title: str | None) -> None:
            if title is not None:
                self._run(lambda actions: actions.rename(chat.id, title))

        app_of(self._host).push_screen(LinePrompt("Rename the chat", chat.title), named)

    def _archive(self, chat: Chat) -> None:
        done = "Taken out of the archive."
        if not chat.archived:
            done = "Archived. U takes it out again, V shows the archive."

        def archive() -> None:
            self._last_archived = None if chat.archived else chat
            self._run(lambda actions: actions.archive(chat.id, archived=not chat.archived), done)

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

        async def take_out(actions: ChatActions) -> Chat:
            found = await actions.archive(archived.id, archived=False)
            place = archived.pin_order
            return await actions.pin(archived.id, place) if place else found

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
            await ChatActions(session_of(self._host).api).delete(chat.id)
        except (ApiError, ServerUnreachable) as error:
            self._host.post_message(ShowNotice(error.message, "error"))
            return
        self._removed(chat.id)
        self._host.post_message(ShowNotice("Deleted."))

    async def _fork(self, chat: Chat) -> None:
        try:
            forked = await ChatActions(session_of(self._host).api).fork(chat.id)
        except (ApiError, ServerUnreachable) as error:
            self._host.post_message(ShowNotice(error.message, "error"))
            return
        self._put(forked)
        is_here = self._host.has_focus_within
        self._host.post_message(OpenChat(forked.id) if is_here else ShowNotice(COPY_READY))

    def _run(self, act: Callable[[ChatActions], Awaitable[Chat]], done: str = "") -> None:
        async def run() -> None:
            try:
                self._put(await act(ChatActions(session_of(self._host).api)))
            except (ApiError, ServerUnreachable) as error:
                self._host.post_message(ShowNotice(error.message, "error"))
                return
            if done:
                self._host.post_message(ShowNotice(done))

        self._host.run_worker(run)
