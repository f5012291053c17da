"""The table of settings in docs/settings.md, from the settings schema."""

from collections.abc import Iterator

import msgspec

from chatd.settings.keys import is_section, setting_keys
from chatd.settings.schema import Settings

ELSEWHERE = {
    "data_dir": "`~/.local/share/chatd`; for root `/var/lib/chatd`",
    "database.url": "none",
    "providers": "none; see [models.md](models.md)",
    "mcp_servers": "none; see [mcp.md](mcp.md#administer-servers)",
    "models": "`demo`; see [models.md](models.md)",
    "templates": "none",
}


def rows() -> Iterator[str]:
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
