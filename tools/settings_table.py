"""Write the table of settings in docs/operating.md from the settings tree, between its markers.

`python -m tools.settings_table` rewrites the file.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chatd.settings.keys import is_section, setting_keys
from chatd.settings.schema import Settings

DOCUMENT = Path(__file__).parent.parent / "docs" / "operating.md"
BEGIN = "<!-- settings: made by tools/settings_table.py -->\n"
END = "<!-- end of settings -->\n"
ELSEWHERE = {
    "data_dir": "`~/.local/share/chatd`; for root `/var/lib/chatd`",
    "database.url": "none",
    "providers": "none; see [models.md](models.md)",
    "models": "`demo`; see [models.md](models.md)",
    "templates": "none",
}


def table() -> Iterator[str]:
    yield "| key | environment | default | |"
    yield "|---|---|---|---|"
    for name, key in setting_keys().items():
        about = f"{key.help}; {key.expected}" if key.expected and not key.is_list else key.help
        default = ELSEWHERE.get(name) or _default(key.path)
        yield f"| `{name}` | `{key.variable}` | {default} | {about} |"


def _default(path: tuple[str, ...]) -> str:
    section: type[msgspec.Struct] = Settings
    for name in path[:-1]:
        found = next(f.type for f in msgspec.structs.fields(section) if f.encode_name == name)
        assert is_section(found)
        section = found
    field = next(f for f in msgspec.structs.fields(section) if f.encode_name == path[-1])
    return _shown(field.default)


def _shown(value: object) -> str:
    """As it is written in the file."""
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case tuple():
            return "none"
        case _:
            return f"`{value}`"


def render(document: str) -> str:
    head, found, rest = document.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not (found and closed):
        raise ValueError("The table of settings has lost its markers.")
    lines = "".join(f"{line}\n" for line in table())
    return f"{head}{BEGIN}{lines}{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text()))
    sys.exit(0)
