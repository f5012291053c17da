"""The panel above the composer: what the open chat waits for, one at a time, with its answers.

It never takes the focus by itself: somebody who types a message when it appears goes on typing. And
a form that has just appeared takes no keys for a moment, so that a key pressed twice does not
answer the next ask.
"""

from contextlib import suppress
from typing import Final

from textual.content import Content
from textual.widget import Widget

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import FollowedChat
from chatd.client.resources import Chat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.approval_form import ApprovalForm
from chatd.terminal.answers.asks import Ask, AskKey, ProposedPlan, approvals_like, time_left
from chatd.terminal.answers.children import WaitingChildren
from chatd.terminal.answers.form import Answered, AskForm, DraftKept, HintsChanged
from chatd.terminal.answers.forms import make_form
from chatd.terminal.answers.frame import AskFrame
from chatd.terminal.answers.hints import hint_line
from chatd.terminal.answers.open_asks import Item, OpenAsks, key_of
from chatd.terminal.answers.plan_form import PlanDone
from chatd.terminal.answers.sending import AnswerSender
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import ShowNotice
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import app_of, session_of

GUARD_S: Final = 0.6
"""After a form has appeared under the fingers of somebody who answers."""
CLOCK_S: Final = 20.0
FOCUS_HINT: Final = "F3 answers:"
_FREE_ACTIONS: Final = frozenset({"leave", "next_ask", "previous_ask", "unfold", "up", "down"})
"""They change nothing, so they need no guard."""


