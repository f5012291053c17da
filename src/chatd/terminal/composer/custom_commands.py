"""Commands of the person's own: Markdown files with a prompt, and the skills of their account.

The files are in `.chatd/commands/` of the directory in which the terminal was started, and in
`commands/` of the user's configuration. A file `review.md` is the command `/review`. Commands of
the terminal itself come first, then those of the directory, of the user, and skills.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.client.resources import ListedSkill
from chatd.terminal.composer.commands import ALIASES, BY_NAME
from chatd.terminal.safe_text import safe_line, safe_text

MAX_COMMAND_FILES: Final = 200
"""Limit for one directory, by name."""
MAX_COMMAND_BYTES: Final = 64 * 1024
MAX_LISTED_SKILLS: Final = 200
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_HEAD: Final = re.compile(r"\A---\n(.*?\n)?---\n", re.DOTALL)
_PLACE: Final = re.compile(r"\$(ARGUMENTS|[1-9])\b")
PROJECT_DIRECTORY: Final = Path(".chatd") / "commands"


class CustomCommand(Struct, frozen=True, kw_only=True):
    """`body` is the prompt; `$ARGUMENTS` in it stands for all that follows the name, `$1` to `$9`
    for single words of it."""

    name: str
    body: str
    effect: str = ""
    argument: str = ""

    def prompt(self, arguments: str) -> str:
        """Arguments without a place in the body are added at its end."""
        words = arguments.split()

        def value(place: re.Match[str]) -> str:
            if place[1] == "ARGUMENTS":
                return arguments
            at = int(place[1]) - 1
            return words[at] if at < len(words) else ""

        if arguments and not _PLACE.search(self.body):
            return f"{self.body}\n\n{arguments}"
        return _PLACE.sub(value, self.body).strip()


def read_command(name: str, text: str) -> CustomCommand | None:
    """None if the file has no prompt. The head, between two lines of `---`, may have a
    `description` and an `argument-hint`."""
    text = safe_text(text.replace("\r\n", "\n"))
    head = _HEAD.match(text)
    facts = _read_head("" if head is None else head[1] or "")
    body = (text[head.end() :] if head is not None else text).strip()
    if not body:
        return None
    first = body.splitlines()[0].lstrip("# ")
    has_place = _PLACE.search(body) is not None
    return CustomCommand(
        name=name,
        body=body,
        effect=safe_line(facts.get("description") or first, 200),
        argument=safe_line(facts.get("argument-hint", "[text]" if has_place else ""), 40),
    )


def _read_head(text: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip().lower(): value.strip().strip("\"'") for key, _, value in pairs}


def read_directory(directory: Path, root: Path | None = None) -> list[CustomCommand]:
    """Blocks. Leaves out unreadable files and anything but plain files. With a root, which may be
    somebody else's repository, no link may lead out of it."""
    try:
        inside = None if root is None else root.resolve()
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".md")
    except OSError:
        return []
    found: list[CustomCommand] = []
    for path in paths[:MAX_COMMAND_FILES]:
        name = path.stem.lower()
        try:
            if not _NAME.fullmatch(name) or not path.is_file():
                continue
            real = path.resolve()
            if inside is not None and not real.is_relative_to(inside):
                continue
            with real.open("rb") as file:
                data = file.read(MAX_COMMAND_BYTES + 1)
        except OSError:
            continue
        if len(data) <= MAX_COMMAND_BYTES:
            command = read_command(name, data.decode("utf-8", "replace"))
            found += [] if command is None else [command]
    return found


def workspace_of(directory: Path) -> Path | None:
    """The directory whose `.chatd/commands` this is; None for that of the user's configuration."""
    is_own = directory.parts[-len(PROJECT_DIRECTORY.parts) :] == PROJECT_DIRECTORY.parts
    return directory.parent.parent if is_own else None


def skill_command(skill: ListedSkill) -> CustomCommand | None:
    if not _NAME.fullmatch(skill.name.lower()):
        return None
    return CustomCommand(
        name=skill.name.lower(),
        body=f"Use the skill {skill.name}.",
        effect=f"Skill: {safe_line(skill.description, 200)}",
        argument="[text]",
    )


class CustomCommands:
    """The commands that are known now. `read` reads the files; it blocks."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """`directories` named `.chatd/commands` are those of a workspace."""
        self._directories = directories
        self._files: list[CustomCommand] = []
        self._skills: list[CustomCommand] = []

    def read(self) -> list[CustomCommand]:
        return [
            one for path in self._directories for one in read_directory(path, workspace_of(path))
        ]

    def use(self, files: Iterable[CustomCommand]) -> None:
        self._files = list(files)

    def use_skills(self, skills: Iterable[ListedSkill]) -> None:
        self._skills = [one for one in map(skill_command, skills) if one is not None]

    def listed(self) -> list[CustomCommand]:
        found: dict[str, CustomCommand] = {}
        for one in (*self._files, *self._skills):
            if one.name not in BY_NAME and one.name not in ALIASES:
                found.setdefault(one.name, one)
        return list(found.values())

    def find(self, name: str) -> CustomCommand | None:
        return next((one for one in self.listed() if one.name == name.lower()), None)
