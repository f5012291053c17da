"""The screens that a message `OpenScreen` or a key puts on top of the chat."""

from collections.abc import Callable, Mapping
from typing import Final

from textual.screen import Screen

from chatd.domain.ids import ChatId
from chatd.terminal.answers.plan_screen import PlanScreen
from chatd.terminal.diff_screen import ChangesScreen
from chatd.terminal.help_screen import HelpScreen
from chatd.terminal.mcp.screen import McpScreen
from chatd.terminal.messages import ScreenName
from chatd.terminal.policy.screen import PolicyScreen
from chatd.terminal.usage_screen import UsageScreen

MakeScreen = Callable[[ChatId | None], Screen[None]]


def _help(_: ChatId | None) -> Screen[None]:
    return HelpScreen()


def _changes(chat_id: ChatId | None) -> Screen[None]:
    return HelpScreen() if chat_id is None else ChangesScreen(chat_id)


def _usage(chat_id: ChatId | None) -> Screen[None]:
    return HelpScreen() if chat_id is None else UsageScreen(chat_id)


SCREENS: Final[Mapping[ScreenName, MakeScreen]] = {
    "help": _help,
    "changes": _changes,
    "mcp": McpScreen,
    "plan": PlanScreen,
    "policy": PolicyScreen,
    "usage": _usage,
}
