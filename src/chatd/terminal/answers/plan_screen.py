"""The whole of a proposed plan, on a screen of its own."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Static

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import FollowedChat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.answer_panel import GUARD_S, NOT_OWNER, AnswerPanel
from chatd.terminal.answers.ask_form import AskFrame, HintsChanged, hint_line
from chatd.terminal.answers.asks import ProposedPlan, proposed_plan
from chatd.terminal.answers.plan_form import PlanDone, PlanForm
from chatd.terminal.keys import bindings_of
from chatd.terminal.session import app_of, session_of

NO_PLAN = "This chat has proposed no plan, or something was said since. Esc goes back."


class PlanScreen(Screen[None]):
    """Closes by itself when another person or program continues the chat."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_of("plan")
    DEFAULT_CSS = """
    PlanScreen > AskFrame { height: 1fr; padding: 1 2; }
    PlanScreen > AskFrame > #ask-place { height: 1fr; }
    PlanScreen > #no-plan { padding: 1 3; color: $text-muted; display: none; }
    PlanScreen.-none > #no-plan { display: block; }
    PlanScreen.-none > AskFrame { display: none; }
    """

    def __init__(self, chat_id: ChatId | None, *, guard_s: float = GUARD_S) -> None:
        super().__init__()
        self.guard_s = guard_s
        self._awake_at = 0.0
        self._is_owner = True
        self._chat_id = chat_id
        self._form: PlanForm | None = None
        self._frame = AskFrame()
        self._stop: Callable[[], None] = lambda: None

    def compose(self) -> ComposeResult:
        yield self._frame
        yield Static(NO_PLAN, id="no-plan", markup=False)

    def on_mount(self) -> None:
        if self._chat_id is None:
            self.add_class("-none")
            return
        connection = session_of(self).connection
        self._stop = connection.follow_chat(self._chat_id, self._on_chat)

    def on_unmount(self) -> None:
        self._stop()

    def _on_chat(self, chat: FollowedChat) -> None:
        """Called in the connection's task."""
        self.call_later(self._show, chat)

    def _show(self, chat: FollowedChat) -> None:
        if not self.is_attached:
            return
        plan = proposed_plan(chat.shown)
        if plan is None:
            if self._form is not None and self.is_current:
                self.dismiss()
            self.set_class(self._form is None, "-none")
        elif self._form is None or plan != self._form.plan:
            self._open(plan)

    def _open(self, plan: ProposedPlan) -> None:
        self.remove_class("-none")
        self._form = PlanForm(plan, None, full=True)
        self._awake_at = session_of(self).clock.monotonic() + self.guard_s
        self._frame.put_form(self._form)
        self.call_after_refresh(self._form.take_focus)
        self.run_worker(partial(self._read_owner, plan.chat_id), group="owner", exclusive=True)

    async def _read_owner(self, chat_id: ChatId) -> None:
        """If this fails, the server still decides which user may answer."""
        with suppress(ApiError, ServerUnreachable):
            chat = await session_of(self).api.get_chat(chat_id)
            self._is_owner = chat.is_owner is not False
            self.post_message(HintsChanged())

    def on_hints_changed(self, message: HintsChanged) -> None:
        message.stop()
        form = self._form
        if form is not None and form.is_mounted and form.is_attached:
            before = "" if self._is_owner else NOT_OWNER
            actions = form.actions if self._is_owner else ()
            keys = hint_line([*actions, ("leave", "Back")], before=before)
            self._frame.draw_frame(form.title, (), form.problem, keys)

    def on_plan_done(self, message: PlanDone) -> None:
        message.stop()
        if message.notice:
            self.notify(message.notice, markup=False)
        for screen in app_of(self).screen_stack:
            for panel in screen.query(AnswerPanel):
                panel.forget_plan(message.plan)
        self.dismiss()

    @property
    def is_awake(self) -> bool:
        """Whether the plan was there long enough to take keys."""
        return session_of(self).clock.monotonic() >= self._awake_at

    def action_answer(self, name: str) -> None:
        """One of the form's own keys, unless the plan has just appeared under the fingers."""
        if self._form is not None and self._is_owner and self.is_awake:
            self._form.act(name)

    def action_leave(self) -> None:
        if self._form is None or not self._form.leave():
            self.dismiss()
