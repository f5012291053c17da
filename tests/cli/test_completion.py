"""Completion in real shells; those that are not installed are skipped."""

import shutil
import subprocess

import pytest

from chatd.cli.completion import Shell, command_places, completion_script
from chatd.cli.main import app

BASH = """
source /dev/stdin
COMP_WORDS=({words} "{typed}"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_chatd; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ }}; _files() {{ print -r -- FILES }}
compadd() {{ shift; for one in "$@"; do [[ $one == {typed}* ]] && print -r -- $one; done }}
source /dev/stdin
words=({words} "{typed}"); CURRENT=${{#words}}
_chatd
"""
FISH = "source -; complete -C '{words} {typed}' | string replace -r '\\t.*' ''"
PROGRAMS: dict[Shell, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def complete(shell: Shell, words: str, typed: str) -> set[str]:
    program = PROGRAMS[shell].format(words=words, typed=typed)
    done = subprocess.run(
        [shell, "-c", program],
        input=completion_script(shell, app),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert not done.stderr, done.stderr
    return {line for line in done.stdout.splitlines() if line != "FILES"}


@pytest.mark.parametrize("shell", list(PROGRAMS))
def test_a_shell_completes_commands_and_options(shell: Shell) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert complete(shell, "chatd", "ch") == {"chat", "chats"}
    assert complete(shell, "chatd chats", "a") == {"answer", "approve", "archive"}
    assert "--max-cost" in complete(shell, "chatd run", "--m")
    assert complete(shell, "chatd chats tail --url http://x", "--unt") == {"--until-idle"}
    assert complete(shell, "chatd tokens", "cre") == {"create"}


def test_the_value_of_an_option_is_no_command() -> None:
    assert complete("bash", "chatd --version chats list --label models", "--arch") == {"--archived"}


def test_every_command_has_a_help_text() -> None:
    places = list(command_places(app))
    missing = [
        (*place.path, name)
        for place in places
        for name, text in (place.commands | place.options).items()
        if not text
    ]
    assert missing == []
