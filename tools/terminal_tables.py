"""The tables of docs/terminal.md: keys and commands of the terminal UI."""

from collections.abc import Iterator

from chatd.terminal.composer.commands import COMMANDS
from chatd.terminal.keys import AREA_TITLES, KEYS, key_names


def keys() -> Iterator[str]:
    for area, found in KEYS.items():
        if found:
            yield f"**{AREA_TITLES[area]}**"
            yield ""
            yield "| key | what it does |"
            yield "|---|---|"
            for key in found:
                yield f"| {_cell(key_names(key.keys))} | {_cell(key.text)} |"
            yield ""


def commands() -> Iterator[str]:
    yield "| command | what it does |"
    yield "|---|---|"
    for command in COMMANDS:
        yield f"| `{_cell(command.usage)}` | {_cell(command.effect)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
