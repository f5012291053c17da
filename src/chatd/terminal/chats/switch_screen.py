"""Go to a chat by a few letters, or run a command: those begin with a slash, because some act at
once, and the chat that was looked for may not have been found yet."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar, Final

from msgspec import Struct
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.chat_directory import sign_of
from chatd.terminal.chats.chat_rows import age_text
from chatd.terminal.composer.commands import COMMANDS
from chatd.terminal.dialogs import SearchField
from chatd.terminal.keys import NUMBER_BINDINGS
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import app_of, session_of

MAX_SHOWN: Final = 40
SEARCH_S: Final = 0.25
"""How long after the last letter the server is asked."""
FOUND: Final = 20
"""How many chats are requested from the server."""


class GoTo(Struct, frozen=True):
    chat_id: ChatId


class RunCommand(Struct, frozen=True):
    """A slash command, as a person would write it."""

    line: str


Choice = GoTo | RunCommand


class SwitchScreen(ModalScreen[Choice | None]):
    """`chats` are those of the list; the server finds others, even by their messages. `words` are
    searched for at first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,ctrl+p", "give_up", "Close"),
        ("down", "move(1)", "Down"),
        ("up", "move(-1)", "Up"),
        ("pagedown", "move(10)", "Down"),
        ("pageup", "move(-10)", "Up"),
        *NUMBER_BINDINGS,
    ]

    def __init__(self, chats: Sequence[ListedChat], words: str = "") -> None:
        super().__init__()
        self._words = words
        self._chats = [chat for root in chats for chat in (root, *root.children)]
        self._found: Sequence[ListedChat] = ()
        self._choices: list[Choice] = []
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide switch"):
            place = "Find a chat, or / and a command"
            yield SearchField(self._words, placeholder=place, compact=True)
            yield OptionList(compact=True)
            yield Static("Enter or a number opens, Esc closes", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).cursor_position = len(self._words)
        self.find_soon()

    @on(Input.Changed)
    def find_soon(self) -> None:
        self._found = ()
        self._draw()
        if self._timer is not None:
            self._timer.stop()
        if self._text and not self._is_command:
            self._timer = self.set_timer(SEARCH_S, self._ask)

    @on(Input.Submitted)
    def choose(self) -> None:
        place = self.query_one(OptionList).highlighted
        if place is not None:
            self.dismiss(self._choices[place])

    @on(OptionList.OptionSelected)
    def choose_clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index])

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        last = len(self._choices) - 1
        options.highlighted = min(max((options.highlighted or 0) + by, 0), last)

    def action_number(self, number: int) -> None:
        if number <= len(self._choices):
            self.dismiss(self._choices[number - 1])

    def action_give_up(self) -> None:
        self.dismiss(None)

    @property
    def _text(self) -> str:
        return self.query_one(Input).value.strip()

    def _ask(self) -> None:
        self._timer = None
        self.run_worker(partial(self._search, self._text), exclusive=True)

    async def _search(self, text: str) -> None:
        try:
            found = await session_of(self).api.list_chats(q=text, limit=FOUND, source="all")
        except (ApiError, ServerUnreachable):
            return  # what is known here can still be chosen
        if text == self._text:
            self._found = found.items
            self._draw()

    @property
    def _is_command(self) -> bool:
        return self._text.startswith("/")

    def _draw(self) -> None:
        words = self._text.lower().split()
        rows = _commands(words) if self._is_command else self._chat_rows(words)
        self._choices = [choice for choice, _ in rows]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            Option(line if self._text else Text.assemble((_number(at), "bold"), line, no_wrap=True))
            for at, (_, line) in enumerate(rows, 1)
        )
        options.highlighted = 0 if rows else None

    def _chat_rows(self, words: Sequence[str]) -> Sequence[tuple[Choice, Text]]:
        chats = [chat for chat in self._chats if _has_words(chat.title, words)]
        known = {chat.id for chat in chats}
        return [
            *((GoTo(chat.id), self._chat_line(chat)) for chat in chats),
            *((GoTo(one.id), self._chat_line(one)) for one in self._found if one.id not in known),
        ][:MAX_SHOWN]

    def _chat_line(self, chat: Chat) -> Text:
        sign, color_of = sign_of(chat), app_of(self).theme_variables
        hit = chat.match.text if isinstance(chat, ListedChat) and chat.match else ""
        note = chat.action_summary or hit or ""
        age = age_text(chat.updated_at, session_of(self).clock.now())
        return Text.assemble(
            (f"{sign.sign} ", color_of.get(sign.tone, "")),
            safe_line(chat.title or "New chat", 60),
            (f"  {age}  {safe_line(note, 60)}", color_of.get("text-muted", "")),
            no_wrap=True,
            overflow="ellipsis",
        )


def _number(at: int) -> str:
    return f"{at} " if at < 10 else "  "


def _has_words(text: str, words: Iterable[str]) -> bool:
    lower = text.lower()
    return all(word in lower for word in words)


def _commands(words: Sequence[str]) -> list[tuple[Choice, Text]]:
    return [
        (RunCommand(f"/{one.name}"), Text.assemble((f"/{one.name}", "bold"), f"  {one.effect}"))
        for one in COMMANDS
        if _has_words(f"/{one.name} {one.effect}", words)
    ]
