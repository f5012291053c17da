"""Shows what waits, one at a time: which form is open, and where the focus goes."""

from typing import Final

from textual.content import Content
from textual.widget import Widget

from chatd.terminal.answers.approval_form import ApprovalForm
from chatd.terminal.answers.asks import Ask, approvals_like
from chatd.terminal.answers.form import AskForm, HintsChanged
from chatd.terminal.answers.forms import make_form
from chatd.terminal.answers.frame import AskFrame
from chatd.terminal.answers.hints import hint_line, notes_of
from chatd.terminal.answers.open_asks import Item, OpenAsks, is_same, key_of
from chatd.terminal.messages import ShowNotice
from chatd.terminal.session import session_of

GUARD_S: Final = 0.6
"""After a form has appeared under the fingers of somebody who answers."""
RELEASE_S: Final = 1.5
"""Between an ask that was answered elsewhere and the message box."""
FOCUS_HINT: Final = "F3 answers:"
NOT_OWNER: Final = "Only the owner of the chat can answer."


class AskPanel(AskFrame):
    """`asks` is what waits; `update_asks` shows it."""

    DEFAULT_CSS = """
    AskPanel { display: none; border: round $border-blurred; }
    AskPanel.-shown { display: block; }
    AskPanel:focus-within { border: round $warning; }
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

    def take_focus(self) -> bool:
        """Put the cursor into the panel; false if nothing waits."""
        if self.form is None:
            return False
        if not self.has_focus_within:
            self._before = self.screen.focused
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

    def update_asks(self) -> None:
        """What ended elsewhere is told in a line."""
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
        self.call_after_refresh(self.draw)

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
        """For a moment nothing has the focus: what is typed on goes nowhere."""
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
        before = FOCUS_HINT if form.actions and not self.has_focus_within else ""
        return hint_line([*form.actions, *others], before=before)

    def on_descendant_focus(self) -> None:
        self.draw()

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self.draw)

    def on_hints_changed(self, message: HintsChanged) -> None:
        message.stop()
        self.draw()
