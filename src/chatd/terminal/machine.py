"""What the terminal uses of the machine it runs on: directories, the editor of the person, and
whether there is a browser."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from chatd.client.desktop import can_open_browser, without_tokens

DEFAULT_EDITOR: Final = "vi"


class Machine(Struct, frozen=True, kw_only=True):
    """Paths of a draft begin at `working_directory`. Without a `state_directory` drafts end with
    the terminal."""

    working_directory: Path = field(default_factory=Path.cwd)
    home: Path = field(default_factory=Path.home)
    state_directory: Path | None = None
    editor: tuple[str, ...] = (DEFAULT_EDITOR,)
    has_browser: bool = False
    program_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the editor and the browser: without the token."""


def read_machine(environ: Mapping[str, str]) -> Machine:
    """By the variables VISUAL, EDITOR and XDG_STATE_HOME."""
    state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    has_browser = can_open_browser(environ, platform=sys.platform, is_terminal=True, is_wanted=True)
    return Machine(
        state_directory=Path(state) / "chatd",
        editor=_read_editor(environ),
        has_browser=has_browser,
        program_env=without_tokens(environ),
    )


def _read_editor(environ: Mapping[str, str]) -> tuple[str, ...]:
    """An editor may have arguments: `code --wait`."""
    for name in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(environ.get(name, ""))
        except ValueError:
            continue
        if words:
            return tuple(words)
    return (DEFAULT_EDITOR,)
