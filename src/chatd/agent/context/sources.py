"""The fixed places of context files, in order, and the parser of SKILL.md headers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md", ".cursorrules")
MCP_CONFIG = ".mcp.json"
SKILL_DIRECTORIES = ("skills", ".agents/skills", ".claude/skills", ".codex/skills")
MAX_DESCRIPTION_BYTES = 4096
_MAX_SKILLS_PER_DIRECTORY = 2000
_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"[|>][+-]?(?:[ \t]+#.*)?")


@dataclass(frozen=True)
class ContextSources:
    home: str
    directory: str

    @property
    def working_directory(self) -> str:
        """The default directory of commands: home until `directory` exists."""
        return self.directory if os.path.isdir(self.directory) else self.home

    def roots(self) -> list[str]:
        roots = [
            self.working_directory,
            os.path.join(self.home, ".chatd"),
            os.path.join(self.home, ".chatd/skills"),
            os.path.join(self.home, ".claude/plugins/cache"),
        ]
        return list(dict.fromkeys(os.path.normpath(each) for each in roots))


class ContextCandidate(NamedTuple):
    kind: str
    path: str
    root: str


def fingerprint(sources: ContextSources) -> tuple[tuple[object, ...], ...]:
    """Changes whenever the result of `read_context` might. Reads names and stats only."""
    stats: list[tuple[object, ...]] = []
    for candidate in find_candidates(sources):
        try:
            info = os.stat(candidate.path)
        except OSError as error:
            stats.append((candidate, error.errno))
            continue
        times = (info.st_mtime_ns, info.st_ctime_ns)
        stats.append((candidate, info.st_dev, info.st_ino, info.st_size, info.st_mode, times))
    return tuple(stats)


def find_candidates(sources: ContextSources) -> Iterator[ContextCandidate]:
    """The paths at which a resource may exist."""
    for root in sources.roots():
        for name in INSTRUCTION_FILES:
            yield ContextCandidate("instruction_file", os.path.join(root, name), root)
        yield ContextCandidate("mcp_config", os.path.join(root, MCP_CONFIG), root)
        directories = [os.path.join(root, name) for name in SKILL_DIRECTORIES]
        if os.path.basename(root) == "skills":
            directories.append(root)
        for directory in directories:
            for name in _list_names(directory):
                yield ContextCandidate("skill", os.path.join(directory, name, "SKILL.md"), root)


def _list_names(directory: str) -> list[str]:
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(names) == _MAX_SKILLS_PER_DIRECTORY:
                    break
                names.append(entry.name)
    except OSError:
        return []
    return sorted(names)


def is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class SkillError(Exception):
    """The message says what is wrong with the skill."""


@dataclass(frozen=True)
class SkillFile:
    name: str
    description: str
    body: str


def parse_skill(data: bytes, directory: str) -> SkillFile:
    """Parse a SKILL.md with just enough YAML for two strings.

    `directory` is the name of the directory that contains the file; the skill must have the same.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise SkillError("it is not UTF-8 text") from None
    lines = text.replace("\r\n", "\n").lstrip("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        raise SkillError("SKILL.md must begin with a line of three dashes and name the skill")
    end = next((index for index in range(1, len(lines)) if lines[index].rstrip() == "---"), None)
    if end is None:
        raise SkillError("the header of SKILL.md is not closed by a line of three dashes")
    fields = _parse_header(lines[1:end])
    name, description = fields.get("name", ""), fields.get("description", "")
    if not _SKILL_NAME.fullmatch(name) or len(name) > 256:
        raise SkillError("name must be lower-case words of letters and digits joined by dashes")
    if name != directory:
        raise SkillError(f"name is {name!r} but the directory is {directory!r}")
    if not description:
        raise SkillError("description is missing")
    if len(description.encode("utf-8")) > MAX_DESCRIPTION_BYTES:
        raise SkillError(f"description is longer than {MAX_DESCRIPTION_BYTES} bytes")
    return SkillFile(name, description, "\n".join(lines[end + 1 :]).lstrip("\n"))


def _parse_header(lines: list[str]) -> dict[str, str]:
    """The strings at the top level. Lists and maps are skipped."""
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        key = _KEY.fullmatch(lines[at].rstrip())
        at += 1
        begin = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
            at += 1
        if key is not None:
            found[key[1]] = _parse_value(key[2] or "", lines[begin:at])
    return found


def _parse_value(first: str, more: list[str]) -> str:
    first = first.strip()
    if _BLOCK.fullmatch(first):
        texts = [line.strip() for line in more]
        return ("\n" if first[0] == "|" else " ").join(texts).strip()
    value = " ".join(part for part in (first, *(line.strip() for line in more)) if part)
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if value.startswith('"'):
        try:
            unquoted: object = json.loads(value)
        except ValueError:
            return value
        return unquoted if isinstance(unquoted, str) else value
    return re.sub(r"\s+#.*", "", value)
