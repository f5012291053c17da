"""The screen of the memory: what models have proposed, and the notes that they are told."""

from collections.abc import Awaitable
from functools import partial
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Note
from chatd.domain.memory import MAX_NOTE_CHARS
from chatd.terminal.answers.exact_text import exact_line
from chatd.terminal.dialogs import LinePrompt, Question, ask
from chatd.terminal.keys import bindings_of
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import app_of, session_of

HOW: Final = (
    "Only what you write or accept is kept. Models are told notes that are on, from their next call"
    " on. Nobody else sees them."
)
MAX_NOTES: Final = 100
_CHOICES: Final = ("off", "notes", "proposals")
_CHOICE_TEXTS: Final = {
    "off": "models are told none",
    "notes": "models are told them",
    "proposals": "models are told them, and may propose some",
}


class MemoryScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("memory")
    DEFAULT_CSS = """
    MemoryScreen #memory-head { height: 1; padding: 0 1; background: $panel; text-style: bold; }
    MemoryScreen #memory-list, MemoryScreen #memory-list:focus { height: 1fr; border: none;
        padding: 1; background: $background; background-tint: transparent; }
    MemoryScreen #memory-list > .option-list--option-highlighted { background: $selected;
        color: $foreground; text-style: none; }
    MemoryScreen #memory-list > .option-list--option-disabled { color: $foreground; }
    MemoryScreen .memory-text { padding: 0 2; color: $text-muted; height: auto; }
    MemoryScreen #memory-said { color: $text-warning; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._choice = "notes"
        self._lines: list[Note | None] = []
        self._kept: list[Note] = []
        # Held, and not searched for: a request may end after the screen was closed.
        self._head = Static("Memory", id="memory-head", markup=False)
        self._list = OptionList(id="memory-list", markup=False)
        self._said = Static(id="memory-said", classes="memory-text", markup=False)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._list
        yield self._said
        yield Static(HOW, classes="memory-text", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._list.focus()
        self.action_read()

    # What is shown

    def action_read(self) -> None:
        self.run_worker(self._read, group="read", exclusive=True)

    async def _read(self) -> None:
        api = session_of(self).api
        try:
            settings = await api.get_my_settings()
            proposed = await api.list_notes(state="proposed").items(MAX_NOTES)
            self._kept = list(await api.list_notes().items(MAX_NOTES))
        except (ApiError, ServerUnreachable) as error:
            self._say(f"{error.message} r reads again.")
            return
        self._choice = settings.memory
        told = _CHOICE_TEXTS.get(self._choice, self._choice)
        if not settings.memory_allowed:
            told = "an administrator has switched notes off"
        self._head.update(f"Memory: {told}")
        listed, at = self._list, self._list.highlighted
        listed.clear_options()
        self._lines = []
        if proposed:
            self._heading("Proposed by models: keep them?")
            for note in proposed:
                self._add(("  ?    ", "$text-warning"), note)
        self._heading("Notes" if self._kept else "No notes yet. n adds one.")
        for note in self._kept:
            mark = ("  on   ", "$text-success") if note.enabled else ("  off  ", "$text-muted")
            self._add(mark, note)
        first = next((at for at, note in enumerate(self._lines) if note is not None), None)
        is_there = at is not None and at < len(self._lines) and self._lines[at] is not None
        listed.highlighted = at if is_there else first

    def _heading(self, text: str) -> None:
        self._list.add_option(Option(Content.styled(text, "bold $text-accent"), disabled=True))
        self._lines.append(None)

    def _add(self, mark: tuple[str, str], note: Note) -> None:
        self._list.add_option(Option(Content.assemble(mark, exact_line(note.text))))
        self._lines.append(note)

    def _say(self, text: str) -> None:
        self._said.update(safe_text(text))

    @property
    def _note(self) -> Note | None:
        """The one under the cursor."""
        at = self._list.highlighted
        return self._lines[at] if at is not None and at < len(self._lines) else None

    # What is changed

    def action_add(self) -> None:
        api = session_of(self).api

        def added(text: str | None) -> None:
            if text:
                self._run(api.create_note(text))

        prompt = LinePrompt("A note for all your chats", max_length=MAX_NOTE_CHARS)
        app_of(self).push_screen(prompt, added)

    def action_accept(self) -> None:
        note = self._note
        if note is not None and note.state == "proposed":
            self._run(session_of(self).api.accept_note(note.id))

    def action_edit(self) -> None:
        """A proposal is accepted with the text that is written."""
        note, api = self._note, session_of(self).api
        if note is None:
            return
        is_proposal = note.state == "proposed"

        def edited(text: str | None) -> None:
            if not text:
                return
            if is_proposal:
                self._run(api.accept_note(note.id, text=text))
            else:
                self._run(api.change_note(note.id, {"text": text}))

        if "\n" in note.text:
            self._say("This note has several lines: change it on the page, or with chatd memory.")
            return
        label = "Keep this note" if is_proposal else "The note"
        prompt = LinePrompt(label, note.text, max_length=MAX_NOTE_CHARS, keeps=is_proposal)
        app_of(self).push_screen(prompt, edited)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_edit()

    def action_remove(self) -> None:
        """Of a proposal: it is dismissed."""
        note, api = self._note, session_of(self).api
        if note is None:
            return
        if note.state == "proposed":
            self._run(api.dismiss_note(note.id))
            return
        question = Question(f"Delete the note «{exact_line(note.text)}»?", yes="Delete")
        ask(self, question, lambda: self._run(api.delete_note(note.id)))

    def action_switch(self) -> None:
        note = self._note
        if note is not None and note.state == "kept":
            change = session_of(self).api.change_note(note.id, {"enabled": not note.enabled})
            self._run(change)

    def action_move(self, by: int) -> None:
        note = self._note
        if note is None or note.state != "kept":
            return
        place = self._kept.index(note) + 1 + by
        if not 1 <= place <= len(self._kept):
            return
        at = self._list.highlighted
        self._list.highlighted = None if at is None else at + by
        self._run(session_of(self).api.change_note(note.id, {"place": place}))

    def action_choose(self) -> None:
        """The next of off, notes, proposals."""
        at = _CHOICES.index(self._choice) if self._choice in _CHOICES else 0
        chosen = _CHOICES[(at + 1) % len(_CHOICES)]
        self._run(session_of(self).api.change_my_settings({"memory": chosen}))

    def _run(self, change: Awaitable[object]) -> None:
        self.run_worker(partial(self._change, change), group="save")

    async def _change(self, change: Awaitable[object]) -> None:
        try:
            await change
        except (ApiError, ServerUnreachable) as error:
            self._say(error.message)
        else:
            self._say("")
        await self._read()
