"""Opening a browser."""

import threading
import webbrowser

import pytest

from chatd.client.desktop import can_open_browser, open_browser

PAGE = "http://127.0.0.1:1/settings/connections"


def test_nobody_waits_for_a_browser_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, ended, pages = threading.Event(), threading.Event(), list[str]()

    class Browser(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:  # noqa: FBT001, FBT002
            del new, autoraise
            pages.append(url)
            opened.set()
            return ended.wait(60)

    webbrowser.register("until-told", None, Browser("until-told"))
    monkeypatch.setattr(webbrowser, "open", webbrowser.get("until-told").open)
    open_browser(PAGE)
    assert opened.wait(60), "it runs, and this line was reached before it ended"
    assert pages == [PAGE]
    ended.set()


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
