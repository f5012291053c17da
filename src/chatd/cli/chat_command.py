"""`chatd chat`, and `chatd` alone on a terminal: options and help texts. `terminal_ui` does the
work."""

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Literal, TextIO

import typer

from chatd.cli.options import DataDir, Profile, TokenFile, Url


def register(app: typer.Typer) -> None:
    app.command()(chat)


def chat(
    chat_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Open this chat [else a new one]", show_default=False),
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
    *,
    theme: Annotated[
        Literal["auto", "dark", "light"],
        typer.Option(
            "--theme", envvar="CHATD_THEME", help="Colours; auto: by the terminal's background"
        ),
    ] = "auto",
    bell: Annotated[
        bool,
        typer.Option(
            "--bell/--no-bell",
            envvar="CHATD_BELL",
            help="Ring when a chat that you do not look at needs you or ends",
        ),
    ] = True,
) -> None:
    """Open the terminal UI: chats, live answers, approvals, all in this terminal.

    Chats run on the server. Ctrl-D leaves, and they go on; F1 shows all keys.
    """
    from chatd.cli import api_session, process, target, terminal_ui

    terminal_ui.require_installed()
    if not has_screen(sys.stdin, sys.stdout, os.environ):
        terminal_ui.refuse_no_screen()
    with api_session.report_errors():
        found = target.find_server(url, token_file, profile, data_dir)
        options = terminal_ui.TerminalOptions(
            chat_id=chat_id,
            theme=theme,
            rings=bell,
            return_flags=terminal_ui.return_flags(url, token_file, profile, data_dir),
        )
        code = process.run_to_completion(terminal_ui.run_terminal(found, options))
    raise typer.Exit(code)


def has_screen(stdin: TextIO, stdout: TextIO, env: Mapping[str, str]) -> bool:
    """Whether a terminal can be drawn on: that of an editor's shell or of a build cannot."""
    return stdin.isatty() and stdout.isatty() and env.get("TERM", "") not in ("", "dumb")


def open_bare() -> None:
    """`chatd` without a command, on a terminal."""
    chat()
