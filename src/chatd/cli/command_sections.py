"""The commands of `chatd --help`, in sections: what a user needs first."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from typer.core import TyperGroup

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Work with agents": ("chat", "run", "chats", "models", "usage"),
    "Your account at a server": ("login", "logout", "whoami", "mcp", "skills", "files", "tokens"),
    "Run a server": ("serve", "worker", "providers", "migrate", "admin", "bench"),
    "Other": ("completion", "version"),
}


class HelpWriter(Protocol):
    """What typer's formatter does here."""

    width: int

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class SectionedGroup(TyperGroup):
    """A command that no section names comes with the last one."""

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002
        ordered = [name for names in SECTIONS.values() for name in names if name in self.commands]
        return [*ordered, *(name for name in self.commands if name not in ordered)]

    def format_commands(self, ctx: object, formatter: HelpWriter) -> None:
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        named = {name for group in SECTIONS.values() for name in group}
        width = max(map(len, names))
        limit = formatter.width - 6 - width
        for heading, group in SECTIONS.items():
            is_last = heading == list(SECTIONS)[-1]
            shown = [name for name in names if name in group or (is_last and name not in named)]
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in shown
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
