"""The screens that a message `OpenScreen` or a key puts on top of the chat."""

from collections.abc import Callable, Mapping
from typing import Final

from textual.screen import Screen

from chatd.domain.ids import ChatId
from chatd.terminal.help_screen import HelpScreen
from chatd.terminal.messages import ScreenName

MakeScreen = Callable[[ChatId | None], Screen[None]]


def _help(_: ChatId | None) -> Screen[None]:
    return HelpScreen()


SCREENS: Final[Mapping[ScreenName, MakeScreen]] = {"help": _help}