class AnswerPanel(AskFrame):
    BINDINGS = bindings_of("answers")
    DEFAULT_CSS = """
    AnswerPanel { display: none; max-height: 60%; border: round $warning-muted; }
    AnswerPanel.-shown { display: block; }
    AnswerPanel:focus-within { border: round $warning; }
    """

    def __init__(self, *, guard_s: float = GUARD_S) -> None:
        super().__init__()
        self.guard_s = guard_s
        self.form: AskForm | None = None
        self._asks = OpenAsks()
        self._children: WaitingChildren | None = None
        self._sender: AnswerSender | None = None
        self._item: Item | None = None
        self._failure = ""
        self._is_owner = True
        self._awake_at = 0.0
        self._before: Widget | None = None
        self._is_due = False

    def on_mount(self) -> None:
        session = session_of(self)
        self._sender = AnswerSender(session.api)
        self._children = WaitingChildren(
            session.api, session.connection, self._update_later, self._read_children
        )
        self.set_interval(CLOCK_S, self._draw)

    def on_unmount(self) -> None:
        if self._children is not None:
            self._children.close()

    # What the main screen calls

    def show(self, chat: FollowedChat | None) -> None:
        chat_id = None if chat is None else chat.chat_id
        if chat_id != self._asks.chat_id:
            self._is_owner, self._failure = True, ""
        if self._children is not None:
            self._children.watch(chat_id)
        self._asks.chat = None if chat is None or chat.gone else chat.shown
        self._update()

    def take_focus(self) -> bool:
        """Put the cursor into the panel; false if nothing waits."""
        if self.form is None:
            return False
        if not self.has_focus_within:
            self._before = self.screen.focused
        self.form.take_focus()
        return True

    @property
    def plan(self) -> ProposedPlan | None:
        return next((one for one in self._asks.items if isinstance(one, ProposedPlan)), None)

    # What is shown

    def _update_later(self) -> None:
        """Listeners of the connection are called outside of this widget's own tasks."""
        if not self._is_due:
            self._is_due = True
            self.call_later(self._update)

    def _update(self) -> None:
        self._is_due = False
        if self._children is not None:
            self._asks.children = self._children.shown
        for text in self._asks.refresh():
            self.post_message(ShowNotice(text))
        item = self._asks.current(self._item)
        if item is None:
            self._hide()
        elif self._item is None or key_of(item) != key_of(self._item):
            self._open(item)
        else:
            self._item = item
            if isinstance(self.form, ApprovalForm):
                self.form.set_fellows(self._fellows(item))
            self._draw()

    def _open(self, item: Item) -> None:
        had_focus, is_new = self.has_focus_within, self._item is None
        self._item, self._failure = item, ""
        self.form = make_form(item, self._fellows(item), self._asks.draft_of(item))
        self._awake_at = session_of(self).clock.monotonic() + self.guard_s
        self.put_form(self.form)
        self.add_class("-shown")
        if had_focus:
            self.call_after_refresh(self.form.take_focus)
        self.call_after_refresh(self._draw)
        if is_new:
            app_of(self).bell()
            self.run_worker(self._read_owner(item.chat_id), group="owner", exclusive=True)

    def _hide(self) -> None:
        if self.form is None:
            return
        had_focus = self.has_focus_within
        self.form, self._item = None, None
        self.put_form(None)
        self.remove_class("-shown")
        if had_focus:
            self._give_focus_back()

    def _fellows(self, item: Item) -> list[Ask]:
        asks = [one for one in self._asks.items if isinstance(one, Ask)]
        return approvals_like(item, asks) if isinstance(item, Ask) else []

    def _draw(self) -> None:
        form, item = self.form, self._item
        if form is None or item is None or not form.is_mounted:
            return
        notes = [form.note]
        if isinstance(item, Ask):
            left = time_left(item.call.deadline, session_of(self).clock.now())
            notes = [safe_line(item.asker, 30), form.note, left]
        at, count = self._asks.place_of(item), len(self._asks.items)
        notes.append(f"{at} of {count}" if count > 1 else "")
        self.draw_frame(form.title, notes, self._failure or form.problem, self._hints(form, item))

    def _hints(self, form: AskForm, item: Item) -> Content:
        if key_of(item) in self._asks.sending:
            return hint_line((), before="Sending…")
        others = [("next_ask", "Next")] if len(self._asks.items) > 1 else []
        if not self._is_owner:
            return hint_line(others, before="Only the owner of the chat can answer.")
        if not form.actions:
            return hint_line(others)
        return hint_line(
            [*form.actions, *others], before="" if self.has_focus_within else FOCUS_HINT
        )

    def on_descendant_focus(self) -> None:
        self._draw()

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._draw)

    def on_hints_changed(self, message: HintsChanged) -> None:
        message.stop()
        self._draw()

    # What keys do

    def action_answer(self, name: str) -> None:
        """One of the form's own keys. Those that decide wait for the guard."""
        form, item = self.form, self._item
        if form is None or item is None or not self._is_owner:
            return
        if name not in _FREE_ACTIONS and (self._is_guarded or key_of(item) in self._asks.sending):
            return
        form.act(name)
        self._draw()

    def action_next_ask(self) -> None:
        self._step(1)

    def action_previous_ask(self) -> None:
        self._step(-1)

    def action_leave(self) -> None:
        """One step back in the form, else back to where the person was."""
        if self.form is None or not self.form.leave():
            self._give_focus_back()

    @property
    def _is_guarded(self) -> bool:
        return session_of(self).clock.monotonic() < self._awake_at

    def _step(self, step: int) -> None:
        if self._item is not None and len(self._asks.items) > 1:
            self._open(self._asks.beside(self._item, step))

    def _give_focus_back(self) -> None:
        before = self._before
        if before is not None and before.is_attached and before.focusable:
            before.focus()
        else:
            self.screen.focus_next()

    # What is sent

    def on_draft_kept(self, message: DraftKept) -> None:
        message.stop()
        self._asks.keep_draft(message.key, message.draft)

    def on_plan_done(self, message: PlanDone) -> None:
        message.stop()
        self.forget_plan(message.plan)
        if message.notice:
            self.post_message(ShowNotice(message.notice))

    def forget_plan(self, plan: ProposedPlan) -> None:
        """The person has decided on it."""
        self._asks.note_answered([key_of(plan)])
        self._update()

    def on_answered(self, message: Answered) -> None:
        message.stop()
        keys = {(message.chat_id, answer.tool_call_id) for answer in message.answers}
        if keys & self._asks.sending:
            return
        self._asks.sending |= keys
        self._failure = ""
        self.run_worker(self._send(message, keys), group="answer")
        self._draw()

    async def _send(self, message: Answered, keys: set[AskKey]) -> None:
        assert self._sender is not None
        try:
            outcome = await self._sender.send(message.chat_id, message.answers)
        finally:
            self._asks.sending -= keys
        if outcome.state == "failed":
            self._failure = outcome.text
        else:
            self._asks.note_answered(keys)
        if outcome.state == "late":
            self.post_message(ShowNotice(outcome.text, "warning"))
        self._update()

    # What is read

    def _read_children(self) -> None:
        self.run_worker(self._load_children(), group="children", exclusive=True)

    async def _load_children(self) -> None:
        """Without it the subagents show their own asks, and the list tells every change."""
        if self._children is not None:
            with suppress(ApiError, ServerUnreachable):
                await self._children.read()

    async def _read_owner(self, chat_id: ChatId) -> None:
        """Without it the server says who may answer."""
        with suppress(ApiError, ServerUnreachable):
            chat = await session_of(self).api.get(f"/chats/{chat_id}", Chat)
            self._is_owner = chat.is_owner is not False
            self._draw()
