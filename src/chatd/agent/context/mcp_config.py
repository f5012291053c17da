"""Servers that a workspace declares in `.mcp.json`: parse, check names, expand variables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

MAX_SERVERS = 32
MAX_NAME_CHARS = 64

_NAME = re.compile(r"[^\s/\\\x00-\x1f]+")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_Object = Mapping[str, object]


class McpConfigError(Exception):
    """The message says what is wrong with the file or with one server."""


@dataclass(frozen=True)
class McpServerConfig:
    """`error`: why the server cannot be used. Values of variables are not expanded yet."""

    name: str
    transport: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    error: str = ""
    source: str = field(default="", compare=False)


def parse_config(data: bytes, source: str = "") -> list[McpServerConfig]:
    """Sorted by name. Raises McpConfigError if the file is malformed; a bad server has an error."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        raise McpConfigError("it is not valid JSON") from None
    top = cast("_Object", value if isinstance(value, dict) else {"mcpServers": None})
    servers = top.get("mcpServers", {})
    if not isinstance(servers, dict):
        raise McpConfigError("it must be an object with the object mcpServers")
    entries = cast("dict[str, object]", servers)
    return [_read_server(name, entries[name], source) for name in sorted(entries)[:MAX_SERVERS]]


def _read_server(name: str, entry: object, source: str) -> McpServerConfig:
    try:
        check_name(name)
        return _read_entry(name, _object(entry), source)
    except McpConfigError as error:
        return McpServerConfig(name[:MAX_NAME_CHARS], error=str(error), source=source)


def check_name(name: str) -> None:
    """`__` separates the server's name from the tool's, so a name must not make that ambiguous."""
    if not name or len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise McpConfigError(f"a name has 1 to {MAX_NAME_CHARS} characters without spaces")
    if "__" in name or name.startswith("_") or name.endswith("_"):
        raise McpConfigError("a name must not contain __ nor begin or end with _")


def _read_entry(name: str, entry: _Object, source: str) -> McpServerConfig:
    command, url = _text(entry, "command"), _text(entry, "url")
    kind = _text(entry, "type") or ("stdio" if command else "http" if url else "")
    if kind in ("streamable-http", "streamable_http"):
        kind = "http"
    if not kind:
        raise McpConfigError("it needs a command or a url")
    if kind == "sse":
        raise McpConfigError("the transport sse is not supported in workspaces; use http")
    if kind not in ("stdio", "http"):
        raise McpConfigError(f"the type {kind!r} is unknown; use stdio or http")
    if kind == "stdio" and not command:
        raise McpConfigError("a server of type stdio needs a command")
    if kind == "http" and not url:
        raise McpConfigError("a server of type http needs a url")
    return McpServerConfig(
        name,
        transport=kind,
        command=command,
        args=_texts(entry, "args"),
        env=_pairs(entry, "env"),
        url=url,
        headers=_pairs(entry, "headers"),
        source=source,
    )


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `${NAME}` and `${NAME:-default}`; an unset variable without a default is empty."""
    return _VARIABLE.sub(lambda found: variables.get(found[1]) or (found[2] or ""), text)


def merge_configs(configs: Sequence[McpServerConfig]) -> list[McpServerConfig]:
    """Of two servers with one name the first takes precedence."""
    found: dict[str, McpServerConfig] = {}
    for config in configs:
        found.setdefault(config.name, config)
    return [found[name] for name in sorted(found)[:MAX_SERVERS]]


def _object(value: object) -> _Object:
    if not isinstance(value, dict):
        raise McpConfigError("it must be an object")
    return cast("_Object", value)


def _text(entry: _Object, key: str) -> str:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise McpConfigError(f"{key} must be a text")
    return value or ""


def _texts(entry: _Object, key: str) -> tuple[str, ...]:
    value = entry.get(key)
    if value is None:
        return ()
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) != len(items):
        raise McpConfigError(f"{key} must be a list of texts")
    return texts


def _pairs(entry: _Object, key: str) -> tuple[tuple[str, str], ...]:
    value = entry.get(key)
    if value is None:
        return ()
    items = cast("dict[str, object]", value) if isinstance(value, dict) else {"": None}
    pairs = tuple((name, text) for name, text in items.items() if isinstance(text, str))
    if len(pairs) != len(items):
        raise McpConfigError(f"{key} must be a map of texts")
    return tuple(sorted(pairs))
