"""Opening a browser for the person at this terminal, if there is one."""

import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress


def can_open_browser(
    env: Mapping[str, str], *, platform: str, is_terminal: bool, is_wanted: bool
) -> bool:
    """A person sits before a desktop: there is a terminal and a display, and no remote login."""
    has_display = platform == "darwin" or any(
        env.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    is_remote = any(env.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI"))
    return is_wanted and is_terminal and has_display and not is_remote


def open_browser(page: str) -> None:
    """In a thread that nobody waits for: some browsers return only when they end."""
    threading.Thread(target=_open, args=(page,), daemon=True).start()


def _open(page: str) -> None:
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(page)
