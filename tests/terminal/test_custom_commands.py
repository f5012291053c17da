"""Commands of the person's own: how files are read, and one that is sent."""

from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.client.resources import ListedSkill
from chatd.clock import SystemClock
from chatd.terminal.app import ChatTerminal
from chatd.terminal.composer.completion import offer_commands
from chatd.terminal.composer.custom_commands import (
    MAX_COMMAND_BYTES,
    MAX_COMMAND_FILES,
    CustomCommands,
    read_command,
    read_directory,
)
from chatd.terminal.session import Machine, open_session
from tests.support.terminal import TerminalServer, until, until_shown

HEAD = "---\ndescription: Look at a change\nargument-hint: branch\n---\n"


@pytest.mark.parametrize(
    ("body", "arguments", "prompt"),
    [
        ("Review it.", "", "Review it."),
        ("Review it.", "main only", "Review it.\n\nmain only"),
        ("Compare $1 with $2.", "main dev more", "Compare main with dev."),
        ("Compare $1 with $2.", "main", "Compare main with ."),
        ("Do: $ARGUMENTS", "a $1 b", "Do: a $1 b"),
        ("It costs $10, $ARGUMENTSX", "x", "It costs $10, $ARGUMENTSX\n\nx"),
    ],
)
def test_arguments_take_their_places(body: str, arguments: str, prompt: str) -> None:
    command = read_command("c", body)
    assert command is not None
    assert command.prompt(arguments) == prompt


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (f"{HEAD}Review $1.", ("Look at a change", "branch", "Review $1.")),
        ("# Review\nall of it", ("Review", "", "# Review\nall of it")),
        ("Say $ARGUMENTS", ("Say $ARGUMENTS", "[text]", "Say $ARGUMENTS")),
        ("---\n---\nx", ("x", "", "x")),
        ("---\nnot closed", ("---", "", "---\nnot closed")),
        ("bad \x1b[31m text", ("bad text", "", "bad  text")),
    ],
)
def test_the_head_of_a_file_says_what_it_does(text: str, facts: tuple[str, str, str]) -> None:
    command = read_command("c", text)
    assert command is not None
    assert (command.effect, command.argument, command.body) == facts


@pytest.mark.parametrize("text", ["", "  \n", HEAD])
def test_a_file_without_a_prompt_is_no_command(text: str) -> None:
    assert read_command("c", text) is None


def test_what_is_no_command_is_left_out(tmp_path: Path) -> None:
    for name in ("good.md", "Upper.md", "no spaces.md", ".hidden.md", "other.txt"):
        (tmp_path / name).write_text("Do it.")
    (tmp_path / "large.md").write_text("x" * (MAX_COMMAND_BYTES + 1))
    (tmp_path / "directory.md").mkdir()
    (tmp_path / "nowhere.md").symlink_to(tmp_path / "missing")
    assert [one.name for one in read_directory(tmp_path)] == ["upper", "good"]
    assert read_directory(tmp_path / "missing") == []


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for at in range(MAX_COMMAND_FILES + 5):
        (tmp_path / f"c{at}.md").write_text("x")
    assert len(read_directory(tmp_path)) == MAX_COMMAND_FILES


def test_commands_of_the_terminal_come_first_then_the_directory_the_user_and_skills(
    tmp_path: Path,
) -> None:
    for place, names in (("project", "quit review"), ("user", "review mine stop")):
        (tmp_path / place).mkdir()
        for name in names.split():
            (tmp_path / place / f"{name}.md").write_text(f"{place} {name}")
    customs = CustomCommands([tmp_path / "project", tmp_path / "user"])
    customs.use(customs.read())
    skills = [("Mine", "x"), ("deploy", "Ship it"), ("not a name", "x")]
    customs.use_skills(
        ListedSkill(id=UUID(int=at), name=name, description=text)
        for at, (name, text) in enumerate(skills)
    )
    assert [(one.name, one.body) for one in customs.listed()] == [
        ("review", "project review"),
        ("mine", "user mine"),
        ("deploy", "Use the skill deploy."),
    ]
    labels = [one.label for one in offer_commands("/", None, customs.listed())]
    assert labels[-3:] == ["/review", "/mine", "/deploy [text]"]


async def test_a_command_of_the_directory_is_completed_and_sends_its_prompt(
    server: TerminalServer, tmp_path: Path
) -> None:
    directory = tmp_path / "project"
    (directory / ".chatd" / "commands").mkdir(parents=True)
    (directory / ".chatd" / "commands" / "greet.md").write_text(f"{HEAD}Greet $1 warmly.")
    machine = replace(Machine(), working_directory=directory)
    async with open_session(server.address, SystemClock(), machine=machine) as session:
        terminal = ChatTerminal(session)
        async with terminal.run_test(size=(80, 24)) as pilot:
            await pilot.press(*"/gre")
            await until_shown(pilot, "/greet branch")
            await pilot.press("tab", *"Ada", "enter")
            await until_shown(pilot, "Greet Ada warmly.")
            await pilot.press(*"/theme warm", "enter")
            await until(pilot, lambda: terminal.theme == "chatd-warm")
            await until_shown(pilot, "Greet Ada warmly.")


def test_no_link_leads_a_command_out_of_the_directory_that_it_is_in(tmp_path: Path) -> None:
    """A repository could show the person's keys to a model under a harmless name."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    (home / "key.md").write_text("SECRET")
    commands = work / ".chatd" / "commands"
    commands.mkdir(parents=True)
    (work / "prompt.md").write_text("Review it.")
    (commands / "inside.md").symlink_to(work / "prompt.md")
    (commands / "outside.md").symlink_to(home / "key.md")
    (commands / "loop.md").symlink_to(commands / "loop.md")
    found = CustomCommands([commands])
    assert [one.name for one in found.read()] == ["inside"]
    other = tmp_path / "other"
    (other / ".chatd").mkdir(parents=True)
    (other / ".chatd" / "commands").symlink_to(home)
    assert CustomCommands([other / ".chatd" / "commands"]).read() == []
    own = tmp_path / "config" / "commands"
    own.parent.mkdir()
    own.symlink_to(home)
    assert [one.name for one in CustomCommands([own]).read()] == ["key"], "the person's own links"
