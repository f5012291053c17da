"""Programs that are started for the person at this terminal: a browser, if there is a desktop."""

import subprocess
import sys
import threading
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


def open_browser(page: str, env: Mapping[str, str]) -> None:
    """Open it in a thread that is not awaited: some browsers return only when they end."""
    threading.Thread(target=_open, args=(page, without_tokens(env)), daemon=True).start()


def _open(page: str, env: Mapping[str, str]) -> None:
    """Use a separate process, because Python's module gives browsers the whole environment. It
    imports nothing from the current directory (-I)."""
    command = [sys.executable, "-I", "-m", "webbrowser", page]
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        subprocess.run(
            command,
            env=env,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            check=False,
        )


def without_tokens(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that is not to act at the server."""
    return {name: value for name, value in env.items() if not name.startswith("CHATD_TOKEN")}
