"""The tables of docs/commands.md and docs/events.md: commands with their options, events with their
fields."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import typer.main
from msgspec.structs import fields

from chatd.cli.main import app
from chatd.domain.chat_views.events import Event

# Most commands take these; the head of the page has them once.
COMMON_OPTIONS = ("--url", "--token-file", "--profile", "--data-dir", "--json", "--config")


def commands() -> Iterator[str]:
    found = list(command_paths())
    yield from _common(found)
    group = ""
    for words, command in found:
        if words[1] != group:
            group = words[1]
            yield ""
            yield f"## chatd {group}"
        if len(words) > 2:
            yield ""
            yield f"### {' '.join(words)}"
        yield ""
        yield f"`{_usage(words, command)}`"
        yield ""
        yield from _sentences(command.help or "")
        options = [one for one in command.params if _is_shown(one)]
        if options:
            yield ""
            yield "| option | |"
            yield "|---|---|"
            yield from (_row(one) for one in options)


def command_paths() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be run, with its words."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        inner: dict[str, Any] = getattr(command, "commands", {})
        if not inner:
            yield words, command
        for name, each in inner.items():
            if not each.hidden:
                yield from walk(each, (*words, name))

    yield from walk(typer.main.get_command(app), ("chatd",))


def _common(found: list[tuple[tuple[str, ...], Any]]) -> Iterator[str]:
    yield "| option of most commands | |"
    yield "|---|---|"
    known = {one.opts[0]: one for _, command in found for one in command.params[::-1]}
    yield from (_row(known[name]) for name in COMMON_OPTIONS)


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = (one for one in command.params if one.param_type_name == "argument")
    names = map(_metavar, arguments)
    return " ".join((*words, *names))


def _metavar(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _is_shown(one: Any) -> bool:
    return not getattr(one, "hidden", False) and one.opts[0] not in COMMON_OPTIONS


def _row(one: Any) -> str:
    names = [*one.opts, *one.secondary_opts]
    if one.param_type_name == "argument":
        names = [_metavar(one)]
    return f"| `{', '.join(names)}` | {_cell(one.help or '')} |"


def _sentences(text: str) -> Iterator[str]:
    """Paragraphs; an example, which is indented, as code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b\n", ""))):
        yield _cell(" ".join(paragraph.split()))
        yield ""


def event_fields() -> Iterator[str]:
    yield "| event | fields | |"
    yield "|---|---|---|"
    for event in get_args(Event):
        names = ", ".join(f"`{field.encode_name}`" for field in fields(event))
        first = (inspect.getdoc(event) or "").partition("\n\n")[0]
        tag = event.__struct_config__.tag
        yield f"| `{tag}` | {names} | {_cell(' '.join(first.split()))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
