"""Skills: reading the head of a SKILL.md.

Just enough YAML for two strings. What is stranger than that is invalid, with the reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_DESCRIPTION = 4096
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"[|>][+-]?(?:[ \t]+#.*)?")


class BadSkill(Exception):
    """Its text says what is wrong."""


@dataclass(frozen=True)
class Skill:
    name: str
    description: str
    body: str


def parse_skill(text: str, directory: str) -> Skill:
    """`directory` is the name of the directory the file lies in, which is the skill's own name."""
    lines = text.replace("\r\n", "\n").lstrip("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        raise BadSkill("SKILL.md must begin with a line of three dashes and name the skill")
    end = next((at for at in range(1, len(lines)) if lines[at].rstrip() == "---"), None)
    if end is None:
        raise BadSkill("the head of SKILL.md is not closed by a line of three dashes")
    fields = _fields(lines[1:end])
    name, description = fields.get("name", ""), fields.get("description", "")
    if not _NAME.fullmatch(name) or len(name) > 256:
        raise BadSkill("name must be lower-case words of letters and digits joined by dashes")
    if name != directory:
        raise BadSkill(f"name is {name!r} but the directory is {directory!r}")
    if not description:
        raise BadSkill("description is missing")
    if len(description.encode("utf-8")) > MAX_DESCRIPTION:
        raise BadSkill(f"description is longer than {MAX_DESCRIPTION} bytes")
    return Skill(name, description, "\n".join(lines[end + 1 :]).lstrip("\n"))


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
