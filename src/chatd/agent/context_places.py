"""Where the workspace's context is looked for: a few fixed places, and never further down.

Owns the names and their order. What is found there, and how much of it counts, is `context`'s
business.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", ".cursorrules")
MCP_CONFIG = ".mcp.json"
SKILL_PLACES = ("skills", ".agents/skills", ".claude/skills", ".codex/skills")
_MAX_ENTRIES = 2000


@dataclass(frozen=True)
class Places:
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
            within(real, os.path.realpath(ground)) for ground in (self.home, self.working)
        )


class Candidate(NamedTuple):
    kind: str
    path: str
    root: str


def fingerprint(places: Places) -> tuple[tuple[object, ...], ...]:
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


def candidates(places: Places) -> Iterator[Candidate]:
    for root in places.roots():
        if os.path.isfile(root):
            yield Candidate("instruction_file", root, os.path.dirname(root))
            continue
        for name in INSTRUCTIONS:
            yield Candidate("instruction_file", os.path.join(root, name), root)
        yield Candidate("mcp_config", os.path.join(root, MCP_CONFIG), root)
        holders = [os.path.join(root, place) for place in SKILL_PLACES]
        if os.path.basename(root) == "skills":
            holders.append(root)
        for holder in holders:
            for name in _names(holder):
                yield Candidate("skill", os.path.join(holder, name, "SKILL.md"), root)


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


def within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
