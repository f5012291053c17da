"""The composer: writes a message to the open chat, or the first one of a new chat."""

import asyncio
from functools import cached_property, partial
from typing import Final

from textual.app import ComposeResult

from chatd.domain.chat.public_messages import PublicMessage, PublicQueuedMessage
from chatd.domain.ids import ChatId
from chatd.terminal.attachments.local_files import mentions_of, write_mention
from chatd.terminal.attachments.pasted_text import Pasted, next_number, write_block
from chatd.terminal.changes.diff_scope import read_scope
from chatd.terminal.composer.behaviours import behaviour_of, find_behaviour
from chatd.terminal.composer.command_runner import CommandRunner
from chatd.terminal.composer.commands import CommandCall, UnknownCommand, read_line
from chatd.terminal.composer.draft_view import DraftView
from chatd.terminal.composer.external_editor import EditorFailed, edit_text
from chatd.terminal.composer.hint_line import HintLine
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.composer.notice_lines import NoticeLines
from chatd.terminal.composer.offer_menu import OfferMenu
from chatd.terminal.composer.sending import (
    Edited,
    EditedMessage,
    EditedQueued,
    last_user_message,
    refused_sends,
)
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.diff_screen import ChangesScreen
from chatd.terminal.pickers.choices import Choices
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import app_of

MAX_WAITING_COMMANDS: Final = 16
"""Slash commands of one terminal that wait for the server."""


