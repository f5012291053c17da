"""Skills: instructions for certain tasks, which a model reads when it needs them.

A skill belongs to the user (`personal`) or comes from the workspace (`workspace`). It is known by
its name alone, unless both have one with that name: then only `personal/x` and `workspace/x` say
which is meant.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.errors import ToolError
from chatd.domain.prompt.instructions import one_line, strip_comments, strip_invisible
from chatd.domain.text import clip

SkillSource = Literal["personal", "workspace"]

MAX_INDEX_CHARS: Final = 32 * 1024
"""Of all skills that a model is told about; the others can still be read by name."""
MAX_INDEX_DESCRIPTION_CHARS: Final = 1000
_NAMES_SHOWN: Final = 50

_INTRODUCTION: Final = (
    "Skills are instructions for certain tasks. If a task fits a description, read the skill with"
    " read_skill before you begin."
)


class Skill(Struct, frozen=True, kw_only=True):
    """`directory` is that of a skill of the workspace."""

    name: str
    description: str
    source: SkillSource
    directory: str = ""

    @property
    def qualified_name(self) -> str:
        return f"{self.source}/{self.name}"


class SkillIndex(Struct, frozen=True):
    """The skills of a chat, by name. Of two with one name from one source the first counts."""

    skills: tuple[Skill, ...] = ()

    @staticmethod
    def of(skills: Iterable[Skill]) -> "SkillIndex":
        found: dict[str, Skill] = {}
        for skill in skills:
            found.setdefault(skill.qualified_name, skill)
        return SkillIndex(tuple(sorted(found.values(), key=lambda one: (one.name, one.source))))

    @property
    def has_workspace_skills(self) -> bool:
        return any(skill.source == "workspace" for skill in self.skills)

    def aliases(self) -> list[str]:
        """The name by which each skill is known."""
        counts = Counter(skill.name for skill in self.skills)
        return [
            skill.name if counts[skill.name] == 1 else skill.qualified_name for skill in self.skills
        ]

    def find(self, name: str) -> Skill:
        """Raises ToolError."""
        name = name.strip()
        found = [skill for skill in self.skills if name in (skill.name, skill.qualified_name)]
        if len(found) == 1:
            return found[0]
        if found:
            both = " and ".join(skill.qualified_name for skill in found)
            raise ToolError(f"There are two skills named {name!r}: {both}. Name one of these.")
        aliases = self.aliases()
        shown = ", ".join(aliases[:_NAMES_SHOWN]) or "none"
        more = f", and {len(aliases) - _NAMES_SHOWN} more" if len(aliases) > _NAMES_SHOWN else ""
        raise ToolError(f"There is no skill named {name!r}. Skills: {shown}{more}.")

    def block(self) -> str:
        """What the model is told; empty without skills."""
        if not self.skills:
            return ""
        lines: list[str] = []
        left = MAX_INDEX_CHARS
        for alias, skill in zip(self.aliases(), self.skills, strict=True):
            line = f"- {alias}: {clip(one_line(skill.description), MAX_INDEX_DESCRIPTION_CHARS)}"
            left -= len(line) + 1
            if left < 0:
                lines.append(f"{len(self.skills) - len(lines)} more skills are not listed.")
                break
            lines.append(line)
        return "\n".join(["<available-skills>", _INTRODUCTION, *lines, "</available-skills>"])


def skill_body(text: str) -> str:
    """As the model reads it: without what a reader of the file does not see."""
    return strip_invisible(strip_comments(strip_invisible(text)))


def require_skill_path(path: str) -> str:
    """A path of a file below the directory of a skill. Raises ToolError."""
    path = path.strip()
    names = path.split("/")
    if path.startswith("/") or not all(names) or any(name.startswith(".") for name in names):
        raise ToolError(
            "path must be relative to the directory of the skill, such as references/checks.md,"
            " without names that begin with a dot."
        )
    return path
