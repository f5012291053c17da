"""The panel above the composer: what the open chat waits for, one at a time, with its answers.

It never takes the focus by itself: somebody who types a message when it appears goes on typing. And
a form that has just appeared takes no keys for a moment, so that a key pressed twice does not
answer the next ask.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import FollowedChat
from chatd.client.resources import Chat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.ask_panel import GUARD_S, AskPanel
from chatd.terminal.answers.asks import AskKey, ProposedPlan
from chatd.terminal.answers.children import WaitingChildren
from chatd.terminal.answers.form import Answered, DraftKept
from chatd.terminal.answers.open_asks import key_of
from chatd.terminal.answers.plan_form import PlanDone
from chatd.terminal.answers.sending import AnswerSender
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import ShowNotice
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import session_of

CLOCK_S: Final = 20.0
"""Between two looks at the time that is left."""
_FREE_ACTIONS: Final = frozenset({"leave", "unfold", "up", "down"})
"""They change nothing, so they need no guard."""


class AnswerPanel(AskPanel):
    BINDINGS = bindings_of("answers")

    def __init__(self, *, guard_s: float = GUARD_S) -> None:
        super().__init__(guard_s=guard_s)
        self._children: WaitingChildren | None = None
        self._sender: AnswerSender | None = None
        self._owner_of: ChatId | None = None
        self._is_due = False

    def on_mount(self) -> None:
        session = session_of(self)
        self._sender = AnswerSender(session.api)
        self._children = WaitingChildren(
            session.api, session.connection, self._update_later, self._read_children
        )
        self.set_interval(CLOCK_S, self.draw)

    def on_unmount(self) -> None:
        if self._children is not None:
            self._children.close()

    def show(self, chat: FollowedChat | None) -> None:
        chat_id = None if chat is None else chat.chat_id
        if chat_id != self.asks.chat_id:
            self.is_owner, self.failure, self._owner_of = True, "", None
        if self._children is not None:
            self._children.watch(chat_id)
        self.asks.chat = None if chat is None or chat.gone else chat.shown
        pending = () if chat is None else chat.pending
        self.asks.has_pending = any(one.state != "refused" for one in pending)
        self._update()

    @property
    def plan(self) -> ProposedPlan | None:
        return next((one for one in self.asks.items if isinstance(one, ProposedPlan)), None)

    def _update_later(self) -> None:
        """Listeners of the connection are called outside of this widget's own tasks."""
        if not self._is_due:
            self._is_due = True
            self.call_later(self._update)

    def _update(self) -> None:
        self._is_due = False
        if not self.is_attached:  # a request ended after the terminal
            return
        if self._children is not None:
            self.asks.children = self._children.shown
        self.update_asks()
        chat_id = self.asks.chat_id
        if self.item is not None and chat_id is not None and chat_id != self._owner_of:
            self._owner_of = chat_id
            self.run_worker(partial(self._read_owner, chat_id), group="owner", exclusive=True)

    # What keys do

    def action_answer(self, name: str) -> None:
        """One of the form's own keys. Those that decide wait for the guard."""
        form, item = self.form, self.item
        if form is None or item is None or not self.is_owner:
            return
        if name not in _FREE_ACTIONS and (not self.is_awake or key_of(item) in self.asks.sending):
            return
        form.act(name)
        self.draw()

    def action_next_ask(self) -> None:
        self._step(1)

    def action_previous_ask(self) -> None:
        self._step(-1)

    def action_leave(self) -> None:
        """One step back in the form, else back to where the person was."""
        if self.form is None or not self.form.leave():
            self.give_focus_back()

    def _step(self, step: int) -> None:
        if self.item is not None and len(self.asks.items) > 1:
            self.open_item(self.asks.beside(self.item, step), is_own=True)

    # What is sent

    def on_draft_kept(self, message: DraftKept) -> None:
        message.stop()
        self.asks.keep_draft(message.key, message.draft)

    def on_plan_done(self, message: PlanDone) -> None:
        message.stop()
        self.forget_plan(message.plan)
        if message.notice:
            self.post_message(ShowNotice(message.notice))

    def forget_plan(self, plan: ProposedPlan) -> None:
        """The person has decided on it."""
        self.asks.note_answered([key_of(plan)])
        self._update()

    def on_answered(self, message: Answered) -> None:
        message.stop()
        keys = {(message.chat_id, answer.tool_call_id) for answer in message.answers}
        if keys & self.asks.sending:
            return
        self.asks.sending |= keys
        self.failure = ""
        self.run_worker(partial(self._send, message, keys), group="answer")
        self.draw()

    async def _send(self, message: Answered, keys: set[AskKey]) -> None:
        assert self._sender is not None
        try:
            outcome = await self._sender.send(message.chat_id, message.answers)
        finally:
            self.asks.sending -= keys
        if outcome.state == "failed":
            self.failure = outcome.text
        else:
            self.asks.note_answered(keys)
        if outcome.state == "late":
            self.post_message(ShowNotice(safe_text(outcome.text), "warning"))
        self._update()

    # What is read

    def _read_children(self) -> None:
        self.run_worker(self._load_children, group="children", exclusive=True)

    async def _load_children(self) -> None:
        """Without it the subagents show their own asks, and the list tells every change."""
        if self._children is not None:
            with suppress(ApiError, ServerUnreachable):
                await self._children.read()

    async def _read_owner(self, chat_id: ChatId) -> None:
        """Without it the server says who may answer."""
        with suppress(ApiError, ServerUnreachable):
            chat = await session_of(self).api.get(f"/chats/{chat_id}", Chat)
            self.is_owner = chat.is_owner is not False
            self.draw()
