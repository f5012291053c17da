"""The command `chatd chat` in a real terminal."""

import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from chatd.cli.main import app as command_line
from chatd.cli.target import Target
from chatd.cli.terminal_ui import TerminalOptions
from chatd.cli.terminal_ui import run_terminal as open_terminal
from chatd.client.errors import ServerUnreachable
from chatd.client.server import ServerAddress
from chatd.clock import SystemClock
from chatd.settings.schema import SettingsError
from chatd.terminal.app import ChatTerminal
from chatd.terminal.session import open_session
from tests.support.terminal import TOKEN, TerminalServer
from tests.support.tmux import TmuxTerminal, tmux_terminal

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    # Real processes, on a machine that may be busy.
    pytest.mark.timeout(150),
]

CHATD = str(Path(sys.executable).with_name("chatd"))


def env_of(server: TerminalServer, home: Path, token: str = TOKEN) -> Mapping[str, str]:
    return {
        "HOME": str(home),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "CHATD_URL": server.address.url,
        "CHATD_TOKEN": token,
    }


@pytest.fixture
async def terminal(server: TerminalServer, tmp_path: Path) -> AsyncGenerator[TmuxTerminal]:
    async with tmux_terminal(tmp_path, env_of(server, tmp_path)) as terminal:
        yield terminal


async def test_chatd_alone_opens_it_and_it_can_be_suspended_and_ended_by_a_signal(
    terminal: TmuxTerminal,
) -> None:
    await terminal.type_command(CHATD)
    await terminal.until_shown("What should it do?")
    await terminal.press("C-z")
    await terminal.until_shown("Stopped")
    assert await terminal.state("alternate_on") == "0"
    await terminal.type_command("fg")
    await terminal.until_shown("What should it do?")
    await terminal.run("resize-window", "-x", "120", "-y", "30")
    await terminal.until_shown("Chats: none")
    await terminal.run("run-shell", f"pkill -TERM -P {await terminal.state('pane_pid')}")
    await terminal.until_shown("code=143")
    await terminal.press("C-l")
    await terminal.assert_given_back()


async def test_leaving_prints_the_command_that_comes_back(
    server: TerminalServer, terminal: TmuxTerminal
) -> None:
    chat = await server.create_chat("answer fast")
    await terminal.type_command(CHATD, "chat", str(chat), "--url", server.address.url)
    await terminal.until_shown("Waiting for you")
    await terminal.press("C-d")
    shown = await terminal.until_shown("code=0")
    assert f"chatd chat --url {server.address.url} {chat}" in shown
    assert "goes on without you" in shown
    await terminal.press("C-l")
    await terminal.assert_given_back()


async def test_what_cannot_be_opened_is_a_sentence_before_the_screen_is_taken(
    server: TerminalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = Target(server=ServerAddress(url=server.address.url, token="wrong"))
    assert await open_terminal(refused, TerminalOptions()) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"Sign in again with: chatd login {server.address.url}" in err

    target = Target(server=server.address)
    assert await open_terminal(target, TerminalOptions(chat_id=str(UUID(int=1)))) == 1
    assert capsys.readouterr() == ("", "chatd: There is no such chat.\n")
    with pytest.raises(SettingsError, match="is no id of a chat"):
        await open_terminal(target, TerminalOptions(chat_id="story"))
    nobody = Target(server=ServerAddress(url="http://127.0.0.1:1", token=TOKEN))
    with pytest.raises(ServerUnreachable, match="Start one with chatd serve"):
        await open_terminal(nobody, TerminalOptions())


def test_without_a_terminal_chatd_prints_its_help_and_chat_says_what_to_use() -> None:
    bare = CliRunner().invoke(command_line, ())
    assert (bare.exit_code, "Usage: " in bare.output) == (2, True)
    chat = CliRunner().invoke(command_line, ("chat",))
    assert (chat.exit_code, "chatd run" in chat.output) == (2, True)


async def test_an_editor_writes_the_message_and_gets_no_token(
    terminal: TmuxTerminal, tmp_path: Path
) -> None:
    editor, seen = tmp_path / "editor", tmp_path / "seen"
    editor.write_text(f'#!/bin/sh\nenv > {seen}\necho "of the editor" > "$1"\n')
    editor.chmod(0o700)
    await terminal.type_command("env", f"VISUAL={editor}", CHATD)
    await terminal.until_shown("What should it do?")
    await terminal.press("C-e")
    await terminal.until_shown("of the editor")
    given = seen.read_text()
    assert "CHATD_URL=" in given
    assert "CHATD_TOKEN" not in given


@pytest.mark.parametrize("kind", ["dumb", ""])
async def test_a_terminal_that_cannot_be_drawn_on_is_not_taken(
    terminal: TmuxTerminal, kind: str
) -> None:
    await terminal.type_command("env", f"TERM={kind}", CHATD)
    await terminal.until_shown("code=2")
    await terminal.press("C-l")
    await terminal.type_command("env", f"TERM={kind}", CHATD, "chat")
    await terminal.until_shown("TERM must name its kind")
    await terminal.until_shown("code=2")


def test_without_textual_a_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Python takes it for a package that is not there.
    monkeypatch.setitem(sys.modules, "textual", None)
    chat = CliRunner().invoke(command_line, ("chat",))
    assert (chat.exit_code, "pip install 'chatd[tui]'" in chat.output) == (1, True)


def fail() -> None:
    secret = TOKEN
    raise ZeroDivisionError(len(secret))


async def test_a_crash_is_one_sentence_and_its_log_has_no_local_variables(
    server: TerminalServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_session(server.address, SystemClock()) as session:
        terminal = ChatTerminal(session)
        terminal.call_later(fail)
        await terminal.run_async(headless=True)
    assert "because of an error of its own: ZeroDivisionError" in terminal.crash
    assert TOKEN not in terminal.crash + caplog.text + "".join(capsys.readouterr())
    assert "in fail" in caplog.text
