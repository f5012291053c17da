"""`chatd completion`: a script for a shell that completes commands and options.

Made from the commands themselves: the words of each place, with their help texts for fish. The
script starts no process while one types.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import typer
from msgspec import Struct
from typer.core import TyperCommand, TyperGroup, TyperOption

_HELP: Final = {"--help": "Show the options"}
Shell = Literal["bash", "zsh", "fish"]


class CommandPlace(Struct, frozen=True, kw_only=True):
    """A command with what may follow it. `path` is without the program's name."""

    path: tuple[str, ...]
    commands: dict[str, str]
    options: dict[str, str]
    takes_value: frozenset[str]


def register(app: typer.Typer) -> None:
    @app.command()
    def completion(
        shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish")],
    ) -> None:
        """Print a script for the completion of a shell.

        \b
        bash  add this to ~/.bashrc: source <(chatd completion bash)
        zsh   add this to ~/.zshrc, after compinit: source <(chatd completion zsh)
        fish  chatd completion fish > ~/.config/fish/completions/chatd.fish
        """
        print(completion_script(shell, app), end="")


def completion_script(shell: Shell, app: typer.Typer) -> str:
    places = list(command_places(app))
    match shell:
        case "bash":
            return _bash(places)
        case "zsh":
            return _zsh(places)
        case "fish":
            return _fish(places)


def command_places(app: typer.Typer) -> Iterator[CommandPlace]:
    yield from _walk(typer.main.get_command(app), ())


def _walk(command: object, path: tuple[str, ...]) -> Iterator[CommandPlace]:
    shown = _visible(command)
    found = command.params if isinstance(command, TyperCommand | TyperGroup) else []
    options = [one for one in found if isinstance(one, TyperOption) and not one.hidden]
    yield CommandPlace(
        path=path,
        commands={name: one.get_short_help_str(80) for name, one in shown},
        options={name: one.help or "" for one in options for name in one.opts} | _HELP,
        takes_value=frozenset(name for one in options if not one.is_flag for name in one.opts),
    )
    for name, one in shown:
        yield from _walk(one, (*path, name))


def _visible(group: object) -> Sequence[tuple[str, TyperCommand | TyperGroup]]:
    inner = group.commands if isinstance(group, TyperGroup) else None
    found: list[tuple[str, TyperCommand | TyperGroup]] = []
    for name, one in (inner or {}).items():
        if isinstance(one, TyperCommand | TyperGroup) and not one.hidden:
            found.append((name, one))
    return found


def _cases(places: list[CommandPlace]) -> str:
    """Branches that set the names, the inner commands and the options with values of a place."""
    lines: list[str] = []
    for place in places:
        words = " ".join([*place.commands, *(one for one in place.options if one[:2] == "--")])
        values = " ".join(sorted(place.takes_value))
        name = shlex.quote(" ".join(place.path))
        inner = shlex.quote(" ".join(place.commands))
        told = f"names={shlex.quote(words)}; inner={inner}; values={shlex.quote(values)}"
        lines.append(f"    {name}) {told} ;;")
    return "\n".join(lines)


_FIND = """\
  local at='' word='' before=chatd names='' inner='' values=''
  _chatd_place ''
  for word in {typed}; do
    case " $values " in *" $before "*) before="$word"; continue ;; esac
    case " $inner " in *" $word "*) at="${{at:+$at }}$word"; _chatd_place "$at" ;; esac
    before="$word"
  done
"""


def _bash(places: list[CommandPlace]) -> str:
    find = _FIND.format(typed='"${COMP_WORDS[@]:1:COMP_CWORD-1}"')
    return f"""\
# Completion of chatd for bash.
_chatd_place() {{
  case "$1" in
{_cases(places)}
  esac
}}
_chatd() {{
{find}\
  local typed="${{COMP_WORDS[COMP_CWORD]}}"
  case " $values " in
    *" $before "*) COMPREPLY=($(compgen -f -- "$typed")) ;;
    *) COMPREPLY=($(compgen -W "$names" -- "$typed"))
       if [ "${{#COMPREPLY[@]}}" = 0 ] && [ -z "$inner" ]; then
         COMPREPLY=($(compgen -f -- "$typed"))
       fi ;;
  esac
}}
complete -o filenames -F _chatd chatd
"""


def _zsh(places: list[CommandPlace]) -> str:
    find = _FIND.format(typed='"${(@)typed}"')
    return f"""\
#compdef chatd
# Completion of chatd for zsh.
_chatd_place() {{
  case "$1" in
{_cases(places)}
  esac
}}
_chatd() {{
  local -a typed
  typed=("${{(@)words[2,CURRENT-1]}}")
{find}\
  case " $values " in
    *" $before "*) _files ;;
    *) compadd -- ${{=names}}
       if [ -z "$inner" ]; then _files; fi ;;
  esac
}}
compdef _chatd chatd
"""


def _fish(places: list[CommandPlace]) -> str:
    known = " ".join("/".join(place.path) for place in places if place.path)
    lines = [_FISH_HEAD.replace("KNOWN", known)]
    for place in places:
        here = f"-n {shlex.quote('__chatd_at ' + shlex.quote('/'.join(place.path)))}"
        for name, text in place.commands.items():
            lines.append(f"complete -c chatd {here} -f -a {name} -d {shlex.quote(text)}")
        for name, text in place.options.items():
            if name.startswith("--"):
                value = " -r" if name in place.takes_value else ""
                told = shlex.quote(text)
                lines.append(f"complete -c chatd {here} -l {name[2:]}{value} -d {told}")
    return "\n".join(lines) + "\n"


_FISH_HEAD = """\
# Completion of chatd for fish.
set -g __chatd_places KNOWN
function __chatd_at
  set -l at ''
  for word in (commandline -opc)[2..-1]
    set -l next (string trim -l -c / -- "$at/$word")
    if contains -- $next $__chatd_places
      set at $next
    end
  end
  test "$at" = "$argv[1]"
end"""
