"""What people expect from other terminals: pictures of the clipboard, a status line of their own,
Esc twice to edit the last message, `/copy`."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace
from rich.text import Text
from textual.pilot import Pilot

from chatd.client.resources import ModelChoice
from chatd.clock import SystemClock
from chatd.domain.ids import ChatId, ModelConfigId
from chatd.terminal import clipboard
from chatd.terminal.app import ChatTerminal
from chatd.terminal.clipboard import (
    Clipboard,
    ClipboardFailed,
    find_programs,
    picture_word,
    read_clipboard,
)
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.composer_lines import (
    DEFAULT_STATUS,
    STATUS_WORDS,
    NoticeLines,
    StatusFacts,
    StatusWord,
    keep_status,
    kept_status,
    read_status_words,
    status_hints,
)
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.session import Machine, open_session
from tests.support.sample_files import PNG
from tests.support.terminal import SMALL, WIDE, TerminalServer, until, until_shown

MODEL = ModelChoice(id=ModelConfigId(UUID(int=1)), name="quick")
RIGHT = Text("Enter sends")
WAYLAND = {"WAYLAND_DISPLAY": "wayland-0"}


def install(directory: Path, name: str, script: str) -> dict[str, str]:
    """A program of the desktop, and the PATH that finds it alone."""
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": str(directory)}


def with_picture(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "dot.png").write_bytes(PNG)
    script = f'case "$*" in *image/png*) /bin/cat "{tmp_path}/dot.png" ;; *) exit 1 ;; esac'
    return install(tmp_path / "bin", "wl-paste", script) | WAYLAND


def with_text(tmp_path: Path, text: str) -> dict[str, str]:
    script = f'case "$*" in *image/png*) exit 1 ;; *) printf "{text}" ;; esac'
    return install(tmp_path / "bin", "xclip", script) | {"DISPLAY": ":0"}


async def test_a_clipboard_has_a_picture_or_text_or_neither(tmp_path: Path) -> None:
    assert await read_clipboard(with_picture(tmp_path)) == Clipboard(picture=PNG)
    assert await read_clipboard(with_text(tmp_path, "words")) == Clipboard(text="words")
    assert await read_clipboard(install(tmp_path, "wl-paste", "exit 1") | WAYLAND) == Clipboard()


async def test_the_picture_of_macos_is_read_from_its_script(tmp_path: Path) -> None:
    script = f"printf '\u00abdata PNGf{PNG.hex().upper()}\u00bb'"
    environ = install(tmp_path, "osascript", script) | install(tmp_path, "pbpaste", "exit 1")
    assert await read_clipboard(environ, "darwin") == Clipboard(picture=PNG)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "on the other side of SSH"),
        (WAYLAND, "install wl-clipboard"),
        ({"DISPLAY": ":0"}, "install xclip"),
        ({}, "no desktop here"),
    ],
)
async def test_a_missing_program_is_named(environ: Mapping[str, str], reason: str) -> None:
    with pytest.raises(ClipboardFailed, match=reason):
        await read_clipboard({"PATH": "/nonexistent", **environ}, "linux")


async def test_a_clipboard_that_does_not_answer_or_never_ends_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program is ended too."""
    monkeypatch.setattr(clipboard, "CLIPBOARD_TIMEOUT_S", 0.2)
    pid = tmp_path / "pid"
    hangs = install(tmp_path / "a", "wl-paste", f'echo $$ > "{pid}"; exec /bin/sleep 1000')
    with pytest.raises(ClipboardFailed, match="did not answer"):
        await read_clipboard(hangs | WAYLAND)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    monkeypatch.setattr(clipboard, "CLIPBOARD_TIMEOUT_S", 30)
    floods = install(tmp_path / "b", "wl-paste", "exec /usr/bin/yes")
    with pytest.raises(ClipboardFailed, match="more than a message"):
        await read_clipboard(floods | WAYLAND)


def test_a_program_without_its_desktop_is_not_asked(tmp_path: Path) -> None:
    environ = install(tmp_path, "wl-paste", "exit 1") | install(tmp_path, "xclip", "exit 1")
    assert list(find_programs(environ, "linux")) == []
    (found,) = find_programs(environ | {"DISPLAY": ":0"}, "linux")
    assert found.picture[0].endswith("/xclip")


def test_each_picture_of_a_draft_has_a_word() -> None:
    assert picture_word("") == "[Picture 1]"
    assert picture_word("see [Picture 1] and [Picture 4]") == "[Picture 5]"


@asynccontextmanager
async def terminal_on(
    server: TerminalServer,
    machine: Machine,
    chat_id: ChatId | None = None,
    *,
    size: tuple[int, int] = WIDE,
) -> AsyncGenerator[Pilot[None]]:
    async with open_session(server.address, SystemClock(), machine=machine) as session:
        terminal = ChatTerminal(session, chat_id)
        async with terminal.run_test(size=size, notifications=True) as pilot:
            yield pilot


def box_of(pilot: Pilot[None]) -> TextBox:
    return pilot.app.screen.query_one(TextBox)


def composer_of(pilot: Pilot[None]) -> Composer:
    return pilot.app.screen.query_one(Composer)


