"""Whether a browser can be opened for the person at this terminal."""

from collections.abc import Mapping


def can_open_browser(
    env: Mapping[str, str], *, platform: str, is_terminal: bool, is_wanted: bool
) -> bool:
    """A person sits before a desktop: there is a terminal and a display, and no remote login."""
    has_display = platform == "darwin" or any(
        env.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    is_remote = any(env.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "CI"))
    return is_wanted and is_terminal and has_display and not is_remote
