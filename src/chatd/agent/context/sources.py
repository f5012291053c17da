"""Where the workspace's context is looked for: a few fixed places, and never further down.

Owns the names and their order. What is found there, and how much of it counts, is `context`'s
business.

Skills: reading the head of a SKILL.md.

Just enough YAML for two strings. What is stranger than that is invalid, with the reason.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", ".cursorrules")
MCP_CONFIG = ".mcp.json"
SKILL_PLACES = ("skills", ".agents/skills", ".claude/skills", ".codex/skills")
_MAX_ENTRIES = 2000


@dataclass(frozen=True)
class ContextSources:
    """Where to look. `sources` are directories or files that a person has added."""

    home: str
    directory: str
    sources: tuple[str, ...] = ()

    @property
    def working(self) -> str:
        """Where commands run that are not told otherwise: at home until the directory is there."""
        return self.directory if os.path.isdir(self.directory) else self.home

    def roots(self) -> list[str]:
        fixed = [
            self.working,
            os.path.join(self.home, ".chatd"),
            os.path.join(self.home, ".chatd/skills"),
            os.path.join(self.home, ".claude/plugins/cache"),
        ]
        allowed = [each for each in self.sources if self.allows(each)]
        return list(dict.fromkeys(os.path.normpath(each) for each in (*fixed, *allowed)))

    def allows(self, source: str) -> bool:
        """A source counts by its name, but where it leads must be the user's own ground."""
        real = os.path.realpath(source)
        return os.path.isabs(source) and any(
            is_within(real, os.path.realpath(ground)) for ground in (self.home, self.working)
        )


class ContextCandidate(NamedTuple):
    kind: str
    path: str
    root: str


def fingerprint(places: ContextSources) -> tuple[tuple[object, ...], ...]:
    """Differs whenever `resolve` might. Looks at names and times only."""
    seen: list[tuple[object, ...]] = []
    for candidate in candidates(places):
        try:
            info = os.stat(candidate.path)
        except OSError as error:
            seen.append((candidate, error.errno))
            continue
        times = (info.st_mtime_ns, info.st_ctime_ns)
        seen.append((candidate, info.st_dev, info.st_ino, info.st_size, info.st_mode, times))
    return tuple(seen)


def candidates(places: ContextSources) -> Iterator[ContextCandidate]:
    for root in places.roots():
        if os.path.isfile(root):
            yield ContextCandidate("instruction_file", root, os.path.dirname(root))
            continue
        for name in INSTRUCTIONS:
            yield ContextCandidate("instruction_file", os.path.join(root, name), root)
        yield ContextCandidate("mcp_config", os.path.join(root, MCP_CONFIG), root)
        holders = [os.path.join(root, place) for place in SKILL_PLACES]
        if os.path.basename(root) == "skills":
            holders.append(root)
        for holder in holders:
            for name in _names(holder):
                yield ContextCandidate("skill", os.path.join(holder, name, "SKILL.md"), root)


def _names(directory: str) -> list[str]:
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(names) == _MAX_ENTRIES:
                    break
                names.append(entry.name)
    except OSError:
        return []
    return sorted(names)


def is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


MAX_DESCRIPTION = 4096
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"[|>][+-]?(?:[ \t]+#.*)?")


class SkillError(Exception):
    """Its text says what is wrong."""


@dataclass(frozen=True)
class SkillFile:
    name: str
    description: str
    body: str


def parse_skill(text: str, directory: str) -> SkillFile:
    """`directory` is the name of the directory the file lies in, which is the skill's own name."""
    lines = text.replace("\r\n", "\n").lstrip("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        raise SkillError("SKILL.md must begin with a line of three dashes and name the skill")
    end = next((at for at in range(1, len(lines)) if lines[at].rstrip() == "---"), None)
    if end is None:
        raise SkillError("the head of SKILL.md is not closed by a line of three dashes")
    fields = _fields(lines[1:end])
    name, description = fields.get("name", ""), fields.get("description", "")
    if not _NAME.fullmatch(name) or len(name) > 256:
        raise SkillError("name must be lower-case words of letters and digits joined by dashes")
    if name != directory:
        raise SkillError(f"name is {name!r} but the directory is {directory!r}")
    if not description:
        raise SkillError("description is missing")
    if len(description.encode("utf-8")) > MAX_DESCRIPTION:
        raise SkillError(f"description is longer than {MAX_DESCRIPTION} bytes")
    return SkillFile(name, description, "\n".join(lines[end + 1 :]).lstrip("\n"))


def _fields(lines: list[str]) -> dict[str, str]:
    """The strings at the top level. Lists and maps under other keys are passed over."""
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        key = _KEY.fullmatch(lines[at].rstrip())
        at += 1
        begin = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
            at += 1
        if key is not None:
            found[key[1]] = _value(key[2] or "", lines[begin:at])
    return found


def _value(first: str, more: list[str]) -> str:
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
