"""The panel above the composer: what the open chat waits for, one at a time, with its answers.

An approval or a question takes the focus by itself only if nothing is being written: the message
box has the focus and is empty. A form that has just appeared takes no keys for a moment, so that a
key pressed twice does not answer the next ask, and letters of somebody who had begun to type go on
to the message box.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from textual import events
from textual.content import Content
from textual.widget import Widget

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import FollowedChat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.answer_requests import AnswerSender, WaitingChildren
from chatd.terminal.answers.approval_form import ApprovalDraft, ApprovalForm, ClientForm
from chatd.terminal.answers.ask_form import (
    Answered,
    AskForm,
    AskFrame,
    DraftKept,
    HintsChanged,
    hint_line,
    notes_of,
)
from chatd.terminal.answers.asks import (
    Ask,
    AskKey,
    Item,
    OpenAsks,
    ProposedPlan,
    QuestionDraft,
    approvals_like,
    is_same,
    key_of,
)
from chatd.terminal.answers.plan_form import PlanDone, PlanForm
from chatd.terminal.answers.question_form import QuestionForm
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.keys import KEYS, bindings_of
from chatd.terminal.messages import ShowNotice
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import session_of

GUARD_S: Final = 0.6
"""How long a form ignores keys after it has appeared while the person was typing."""
RELEASE_S: Final = 1.5
"""How long the focus stays away from the message box after an ask was answered elsewhere."""
FOCUS_HINT: Final = "F3 answers:"
NOT_OWNER: Final = "Only the owner of the chat can answer."
CLOCK_S: Final = 20.0
"""How often the time that is left is updated."""
_FREE_ACTIONS: Final = frozenset({"leave", "unfold", "up", "down"})
"""Actions that change nothing, so they need no guard."""
_ACTIONS: Final = {
    key: one.action.removeprefix("answer('").removesuffix("')")
    for one in KEYS["answers"]
    for key in one.keys.split(",")
}
"""By key; for `answer('approve')`, by its argument."""


def make_form(item: Item, fellows: Sequence[Ask], draft: object) -> AskForm:
    """`fellows` are the approvals that can be answered together with this one."""
    if isinstance(item, ProposedPlan):
        return PlanForm(item, draft if isinstance(draft, str) else None)
    match item.call.kind:
        case "question":
            return QuestionForm(item, draft if isinstance(draft, QuestionDraft) else None)
        case "client":
            return ClientForm(item)
        case _:
            return ApprovalForm(item, fellows, draft if isinstance(draft, ApprovalDraft) else None)


class AnswerPanel(AskFrame):
    """`asks` is what waits; one of them is shown in a form."""

    BINDINGS = bindings_of("answers")
    DEFAULT_CSS = """
    AnswerPanel { display: none; border: round $border-blurred; }
    AnswerPanel.-shown { display: block; }
    AnswerPanel:focus-within { border: round $warning; }
    """

    def __init__(self, *, guard_s: float = GUARD_S) -> None:
        super().__init__()
        self.guard_s = guard_s
        self.form: AskForm | None = None
        self.item: Item | None = None
        self.asks = OpenAsks()
        self.failure = ""
        self.is_owner = True
        self._awake_at = 0.0
        self._before: Widget | None = None
        self._is_new = False
        """The form has appeared, and its screen was not on top since."""
        self._is_uncalled = False
        """It has taken the focus by itself, and no key has answered since."""
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
        self._show_asks()
        chat_id = self.asks.chat_id
        if self.item is not None and chat_id is not None and chat_id != self._owner_of:
            self._owner_of = chat_id
            self.run_worker(partial(self._read_owner, chat_id), group="owner", exclusive=True)

    # The form that is shown, and the focus

    def _show_asks(self) -> None:
        """Show what waits now. What ended elsewhere is reported in a line."""
        for text in self.asks.refresh():
            self.post_message(ShowNotice(text))
        item = self.asks.current(self.item)
        is_own = self.item is not None and self.asks.is_answered_here(self.item)
        if item is None:
            self._hide(is_own=is_own)
        elif self.item is None or not is_same(item, self.item):
            self.open_item(item, is_own=is_own)
        else:
            self.item = item
            if isinstance(self.form, ApprovalForm):
                self.form.set_fellows(self._fellows(item))
            self.draw()

    def open_item(self, item: Item, *, is_own: bool) -> None:
        """`is_own`: the person did something that leads to this form. If not, the form before was
        taken away while somebody looked at it: keys that were meant for it must not answer this
        one, so the focus leaves the panel."""
        had_focus = self.has_focus_within
        if had_focus and not is_own:
            self._release_focus()
        self.item, self.failure = item, ""
        self.form = make_form(item, self._fellows(item), self.asks.draft_of(item))
        self._awake_at = session_of(self).clock.monotonic() + self.guard_s
        self.put_form(self.form)
        self.add_class("-shown")
        if had_focus and is_own:
            self.call_after_refresh(self.form.take_focus)
        elif not had_focus:
            self._is_new = True
            self.call_after_refresh(self.take_keys)
        self.call_after_refresh(self.draw)

    def take_keys(self) -> None:
        """Once for each form, when it is there and its screen is on top: take the focus if nothing
        is written."""
        form = self.form
        if form is None or not self._is_new or not self.screen.is_current:
            return
        if not form.is_mounted or not all(one.is_mounted for one in form.walk_children(Widget)):
            return  # it says so when it is
        self._is_new = False
        box = self.screen.focused
        is_wanted = isinstance(form, ApprovalForm | QuestionForm) and self.is_owner
        if is_wanted and isinstance(box, TextBox) and not box.text:
            self.take_focus()
            self._is_uncalled = True
            self._awake_at = session_of(self).clock.monotonic() + self.guard_s

    def _hide(self, *, is_own: bool) -> None:
        if self.form is None:
            return
        had_focus = self.has_focus_within
        if had_focus and not is_own:
            self._release_focus()
        self.form, self.item = None, None
        self.put_form(None)
        self.remove_class("-shown")
        if had_focus and is_own:
            self.give_focus_back()

    def _release_focus(self) -> None:
        """Give the focus to nothing for a moment: further typing then goes nowhere."""
        self.screen.set_focus(None)
        self.set_timer(RELEASE_S, self._refocus)

    def _refocus(self) -> None:
        if self.screen.focused is None:
            self.give_focus_back()

    def _fellows(self, item: Item) -> list[Ask]:
        asks = [one for one in self.asks.items if isinstance(one, Ask)]
        return approvals_like(item, asks) if isinstance(item, Ask) else []

    def draw(self) -> None:
        form, item = self.form, self.item
        if form is None or item is None or not (form.is_mounted and form.is_attached):
            return
        notes = notes_of(form, item, self.asks, session_of(self).clock.now())
        failure = self.failure or form.problem
        self.draw_frame(form.title, notes, failure, self._hints(form, item))

    def _hints(self, form: AskForm, item: Item) -> list[Content]:
        if key_of(item) in self.asks.sending:
            return hint_line((), before="Sending…")
        others = [("next_ask", "Next")] if len(self.asks.items) > 1 else []
        if not self.is_owner:
            return hint_line(others, before=NOT_OWNER)
        if form.actions and not self.has_focus_within:
            return hint_line([*form.actions, *others], before=FOCUS_HINT)
        return hint_line([*form.actions, *others], numbered=form.numbered)

    def on_descendant_focus(self) -> None:
        self.draw()

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self.draw)

    def on_hints_changed(self, message: HintsChanged) -> None:
        message.stop()
        self.take_keys()
        self.draw()

    def take_focus(self) -> bool:
        """Put the cursor into the panel; false if nothing waits."""
        if self.form is None:
            return False
        if not self.has_focus_within:
            self._before = self.screen.focused
        self._is_uncalled = False
        self.form.take_focus()
        return True

    def give_focus_back(self) -> None:
        before = self._before
        if before is not None and before.is_attached and before.focusable:
            before.focus()
        else:
            self.screen.focus_next()

    @property
    def is_awake(self) -> bool:
        """Whether the form was there long enough to take keys."""
        return session_of(self).clock.monotonic() >= self._awake_at

    # What keys do

    def action_answer(self, name: str) -> None:
        """One of the form's own keys. Those that decide wait for the guard."""
        if self.form is not None and (name in _FREE_ACTIONS or self._can_decide):
            self._is_uncalled = False
            self.form.act(name)
            self.draw()

    def action_number(self, number: int) -> None:
        if self.form is not None and self._can_decide:
            self._is_uncalled = False
            self.form.choose_number(number)
            self.draw()

    @property
    def _can_decide(self) -> bool:
        is_sending = self.item is not None and key_of(self.item) in self.asks.sending
        return self.is_owner and self.is_awake and not is_sending

    def on_key(self, event: events.Key) -> None:
        """Letters of somebody who began to type when the form took the focus. Fields of the form
        keep theirs."""
        if self.form is None or not self._is_uncalled or not event.is_printable:
            return
        offered = {name for name, _ in self.form.actions}
        is_answer = _ACTIONS.get(event.key, "") in offered or event.key.isdecimal()
        if not (is_answer and self.is_awake):
            event.stop()
            self._write_on(event.character or "")

    async def on_paste(self, event: events.Paste) -> None:
        if self._is_uncalled and isinstance(self._before, TextBox):
            event.stop()
            self._before.focus()
            self._before.post_message(events.Paste(event.text))

    def _write_on(self, text: str) -> None:
        if isinstance(self._before, TextBox) and self._before.is_attached:
            self._before.focus()
            self._before.insert(text)

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
        """If this fails, the subagents show their own asks, and the list reports every change."""
        if self._children is not None:
            with suppress(ApiError, ServerUnreachable):
                await self._children.read()

    async def _read_owner(self, chat_id: ChatId) -> None:
        """If this fails, the server still decides which user may answer."""
        with suppress(ApiError, ServerUnreachable):
            chat = await session_of(self).api.get_chat(chat_id)
            self.is_owner = chat.is_owner is not False
            self.draw()
