"""The table of built-in limits and timeouts in docs/limits.md, read from the source.

A row per public constant of `src/chatd` that bounds something: its name ends with a unit (`_S`,
`_BYTES`, `_CHARS`, ...) or begins with MAX_ or MIN_. The meaning is the string below the constant
or the comment above it; without one the name says it.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "chatd"
BOUND = re.compile(r"^(MAX|MIN|DEFAULT)_|_(S|MS|MICROS|BYTES|CHARS|TOKENS|PERCENT|DAYS|ATTEMPTS)$")
CONSTANT = re.compile(r"^([A-Z][A-Z0-9_]*)\s*[:=]", re.MULTILINE)
NOT_LISTED = {"bench"}


class Limit(Struct, frozen=True, kw_only=True):
    name: str
    value: str
    meaning: str
    module: str


def rows() -> Iterator[str]:
    yield "| limit | value | where | what it bounds |"
    yield "|---|---|---|---|"
    for limit in sorted(_limits(), key=lambda limit: (limit.module, limit.name)):
        yield f"| `{limit.name}` | {limit.value} | `{limit.module}` | {limit.meaning} |"


def _limits() -> Iterator[Limit]:
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if module.split(".")[0] in NOT_LISTED or path.name.startswith("__"):
            continue
        text = path.read_text()
        found = list(_constants(text))
        if found:
            values = vars(importlib.import_module(f"chatd.{module}"))
            for name, meaning in found:
                value = _shown(name, values[name])
                if value is not None:
                    yield Limit(name=name, value=value, meaning=meaning, module=module)


def _constants(text: str) -> Iterator[tuple[str, str]]:
    if not any(map(BOUND.search, CONSTANT.findall(text))):
        return
    lines, body = text.splitlines(), ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        if not isinstance(target, ast.Name) or not target.id.isupper():
            continue
        if not target.id.startswith("_") and BOUND.search(target.id):
            yield target.id, _meaning(lines, node, after)


def _meaning(lines: list[str], node: ast.stmt, after: ast.stmt | None) -> str:
    match after:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return _one_line(text)
        case _:
            above: list[str] = []
            number = node.lineno - 2
            while number >= 0 and lines[number].startswith("#"):
                above.insert(0, lines[number].lstrip("# "))
                number -= 1
            return _one_line(" ".join(above))


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shown(name: str, value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name.endswith("_BYTES") and value >= 1024 and value % 1024 == 0:
        mib = value % (1024 * 1024) == 0
        return f"{value // (1024 * 1024)} MiB" if mib else f"{value // 1024} KiB"
    unit = {"_PER_S": "", "_S": " s", "_MS": " ms", "_BYTES": " bytes", "_PERCENT": " %"}
    suffix = next((text for ending, text in unit.items() if name.endswith(ending)), "")
    return f"{value:,g}{suffix}" if isinstance(value, float) else f"{value:,}{suffix}"
