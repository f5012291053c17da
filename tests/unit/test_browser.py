"""When a browser is opened, and what it is given."""

from pathlib import Path

import pytest

from chatd.api.accounts.sign_in import local_url, sign_in_link
from chatd.cli.server_commands import PAGE_FILE, forget_browser_page
from chatd.client.desktop import can_open_browser


@pytest.mark.parametrize(
    ("env", "platform", "terminal", "wanted", "opens"),
    [
        ({"DISPLAY": ":0"}, "linux", True, True, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True, True, True),
        ({}, "darwin", True, True, True),
        ({}, "linux", True, True, False),
        ({"DISPLAY": ""}, "linux", True, True, False),
        ({"DISPLAY": ":0"}, "linux", False, True, False),
        ({"DISPLAY": ":0"}, "linux", True, False, False),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "1 2 3 4"}, "linux", True, True, False),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", True, True, False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", True, True, False),
    ],
)
def test_a_browser_is_opened_for_a_person_at_a_desktop(
    env: dict[str, str], platform: str, *, terminal: bool, wanted: bool, opens: bool
) -> None:
    found = can_open_browser(env, platform=platform, is_terminal=terminal, is_wanted=wanted)
    assert found == opens


def test_the_page_that_a_browser_was_given_is_removed(tmp_path: Path) -> None:
    forget_browser_page(tmp_path)
    (tmp_path / PAGE_FILE).write_text("x")
    forget_browser_page(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_link_has_its_secret_in_the_fragment() -> None:
    assert sign_in_link("https://chat.example.com/", "s") == "https://chat.example.com/sign-in#s"
    assert local_url("http://0.0.0.0:7870") == "http://localhost:7870"
    assert local_url("http://[::]:7870") == "http://localhost:7870"
    assert local_url("http://127.0.0.1:7870") == "http://127.0.0.1:7870"
