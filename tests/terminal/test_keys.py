"""The table of keys, and small rules of the frame."""

from collections import Counter
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from chatd.cli.chats.chat_commands import chat
from chatd.terminal.composer.commands import COMMANDS
from chatd.terminal.keys import AREA_TITLES, KEYS, key_name, key_names
from chatd.terminal.main_screen import DoublePress
from chatd.terminal.themes import THEMES, choose_theme, keep_theme, read_kept_theme

SWALLOWED = frozenset({"ctrl+s", "ctrl+q", "ctrl+up", "ctrl+down", "ctrl+b", "ctrl+a", "ctrl+m"})
"""By flow control, by macOS, and as prefixes of tmux and screen."""


def test_a_key_that_terminals_swallow_is_never_the_only_one_of_its_action() -> None:
    for area, keys in KEYS.items():
        for key in keys:
            names = set(key.keys.split(","))
            assert names - SWALLOWED, f"{area}: {key.action}"


def test_no_key_means_two_things_in_one_place() -> None:
    for area, keys in KEYS.items():
        counts = Counter(name for key in keys for name in key.keys.split(","))
        assert not {name for name, count in counts.items() if count > 1}, area


def test_every_area_has_a_title_for_the_help() -> None:
    assert set(AREA_TITLES) == set(KEYS)


@pytest.mark.parametrize(
    ("key", "name"),
    [("ctrl+n", "Ctrl-N"), ("escape", "Esc"), ("f1", "F1"), ("d", "d"), ("G", "G"), ("slash", "/")],
)
def test_keys_are_named_as_people_write_them(key: str, name: str) -> None:
    assert key_name(key) == name


def test_two_keys_of_one_action_are_named_together() -> None:
    assert key_names("alt+up,ctrl+up") == "Alt-↑ or Ctrl-↑"


def test_a_second_press_counts_for_two_seconds() -> None:
    press = DoublePress()
    presses = [press.press("a", at) for at in (0.0, 1.9, 1.9, 4.0)]
    assert presses == [False, True, False, False]


def test_a_press_in_another_chat_is_a_first_one() -> None:
    press = DoublePress()
    presses = [press.press(place, 0.0) for place in "abaa"]
    assert presses == [False, False, False, True]


@pytest.mark.parametrize(
    ("asked", "kept", "colorfgbg", "theme"),
    [
        ("light", "warm", "15;0", "light"),
        ("dark", "", "0;15", "dark"),
        ("auto", "warm", "0;15", "warm"),
        ("auto", "gone", "0;15", "light"),
        ("auto", "", "0;15", "light"),
        ("auto", "", "0;default;7", "light"),
        ("auto", "", "15;0", "dark"),
        ("auto", "", "", "dark"),
    ],
)
def test_the_theme_is_the_one_asked_for_or_fits_the_terminal(
    asked: str, kept: str, colorfgbg: str, theme: str
) -> None:
    assert choose_theme(asked, kept, colorfgbg) == theme


def test_a_chosen_theme_is_kept_for_the_next_terminal(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    assert read_kept_theme(directory) == read_kept_theme(None) == ""
    keep_theme(directory, "paper")
    keep_theme(None, "paper")
    assert read_kept_theme(directory) == "paper"


def test_the_command_and_the_option_know_every_theme() -> None:
    command = next(one for one in COMMANDS if one.name == "theme")
    option = get_args(get_type_hints(chat)["theme"])
    assert command.choices == tuple(THEMES) == option[1:]
