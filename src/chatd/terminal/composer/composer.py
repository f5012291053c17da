"""The composer: writes a message to the open chat, or the first one of a new chat."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Self, cast

from msgspec.structs import replace
from rich.text import Text
from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TextArea
from textual.worker import Worker

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.domain.ids import ChatId
from chatd.terminal.composer.choices import Choices
from chatd.terminal.composer.command_runner import CommandRunner
from chatd.terminal.composer.commands import (
    CommandCall,
    UnknownCommand,
    behaviour_of,
    read_line,
)
from chatd.terminal.composer.completion import Completion, OfferMenu
from chatd.terminal.composer.composer_lines import (
    HintLine,
    Hints,
    Notice,
    NoticeLines,
    StatusFacts,
    attachment_notice,
    enter_text,
    status_hints,
    unsent_notices,
)
from chatd.terminal.composer.custom_commands import (
    MAX_LISTED_SKILLS,
    PROJECT_DIRECTORY,
    CustomCommands,
)
from chatd.terminal.composer.delivery import Delivery
from chatd.terminal.composer.local_files import mentions_of
from chatd.terminal.composer.message_content import command_in
from chatd.terminal.composer.model_texts import context_limit_of
from chatd.terminal.composer.open_draft import EditedMessage, EditedQueued, OpenDraft, Recall
from chatd.terminal.composer.text_box import (
    EditorFailed,
    TextBox,
    edit_text,
)
from chatd.terminal.key_order import read_alt_enter
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import app_of, session_of

SAVE_AFTER_S: Final = 0.5
"""How long after the last key a draft is written to disk."""
MAX_WAITING_COMMANDS: Final = 16
"""How many slash commands of one terminal may wait for the server."""


class Composer(Widget):
    """The text box with what stands around it. Its parts do the work: `OpenDraft` keeps what is
    written, `Completion` has the menu, `Recall` the earlier prompts, `Delivery` sends, and
    `CommandRunner` runs commands."""

    DEFAULT_CSS = "Composer { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        session = session_of(self)
        self.opened = OpenDraft(self, session, self._show_draft, self.refresh_facts)
        self.choices = Choices(self.opened, lambda: app_of(self))
        machine = session.machine
        directories = [machine.working_directory / PROJECT_DIRECTORY]
        if machine.config_directory is not None:
            directories.append(machine.config_directory / "commands")
        self._customs = CustomCommands(directories)
        self._completion = Completion(
            self, machine, lambda: self.opened.status, self._customs.listed, self.refresh_facts
        )
        self._recall = Recall(self.opened)
        self._delivery = Delivery(self.opened)
        self._sending: Worker[None] | None = None
        self._sent_key = ""
        self._save_timer: Timer | None = None
        self._stop_outbox: Callable[[], None] = lambda: None
        self._turns = asyncio.Lock()
        """Held by the command that changes something; the next ones wait in their order."""
        self._waiting_commands = 0

    def compose(self) -> ComposeResult:
        yield OfferMenu()
        yield NoticeLines()
        yield TextBox()
        yield HintLine()

    def on_mount(self) -> None:
        read_alt_enter()
        self._stop_outbox = self.opened.session.outbox.on_change(self._on_outbox)
        self.opened.facts.read_models()
        self._read_customs()
        self._show_draft()

    def on_resize(self) -> None:
        """The box grows to a third of the screen, in whole lines."""
        self._box.styles.max_height = max(3, app_of(self).size.height // 3)

    def on_unmount(self) -> None:
        self._stop_outbox()
        self.opened.close()

    @property
    def _box(self) -> TextBox:
        return self.query_one(TextBox)

    @property
    def chat_id(self) -> ChatId | None:
        return self.opened.chat_id

    # The open chat and its draft

    def show(self, chat: FollowedChat | None) -> None:
        opened = self.opened
        before, opened.chat = opened.chat_id, chat
        if before != opened.chat_id:
            opened.open()
        elif isinstance(opened.edited, EditedQueued) and chat is not None:
            queued = {one.id for one in chat.shown.queue}
            if opened.edited.queue_id not in queued and not self._is_sending:
                self._delivery.keep_late_edit(self._box.text)
        if chat is not None:
            answers = (one.id for one in reversed(chat.shown.messages) if one.role == "assistant")
            opened.facts.show_answer(next(answers, None))
        self.refresh_facts()

    def _show_draft(self) -> None:
        self._recall.forget()
        self._box.write(self.opened.draft.text)
        self._completion.close()
        self.refresh_facts()

    @on(TextArea.Changed)
    def _on_text(self, event: TextArea.Changed) -> None:
        event.stop()
        text, opened = self._box.text, self.opened
        if text != opened.draft.text:
            opened.store.change(opened.key, lambda was: replace(was, text=text))
            if self._save_timer is None:
                self._save_timer = self.set_timer(SAVE_AFTER_S, self._save)
        opened.files.drop_unnamed(opened.key, text)
        if text == "/":
            self._read_customs()
        self._completion.update()
        self.refresh_facts()

    @on(TextArea.SelectionChanged)
    def _on_cursor(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self._completion.update()

    def _read_customs(self) -> None:
        """Files may have changed since."""
        self.run_worker(self._load_customs, group="customs", exclusive=True)

    async def _load_customs(self) -> None:
        self._customs.use(await asyncio.to_thread(self._customs.read))
        self._completion.update()
        with suppress(ApiError, ServerUnreachable):
            listed = self.opened.session.api.list_skills()
            self._customs.use_skills(await listed.items(MAX_LISTED_SKILLS))
            self._completion.update()

    def _save(self) -> None:
        self._save_timer = None
        self.opened.store.save()

    # What is shown

    def focus(self, scroll_visible: bool = True, **_: object) -> Self:  # noqa: FBT001, FBT002
        self._box.focus(scroll_visible)
        return self

    @property
    def _is_sending(self) -> bool:
        """The draft that is shown; that of another chat may be on its way too."""
        is_going = self._sending is not None and not self._sending.is_finished
        return is_going and self._sent_key == self.opened.key

    @property
    def can_edit_last(self) -> bool:
        """Nothing is being written that an edit would hide."""
        has_focus = self._box.has_focus and not self._box.text
        return has_focus and self.opened.edited is None and not self.opened.is_busy

    @on(Worker.StateChanged)
    def _on_worker(self, event: Worker.StateChanged) -> None:
        worker = cast("object", event.worker)  # pyright: ignore[reportUnknownMemberType]
        if worker is self._sending:
            self.refresh_facts()

    def _on_outbox(self) -> None:
        """Called in the outbox's task."""
        self.call_later(self.refresh_facts)

    def refresh_facts(self) -> None:
        if not self.is_mounted or not self.query(HintLine):
            return
        self.query_one(NoticeLines).notices = tuple(self._notices())
        self.query_one(HintLine).hints = self._hints()
        self._box.placeholder = self._placeholder()

    def _notices(self) -> Iterator[Notice]:
        if isinstance(self.opened.edited, EditedMessage):
            yield Notice(
                "note", "", "Editing a sent message: what came after it, and the queue, go."
            )
        elif self.opened.edited is not None:
            yield Notice("note", "", "Editing a queued message. Enter saves it, Esc leaves it.")
        for one in self.opened.draft.attachments:
            yield attachment_notice(one)
        if self.opened.chat is not None:
            yield from unsent_notices(self.opened.chat.pending, is_busy=self.opened.is_busy)

    def _placeholder(self) -> str:
        chat = self.opened.facts.chat
        if self.opened.chat_id is None:
            return "Describe a task. / for commands, @ for files"
        if chat is not None and chat.archived:
            return "This chat is archived. /unarchive takes it out"
        if chat is not None and chat.is_owner is False:
            return "This chat is shared with you: you can read it"
        if self.opened.chat is not None and self.opened.chat.shown.status == "requires_action":
            return "It waits for your answer above (F3). A message here waits too"
        return "Add a message while it works" if self.opened.is_busy else "Write a message"

    def _hints(self) -> Hints:
        opened = self.opened
        messages = () if opened.chat is None else opened.chat.shown.messages
        is_busy = opened.is_busy and opened.edited is None
        right = enter_text(
            behaviour_of(opened.busy.value) if is_busy else None,
            is_once=opened.busy.once is not None,
            is_written=not opened.draft.is_empty,
        )
        if command_in(self._box.text.strip()) and not is_busy:
            right = Text("Enter runs it in the workspace", "dim")
        if self._is_sending:
            right = Text(safe_line(self._delivery.waiting_text(), 200), "bold")
        elif self._completion.is_open:
            right = Text("Enter or Tab takes it · Esc closes", "dim")
        facts = StatusFacts(
            model=opened.model,
            effort=opened.effort,
            place=opened.draft.workspace_name,
            is_plan=opened.is_plan,
            chat=opened.facts.chat,
            project=opened.facts.project_name,
            messages=messages,
            context_limit=context_limit_of(opened.model),
            cost=opened.facts.cost,
        )
        return status_hints(opened.status_words, facts, right)

    # Keys of the text box

    def action_send(self) -> None:
        """Enter: takes the chosen completion, runs a command, or sends."""
        if self._box.ends_with_backslash():
            self._box.new_line(instead=1)
            return
        if self._is_sending:
            self._send_next()
            return
        if self._completion.is_open and not self._take_for_enter():
            return
        found = read_line(self._box.text)
        match found:
            case UnknownCommand(word=word) if (own := self._customs.find(word)) is not None:
                self._send_text(own.prompt(self._box.text.strip().partition(" ")[2].strip()))
            case UnknownCommand(word=word):
                name = safe_line(word, 30)
                self.opened.say(
                    f"There is no command /{name}. //{name} sends it as text.", "warning"
                )
            case CommandCall():
                self._run_command(found)
            case _ if found.text:
                self._send_text(found.text)
            case _:
                return

    def _send_text(self, text: str) -> None:
        written = self._box.text
        self._recall.forget()
        if not self._delivery.send_at_once(written, text):
            if self._sending is not None and not self._sending.is_finished:
                self.opened.say("A message of another chat still sends its files. Try again then.")
                return
            self._sent_key = self.opened.key
            self._delivery.begin(written)
            self._sending = self.opened.start(partial(self._delivery.send, written, text), "send")
        self.refresh_facts()

    def _send_next(self) -> None:
        """Send a message that was written while the one before is on its way. A second Enter for
        the same message sends nothing."""
        written = self._delivery.text_after(self._box.text)
        found = read_line(written)
        if isinstance(found, CommandCall | UnknownCommand):
            self.opened.say("The message before is on its way. Enter again then runs this.")
        elif found.text and not self._delivery.send_after(written, found.text):
            self.opened.say("The message before is on its way. Enter again then sends this.")

    def _take_for_enter(self) -> bool:
        """Whether Enter continues by running what is written: a command that is complete."""
        text = self._box.text
        offer = self._completion.take()
        if offer is None:
            return True
        self._attach_offer(text)
        return offer.is_whole

    def action_complete(self) -> None:
        """Take the chosen completion. If none can be taken now, the menu says why."""
        text = self._box.text
        if self._completion.take() is not None:
            self._attach_offer(text)
        elif not self._completion.is_open:
            raise SkipAction

    def _attach_offer(self, before: str) -> None:
        """A file that was chosen from the menu is uploaded at once: its refusal comes early."""
        known = {one.path for one in mentions_of(before)}
        for mention in mentions_of(self._box.text):
            if mention.path not in known and not mention.path.endswith("/"):
                self.opened.files.attach(self.opened.key, mention)

    def run_line(self, line: str) -> None:
        """Run a command that was chosen elsewhere; what is being written stays."""
        found = read_line(line)
        if isinstance(found, CommandCall):
            self._run_command(found, keeps_text=True)

    def _run_command(self, call: CommandCall, *, keeps_text: bool = False) -> None:
        runner = CommandRunner(self.opened, self.choices, self._delivery)
        refusal = runner.refusal(call)
        if self._waiting_commands >= MAX_WAITING_COMMANDS:
            refusal = "Earlier commands still wait for the server. Try again then."
        if refusal:
            self.opened.say(refusal, "warning")
            return
        if not keeps_text:
            self.opened.write("")
        # Not instead of the command before: that would be stopped without a word.
        self.run_worker(partial(self._run_in_turn, runner, call), group="command")

    async def _run_in_turn(self, runner: CommandRunner, call: CommandCall) -> None:
        if not runner.needs_turn(call):
            await runner.run(call)
            return
        self._waiting_commands += 1
        try:
            async with self._turns:
                await runner.run(call)
        finally:
            self._waiting_commands -= 1

    def action_new_line(self) -> None:
        self._box.new_line()

    def action_back(self) -> None:
        """Up: through the menu; in an empty box to the last queued message; else the history."""
        text, opened = self._box.text, self.opened
        queue = () if opened.chat is None else opened.chat.shown.queue
        if not self._box.cursor_at_first_line:
            self._box.action_cursor_up()
        elif self._completion.step(-1):
            return
        elif not text and queue and opened.edited is None:
            opened.edit_queued(queue[-1])
        else:
            self._recall.back(text)

    def action_forward(self) -> None:
        is_last = self._box.cursor_at_last_line
        if not (is_last and (self._completion.step(1) or self._recall.forward(self._box.text))):
            self._box.action_cursor_down()

    def action_close(self) -> None:
        """Esc: the menu, a message on its way, or an edit."""
        if self._completion.close():
            return
        if self._sending is not None and self._is_sending and self._delivery.can_cancel:
            self._sending.cancel()
            self.call_later(self.refresh_facts)
        elif self.opened.edited is not None:
            self.opened.stop_editing()
        else:
            raise SkipAction

    def clear_draft(self) -> bool:
        """Ctrl-C: clear what is being written, which the arrow up brings back; false if there is
        nothing."""
        if self.opened.edited is not None:
            self.opened.stop_editing()
            return True
        if not (text := self._box.text):
            return False
        self._recall.keep_cleared(text)
        self.opened.write("")
        return True

    def action_attach_pasted(self) -> None:
        """Texts that are too long for the box, by the words that stand for them."""
        for pasted in self._box.take_long_pastes():
            self.opened.files.attach_text(self.opened.key, pasted.word, pasted.name, pasted.text)
            if pasted.is_cut:
                count = len(pasted.text)
                self.opened.say(f"The paste was cut: {count:,} characters are attached.", "warning")

    def action_run(self, action: str) -> None:
        match action:
            case "editor":
                self.opened.start(self._edit_outside, "editor")
            case "busy":
                self.opened.busy = self.opened.busy.cycled()
                self.refresh_facts()
            case "model":
                self.choices.choose_model()
            case "history":
                self.opened.start(partial(self._recall.search, self._box.text), "prompts")
            case "edit_last":
                self.opened.edit_last()
            case "paste":
                self.opened.start(self.opened.paste, "paste")
            case "queue":
                self.opened.go_to_queue()
            case _:
                raise ValueError(action)

    async def _edit_outside(self) -> None:
        key, machine = self.opened.key, self.opened.session.machine
        try:
            self.opened.put_text(key, await edit_text(app_of(self), machine, self._box.text))
        except EditorFailed as error:
            self.opened.say(str(error), "warning")
