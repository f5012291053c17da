"""Opening a browser."""

import os
from pathlib import Path

import pytest

from chatd.client.desktop import can_open_browser, open_browser, without_tokens

PAGE = "http://127.0.0.1:1/settings/connections"


def test_nobody_waits_for_a_browser_that_runs_and_it_gets_no_token(
    tmp_path: Path,
) -> None:
    told, held = tmp_path / "told", tmp_path / "held"
    os.mkfifo(told)
    os.mkfifo(held)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\n{{ echo "$1"; env; }} > {told}\nread line < {held}\n')
    browser.chmod(0o700)
    env = {"BROWSER": f"{browser} %s", "PATH": "/usr/bin:/bin", "CHATD_TOKEN": "the-secret"}
    open_browser(PAGE, env)
    page, *given = told.read_text().splitlines()  # it runs, and waits for the line below
    assert page == PAGE
    assert "CHATD_TOKEN" not in "".join(given)
    held.write_text("end\n")


@pytest.mark.parametrize(
    ("env", "is_desktop"),
    [
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({}, False),
        ({"DISPLAY": ":0", "SSH_TTY": "/dev/pts/1"}, False),
        ({"DISPLAY": ":0", "CI": "1"}, False),
    ],
)
def test_a_browser_needs_a_desktop(env: dict[str, str], *, is_desktop: bool) -> None:
    found = can_open_browser(env, platform="linux", is_terminal=True, is_wanted=True)
    assert found == is_desktop


def test_a_program_of_the_person_gets_the_environment_without_tokens() -> None:
    env = {"CHATD_TOKEN": "a", "CHATD_TOKEN_FILE": "b", "CHATD_URL": "c", "PATH": "d"}
    assert without_tokens(env) == {"CHATD_URL": "c", "PATH": "d"}
