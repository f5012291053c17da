"""Every key of the terminal, in one table: bindings, the help screen and docs/terminal.md are made
from it.

Terminals and multiplexers keep some keys for themselves (Ctrl-Up on macOS, Ctrl-B in tmux), so an
action that has one of these has a second key.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from textual.binding import Binding, BindingType

Area = Literal["anywhere", "chat list", "timeline", "answers", "queue", "composer"]


class Key(Struct, frozen=True):
    """`keys` are textual's names, separated by commas; the first is the one that is shown.
    `action` is the method `action_...` of the widget of that area. With `footer` it is named in the
    last line. `is_first`: taken before the widget that has the focus can take it."""

    keys: str
    action: str
    text: str
    footer: str = ""
    is_first: bool = False


def _first(keys: str, action: str, text: str, footer: str = "") -> Key:
    return Key(keys, action, text, footer, is_first=True)


KEYS: Final[Mapping[Area, tuple[Key, ...]]] = {
    "anywhere": (
        Key(
            "escape",
            "interrupt",
            "Interrupt the answer; twice in two seconds: its subagents too",
            "Interrupt",
        ),
        _first("ctrl+n", "new_chat", "Start a new chat", "New"),
        _first("ctrl+p", "switch", "Find and open a chat, or run a command", "Go to"),
        _first("ctrl+b,f2", "toggle_list", "Show or hide the chat list", "Chats"),
        _first("alt+up,ctrl+up", "previous_chat", "Open the chat above"),
        _first("alt+down,ctrl+down", "next_chat", "Open the chat below"),
        _first("ctrl+c", "interrupt_or_quit", "Interrupt the answer; twice in two seconds: leave"),
        _first("ctrl+d", "detach", "Leave; the chat goes on", "Leave"),
        _first("ctrl+z", "suspend_process", "Suspend the terminal; fg comes back"),
        _first("f1", "help", "Show all keys", "Help"),
    ),
    "chat list": (),
    "timeline": (),
    "answers": (),
    "queue": (),
    "composer": (),
}


def bindings_of(area: Area) -> list[BindingType]:
    """For `BINDINGS` of the widget or screen of that area."""
    return [
        Binding(
            key.keys,
            key.action,
            key.footer or key.text,
            show=bool(key.footer),
            priority=key.is_first,
        )
        for key in KEYS[area]
    ]
