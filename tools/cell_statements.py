"""The table of docs/scaling.md: what each statement of the store would need if chats were spread
over several databases, cells, by the id of their root chat. Read from the statements and schema.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

import chatd.store
from chatd.store.database.conn import NamedStatement

MIGRATIONS: Final = Path(__file__).parent.parent / "src" / "chatd" / "store" / "migrations"
COPIED_TABLES: Final = frozenset(
    {
        *(
            "users",
            "groups",
            "group_members",
            "project_members",
            "deployment_settings",
            "webhooks",
            "mcp_servers",
        ),
        *("default_spend_limit", "group_spend_limits", "user_spend_limits"),
    }
)
"""Small and rarely written: each cell would have a copy, so that its statements may join them."""
TABLES_OF_EACH_CELL: Final = frozenset(
    {
        *("chat_workers", "former_workers", "chat_search_progress"),
        *("usage_daily", "usage_rolled_up"),
    }
)
"""Without a chat in their rows, and still of a cell: who works in it, and its sums."""
_CREATED: Final = re.compile(
    r"CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(\w+) \((.*?)\n\)", re.DOTALL
)
_CHAT_COLUMN: Final = re.compile(r"^\s*(?:root_)?chat_id\b", re.MULTILINE)
_STATEMENT: Final = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
_KEY: Final = re.compile(
    r"\b(?:\w+\.)?(?:root_chat_id|parent_chat_id|chat_id|id)\s*=\s*(?:ANY\s*\(\s*)?\$\d"
    r"|\$\d+(?:::\w+(?:\[\])?)?\)?\s+(?:AS\s+)?\w*chat"
)
"""A chat, or a row of one, is named by a parameter."""


class Reach(Enum):
    """The value is the text of the table."""

    KEY = "one cell: a parameter names the chat"
    EVERY = "every cell, and the replies merged: no chat is named"
    SPLIT = "two statements: it joins chats with tables that stay in one place"
    OUTSIDE = "nothing: it reads no chats"


def store_constants() -> Iterator[tuple[str, str]]:
    """Every string constant of the modules of the store."""
    for module in pkgutil.walk_packages(chatd.store.__path__, "chatd.store."):
        if module.ispkg:
            continue
        short_name = module.name.removeprefix("chatd.store.").replace(".", "/")
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, NamedStatement):
                yield f"{short_name}.{name}", value.text
            elif isinstance(value, str) and not name.startswith("__"):
                yield f"{short_name}.{name}", value


@cache
def reaches() -> dict[str, Reach]:
    """By the name of the statement. One that several modules name counts once."""
    tables = dict(_tables())
    of_chats = {name for name, body in tables.items() if _is_of_chats(name, body)}
    found: dict[str, Reach] = {}
    seen: set[str] = set()
    for name, text in store_constants():
        is_private = name.split(".")[1].startswith("_")
        if is_private or text in seen or _STATEMENT.match(text) is None:
            continue
        seen.add(text)
        bare = re.sub(r"'[^']*'", "", text)
        used = set(re.findall(r"\w+", bare)) & tables.keys()
        found[name] = _reach(bare, used & of_chats, used - of_chats)
    return found


def rows() -> Iterator[str]:
    by_reach = {reach: [n for n, r in reaches().items() if r is reach] for reach in Reach}
    yield "| statements | would need | which |"
    yield "|---|---|---|"
    for reach, names in by_reach.items():
        named = reach in (Reach.EVERY, Reach.SPLIT)
        yield f"| {len(names)} | {reach.value} | {_shown(names) if named else _counted(names)} |"


def _tables() -> Iterator[tuple[str, str]]:
    for file in sorted(MIGRATIONS.glob("*.sql")):
        yield from _CREATED.findall(re.sub(r"--[^\n]*", "", file.read_text()))


def _is_of_chats(name: str, body: str) -> bool:
    return name == "chats" or _CHAT_COLUMN.search(body) is not None


def _reach(text: str, of_chats: set[str], others: set[str]) -> Reach:
    if not of_chats:
        return Reach.OUTSIDE
    if others - COPIED_TABLES - TABLES_OF_EACH_CELL:
        return Reach.SPLIT
    return Reach.KEY if _KEY.search(text) else Reach.EVERY


def _shown(names: list[str]) -> str:
    """Together by module."""
    modules: dict[str, list[str]] = {}
    for name in names:
        module, _, constant = name.partition(".")
        modules.setdefault(module, []).append(f"`{constant}`")
    return "; ".join(f"{module}: {', '.join(found)}" for module, found in modules.items())


def _counted(names: list[str]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        module = name.partition(".")[0].partition("/")[0]
        counts[module] = counts.get(module, 0) + 1
    return ", ".join(f"{module} {count}" for module, count in sorted(counts.items()))