class Composer(DraftView):
    """What keys and commands do to the draft."""

    edited: Edited | None
    _waiting_commands = 0

    DEFAULT_CSS = """
    Composer { height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield OfferMenu()
        yield NoticeLines()
        yield TextBox(self)
        yield HintLine()

    @cached_property
    def _turns(self) -> asyncio.Lock:
        """Held by the command that changes something; the next ones wait in their order."""
        return asyncio.Lock()

    @cached_property
    def _choices(self) -> Choices:
        return Choices(self, lambda: app_of(self))

    # Keys of the text box

    def send(self) -> None:
        """Enter: takes the chosen completion, runs a command, or sends."""
        if self._is_sending:
            self._send_next()
            return
        if self._completion.is_open and not self._take_for_enter():
            return
        found = read_line(self._box.text)
        match found:
            case UnknownCommand(word=word):
                name = safe_line(word, 30)
                self.say(f"There is no command /{name}. //{name} sends it as text.", "warning")
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
                self.say("A message of another chat still sends its files. Try again then.")
                return
            self._sent_key = self.key
            self._delivery.begin(written)
            self._sending = self.start(partial(self._delivery.send, written, text), "send")
        self.refresh_facts()

    def _send_next(self) -> None:
        """A message that was written while the one before is on its way. A second Enter for the
        same message is none."""
        written = self._delivery.text_after(self._box.text)
        found = read_line(written)
        if isinstance(found, CommandCall | UnknownCommand):
            self.say("The message before is on its way. Enter again then runs this.")
        elif found.text and not self._delivery.send_after(written, found.text):
            self.say("The message before is on its way. Enter again then sends this.")

    def _take_for_enter(self) -> bool:
        """Whether Enter goes on to run what is written: a command that is complete."""
        text = self._box.text
        offer = self._completion.take()
        if offer is None:
            return True
        self._attach_offer(text)
        return offer.is_whole

    def take_offer(self) -> bool:
        """Tab. One that cannot be taken now stays, with the reason that the menu shows."""
        text = self._box.text
        if self._completion.take() is None:
            return self._completion.is_open
        self._attach_offer(text)
        return True

    def _attach_offer(self, before: str) -> None:
        """A file that was chosen from the menu is uploaded at once: its refusal comes early."""
        known = {one.path for one in mentions_of(before)}
        for mention in mentions_of(self._box.text):
            if mention.path not in known and not mention.path.endswith("/"):
                self.files.attach(self.key, mention)

    def run_line(self, line: str) -> None:
        """Runs a command that was chosen elsewhere; what is being written stays."""
        found = read_line(line)
        if isinstance(found, CommandCall):
            self._run_command(found, keeps_text=True)

    def _run_command(self, call: CommandCall, *, keeps_text: bool = False) -> None:
        runner = CommandRunner(self)
        refusal = runner.refusal(call)
        if self._waiting_commands >= MAX_WAITING_COMMANDS:
            refusal = "Earlier commands still wait for the server. Try again then."
        if refusal:
            self.say(refusal, "warning")
            return
        if not keeps_text:
            self.write("")
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

    def go_back(self) -> bool:
        """Up: through the menu; in an empty box to the last queued message; else the history."""
        if self._completion.step(-1):
            return True
        text = self._box.text
        queue = () if self.chat is None else self.chat.shown.queue
        if not text and queue and self.edited is None:
            self.edit_queued(queue[-1])
            return True
        self._recall.back(text)
        return True

    def go_forward(self) -> bool:
        return self._completion.step(1) or self._recall.forward(self._box.text)

    def close(self) -> bool:
        """Esc: the menu, a message on its way, or an edit."""
        if self._completion.close():
            return True
        if self._sending is not None and self._is_sending and self._delivery.can_cancel:
            self._sending.cancel()
            self.call_later(self.refresh_facts)
            return True
        if self.edited is not None:
            self.stop_editing()
            return True
        return False

    def take_paste(self, pasted: Pasted) -> None:
        """A long one is attached as a file; the text has a word that stands for it."""
        word = write_block(next_number(self._box.text), pasted.text)
        self._box.insert(f"{word} ")
        name = f"pasted-text-{next_number(self._box.text) - 1}.txt"
        self.files.attach_text(self.key, word, name, pasted.text)
        if pasted.is_cut:
            self.say(f"The paste was cut: {len(pasted.text):,} characters are attached.", "warning")

    def run_key(self, action: str) -> None:
        match action:
            case "editor":
                self.start(self._edit_outside, "editor")
            case "busy":
                self.busy = self.busy.cycled()
                self.refresh_facts()
            case "model":
                self.choose_model()
            case "edit_last":
                self.edit_last()
            case "queue":
                self.go_to_queue()
            case _:
                raise ValueError(action)

    async def _edit_outside(self) -> None:
        key, machine = self.key, self.session.machine
        try:
            self.put_text(key, await edit_text(app_of(self), machine, self._box.text))
        except EditorFailed as error:
            self.say(str(error), "warning")

    # What commands ask for

    def choose_model(self) -> None:
        self.start(self._choices.choose_model, "choice")

    def choose_effort(self) -> None:
        self.start(self._choices.choose_effort, "choice")

    def choose_workspace(self, name: str) -> None:
        self.start(partial(self._choices.choose_workspace, name), "choice")

    def choose_mcp_servers(self) -> None:
        self.start(self._choices.choose_mcp_servers, "choice")

    def keep_busy(self, word: str) -> None:
        found = find_behaviour(word)
        self.busy = self.busy.cycled() if found is None else self.busy.with_kept(found.value)
        chosen = behaviour_of(self.busy.value)
        self.say(f"While the chat works a message {chosen.verb}: {chosen.effect}.")
        self.refresh_facts()

    def attach_path(self, path: str) -> None:
        word = write_mention(path)
        self._box.insert(f"{word} ")
        for mention in mentions_of(word):
            self.files.attach(self.key, mention)

    def go_to_queue(self) -> None:
        if self.chat is None or not self.chat.shown.queue:
            self.say("The queue is empty.")
            return
        self.screen.query_one("QueueView").focus()

    def show_changes(self, scope: str) -> None:
        assert self.chat_id is not None
        app_of(self).push_screen(ChangesScreen(self.chat_id, read_scope(scope)))

    def leave(self) -> None:
        self.run_worker(partial(app_of(self).run_action, "screen.detach"))

    def continue_chat(self) -> None:
        self.start(self._delivery.continue_chat, "continue")

    # Sent, queued and refused messages

    def edit_last(self) -> None:
        message = None if self.chat is None else last_user_message(self.chat.shown.messages)
        if message is None:
            self.say("There is no message to edit.")
            return
        self.edit_message(message)

    def edit_message(self, message: PublicMessage) -> None:
        content = read_content(message.content)
        self._edit(EditedMessage(message_id=message.id, kept=content.kept), content.text)

    def edit_queued(self, message: PublicQueuedMessage) -> None:
        content = read_content(message.content)
        self._edit(EditedQueued(queue_id=message.id, kept=content.kept), content.text)

    def _edit(self, edited: Edited, text: str) -> None:
        self.stop_editing()
        self._recall.forget()
        self.edited = edited
        self._store.clear(self.key)
        self.write(text)
        self.refresh_facts()
        self.focus()

    def take_unsent(self) -> None:
        """The oldest refused message comes back into the box."""
        for key in self._refused():
            draft = self.session.outbox.dismiss(key)
            if draft is not None:
                before = self._box.text.strip()
                text = read_content(draft.content).text
                self.write(f"{before}\n\n{text}" if before else text)
                return
        self.say("No message was refused.")

    def retry_unsent(self) -> None:
        keys = self._refused()
        for key in keys:
            self.session.outbox.retry(key)
        if not keys:
            self.say("No message was refused.")

    def _refused(self) -> list[str]:
        chat_id: ChatId | None = self.chat_id
        return [] if chat_id is None else refused_sends(self.session.outbox, chat_id)
