"""A proposed plan: read it, have it implemented or changed, or leave plan mode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatd.client.drafts import ChatChange, Draft, TextInput
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.outbox import OutboxFull
from chatd.client.server import ServerApi
from chatd.terminal.answers.ask_form import AskForm, Body, DraftKept, Entry, HintsChanged
from chatd.terminal.answers.asks import ProposedPlan
from chatd.terminal.answers.exact_text import exact_text
from chatd.terminal.messages import OpenScreen
from chatd.terminal.session import session_of

MAX_PLAN_BYTES: Final = 64 * 1024
"""Twice what the server lets a model propose."""
TAB_SIZE: Final = 4


async def load_plan(api: ServerApi, plan: ProposedPlan) -> str:
    """Raises ApiError and ServerUnreachable."""
    content = await api.load_content(plan.file_id).read(max_bytes=MAX_PLAN_BYTES)
    return content.decode(errors="backslashreplace")


def plan_content(text: str) -> Content:
    """Every character of the text; headings are bold."""
    ended = text.replace("\r\n", "\n").removesuffix("\n")
    lines = exact_text(ended.expandtabs(TAB_SIZE)).split("\n")
    return Content("\n").join(
        Content.styled(line, "bold $text-accent") if line.startswith("#") else Content(line)
        for line in lines
    )


IMPLEMENT_TEXT = "Implement the plan."
NOT_LOADED = "The plan is not shown yet, so it cannot be implemented from here."
NOT_READ = "Read the plan to its end first: End goes there."


@dataclass
class PlanDone(Message):
    """The person has decided on the plan: do not ask for it again."""

    plan: ProposedPlan
    notice: str = ""


class PlanForm(AskForm):
    """`full`: on a screen of its own, so without the key that opens it."""

    DEFAULT_CSS = """
    PlanForm #plan-text { height: auto; padding: 0 1; }
    PlanForm.-full { height: 1fr; }
    PlanForm.-full > Body { height: 1fr; max-height: 100%; }
    """

    def __init__(self, plan: ProposedPlan, draft: str | None, *, full: bool = False) -> None:
        super().__init__(classes="-full" if full else None)
        self.plan = plan
        self._draft = draft or ""
        self._full = full
        self._is_sent = False
        self._is_loaded = self._is_drawn = self._is_read = False
        self._line_count = 0
        self._text = Static("Loading the plan…", id="plan-text", markup=False)

    def compose(self) -> ComposeResult:
        with Body():
            yield self._text
        yield Entry()

    def on_mount(self) -> None:
        self.run_worker(self._load, group="plan", exclusive=True)

    @property
    def title(self) -> str:
        return "The plan is ready to read"

    @property
    def actions(self) -> Sequence[tuple[str, str]]:
        if self.query_one(Entry).is_open:
            return [("leave", "Back")]
        view = [] if self._full else [("view", "Read it all")]
        return [
            ("implement", "Implement"),
            ("change", "Ask for changes…"),
            *view,
            ("leave_plan", "Leave plan mode"),
        ]

    # What keys do

    def do_implement(self) -> None:
        """The whole file is implemented, so its end must have been in sight."""
        self._note_read()
        if not self._is_read:
            self.show_problem(NOT_READ if self._is_loaded else self.problem or NOT_LOADED)
            return
        self._send(Draft(content=(TextInput(IMPLEMENT_TEXT),), mode="off"))

    def do_change(self) -> None:
        label = "What should be different? Enter sends it as a message."
        self.add_class("-writing")
        self.query_one(Entry).open(label, self._draft)
        self.post_message(HintsChanged())

    def do_view(self) -> None:
        self.post_message(OpenScreen("plan"))

    def do_leave_plan(self) -> None:
        self.run_worker(self._leave_plan, group="plan", exclusive=True)

    def leave(self) -> bool:
        entry = self.query_one(Entry)
        if not entry.is_open:
            return False
        entry.close()
        self.remove_class("-writing")
        self.take_focus()
        self.post_message(HintsChanged())
        return True

    def on_entry_taken(self, message: Entry.Taken) -> None:
        message.stop()
        text = message.text.strip()
        if text:
            self._send(Draft(content=(TextInput(text),)))
        else:
            self.show_problem("Write what should be different.")

    def on_entry_left(self, message: Entry.Left) -> None:
        message.stop()
        self.leave()

    def on_text_area_changed(self) -> None:
        entry = self.query_one(Entry)
        if entry.is_open:
            self._draft = entry.text
            self.post_message(DraftKept((self.plan.chat_id, self.plan.call_id), self._draft))

    # What they send

    def _send(self, draft: Draft) -> None:
        """Send once: the outbox repeats it by itself."""
        if self._is_sent:
            return
        try:
            session_of(self).outbox.send(self.plan.chat_id, draft)
        except OutboxFull as error:
            self.show_problem(error.message)
            return
        self._is_sent = True
        self.post_message(PlanDone(self.plan))

    async def _leave_plan(self) -> None:
        try:
            await session_of(self).api.amend_chat(self.plan.chat_id, ChatChange(mode="off"))
        except (ApiError, ServerUnreachable) as error:
            self.show_problem(error.message)
            return
        notice = "Plan mode is off. The plan stays in the chat; nothing was implemented."
        self.post_message(PlanDone(self.plan, notice))

    async def _load(self) -> None:
        """The file as it stands: whatever a renderer of markdown leaves out (comments, targets of
        links) would be implemented without having been seen."""
        try:
            content = plan_content(await load_plan(session_of(self).api, self.plan))
        except (ApiError, ServerUnreachable) as error:
            self._text.update("The plan could not be loaded.")
            self.show_problem(error.message)
        else:
            self._line_count = content.plain.count("\n") + 1
            self._text.update(content)
            self._is_loaded = True
            self.show_problem("")
        self.call_after_refresh(self._note_drawn)

    def _note_drawn(self) -> None:
        self._is_drawn = True
        self._note_read()

    def on_hints_changed(self) -> None:
        """The body was scrolled, or the form has changed."""
        self._note_read()
        if self._is_read and self.problem == NOT_READ:
            self.problem = ""

    def _note_read(self) -> None:
        is_whole = self._is_loaded and self._text.size.height >= self._line_count
        self._is_read |= self._is_drawn and is_whole and not self.query_one(Body).has_more_below
