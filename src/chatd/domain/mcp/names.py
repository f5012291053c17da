"""Names of MCP tools as a model sees them.

Providers refuse a name outside of `[A-Za-z0-9_-]` or longer than 64 characters, and one refused
name fails the whole request. The name by which the server is called stays as it is.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from msgspec import Struct

MAX_MODEL_NAME_CHARS: Final = 64
NAME_SEPARATOR: Final = "__"
WORKSPACE_SLUG: Final = "workspace"
"""Begins the names of tools of all servers that workspaces declare. No configured server has it: a
repository chooses the names of its servers, and no rule for a configured one may count for them."""

_REFUSED_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS: Final = 8


class ServerToolKey(Struct, frozen=True, kw_only=True, order=True):
    """One tool of one server; `slug` is the server's name in the names of its tools."""

    slug: str
    server_id: str
    tool: str


def workspace_slug(server: str) -> str:
    """Of a server that a workspace declares."""
    return f"{WORKSPACE_SLUG}{NAME_SEPARATOR}{server}"


def model_name(slug: str, tool: str) -> str:
    """`slug__tool`. A name that is too long ends in a hash, so that it does not change when the
    server gets more tools."""
    whole = f"{slug}{NAME_SEPARATOR}{tool}"
    name = _REFUSED_CHARS.sub("_", whole)
    if len(name) <= MAX_MODEL_NAME_CHARS:
        return name
    digest = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_MODEL_NAME_CHARS - _HASH_CHARS - 1]}_{digest}"


def assign_names(keys: Iterable[ServerToolKey]) -> Sequence[tuple[str, ServerToolKey]]:
    """Distinct names, sorted by name, then by server. Of tools whose names collide the first keeps
    its name; the others get `_2`, `_3` and so on."""
    wanted = sorted(
        ((model_name(key.slug, key.tool), key) for key in set(keys)),
        key=lambda pair: (pair[0], pair[1].server_id, pair[1].tool, pair[1].slug),
    )
    taken = {name for name, _ in wanted}
    named: dict[str, ServerToolKey] = {}
    for name, key in wanted:
        free = name
        number = 2
        while free in named or (free != name and free in taken):
            suffix = f"_{number}"
            free = f"{name[: MAX_MODEL_NAME_CHARS - len(suffix)]}{suffix}"
            number += 1
        named[free] = key
    return sorted(named.items(), key=lambda pair: (pair[0], pair[1].server_id))


def is_allowed(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """By the server's own name. A non-empty allow list counts alone."""
    return tool in allow if allow else tool not in deny