async def test_control_v_attaches_the_picture_of_the_clipboard_and_its_word_removes_it(
    server: TerminalServer, tmp_path: Path
) -> None:
    machine = replace(Machine(), program_env=with_picture(tmp_path))
    async with terminal_on(server, machine, size=SMALL) as pilot:
        await pilot.press("ctrl+v")
        await until_shown(pilot, "picture-1.png  attached")
        await pilot.press("ctrl+u")
        await until(pilot, lambda: not pilot.app.screen.query_one(NoticeLines).notices)
        await pilot.press(*"/paste", "enter")
        await until_shown(pilot, "picture-1.png  attached")
        assert box_of(pilot).text == "[Picture 1] "
        await pilot.press(*"what is it", "enter")
        await until(pilot, lambda: composer_of(pilot).chat_id is not None)
        messages = await server.call("GET", f"/chats/{composer_of(pilot).chat_id}/messages")
        assert "image/png" in str(messages)


async def test_control_v_inserts_text_and_says_when_there_is_no_clipboard(
    server: TerminalServer, tmp_path: Path
) -> None:
    machine = replace(Machine(), program_env=with_text(tmp_path, "copied words"))
    async with terminal_on(server, machine) as pilot:
        await pilot.press("ctrl+v")
        await until(pilot, lambda: box_of(pilot).text == "copied words")
    async with terminal_on(server, replace(Machine(), program_env={})) as pilot:
        await pilot.press("ctrl+v")
        await until_shown(pilot, "There is no desktop here")
        assert box_of(pilot).text == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", DEFAULT_STATUS),
        ("default", DEFAULT_STATUS),
        ("cost, Model", ("cost", "model")),
        ("branch branch left", ("branch", "left")),
        ("model weather", None),
    ],
)
def test_words_of_the_status_line(text: str, words: tuple[StatusWord, ...] | None) -> None:
    assert read_status_words(text) == words


def test_the_environment_comes_before_what_was_kept_and_unknown_words_are_none(
    tmp_path: Path,
) -> None:
    keep_status(tmp_path / "state", ("cost", "model"))
    assert kept_status(tmp_path / "state", {}) == ("cost", "model")
    environ = {"CHATD_STATUS_LINE": "left,model"}
    assert kept_status(tmp_path / "state", environ) == ("left", "model")
    assert kept_status(tmp_path / "state", {"CHATD_STATUS_LINE": "later"}) == ("cost", "model")
    assert kept_status(None, {}) == DEFAULT_STATUS


def test_the_first_words_stay_and_plan_mode_is_always_named() -> None:
    facts = StatusFacts(model=MODEL, effort="high", place="shop", is_plan=True, project="Web")
    usual = status_hints(DEFAULT_STATUS, facts, RIGHT)
    assert usual.left.plain == "quick · high · shop · plan mode"
    chosen = status_hints(("project", "effort"), facts, RIGHT)
    assert (chosen.left.plain, chosen.extras) == ("plan mode", ("Web", "high"))
    assert status_hints(STATUS_WORDS, StatusFacts(), RIGHT).left.plain == "no model"


async def test_the_status_line_is_chosen_shown_and_kept(
    server: TerminalServer, tmp_path: Path
) -> None:
    project = await server.call("POST", "/projects", {"name": "Lighthouse"})
    chat_id = await server.create_chat("answer fast", project_id=project["id"])
    await server.until_status(chat_id, "waiting")
    machine = replace(Machine(), state_directory=tmp_path / "state")
    async with terminal_on(server, machine, chat_id) as pilot:
        await until_shown(pilot, "Write a message")
        await pilot.press(*"/statusline", "enter")
        await until_shown(pilot, "It shows: model effort workspace context cost")
        await pilot.press(*"/statusline project left model", "enter")
        await until_shown(pilot, "Lighthouse · ")
        await until_shown(pilot, "% left · ")
        await pilot.press(*"/statusline weather", "enter")
        await until_shown(pilot, "It shows: project left model")
    async with terminal_on(server, machine, chat_id) as pilot:
        await until_shown(pilot, "Lighthouse · ")


async def test_escape_twice_at_an_empty_box_edits_the_last_message(server: TerminalServer) -> None:
    chat_id = await server.create_chat("answer fast")
    await server.until_status(chat_id, "waiting")
    async with terminal_on(server, Machine(), chat_id) as pilot:
        await until_shown(pilot, "Write a message")
        await pilot.press("escape")
        await until_shown(pilot, "Esc again edits your last message.")
        await pilot.press("escape")
        await until(pilot, lambda: box_of(pilot).text == "answer fast")
        await until_shown(pilot, "Editing a sent message")
        await pilot.press("escape")
        await until(pilot, lambda: box_of(pilot).text == "")
        # What is being written is not replaced.
        await pilot.press(*"words", "escape", "escape")
        assert box_of(pilot).text == "words"


async def test_copy_takes_the_last_answer(server: TerminalServer) -> None:
    server.will_answer("The lamp is lit.")
    chat_id = await server.create_chat("tell me", "scripted")
    await server.until_status(chat_id, "waiting")
    async with terminal_on(server, Machine(), chat_id) as pilot:
        await until_shown(pilot, "The lamp is lit.")
        await pilot.press(*"/copy", "enter")
        await until_shown(pilot, "The last answer is copied.")
        assert pilot.app.clipboard == "The lamp is lit."
