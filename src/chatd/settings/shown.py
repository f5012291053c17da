"""Settings as they may be shown: without secrets, and as digests that replicas compare.

Of the lists, whose entries may have keys in any field, only the named fields are shown.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec

from chatd.settings.keys import SettingKey, setting_keys
from chatd.settings.schema import Settings, redact_notifications, redact_url

MASK: Final = "***"
DIGEST_CHARS: Final = 12
_SECRET: Final = re.compile(r"secret|password|passphrase|access_key|(^|[._])(token|key)s?$|_token$")
_SHOWN_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "providers": ("name", "kind", "base_url", "region", "api_key_env"),
    "models": ("name", "provider", "model", "default", "context_limit"),
    "mcp_servers": ("slug", "url", "auth", "transport", "enabled"),
    "templates": ("name", "backend", "pool"),
}
_URL_FIELDS: Final = frozenset({"base_url", "url"})

PER_HOST: Final = ("data_dir", "database.", "log.", "worker.", "demo.", "workspaces.", "backup.")
_PER_HOST_NAMES: Final = frozenset(
    {
        *("server.host", "server.port", "server.processes", "server.peer_address"),
        "server.metrics_token",
    }
)
"""Settings that may differ between the hosts of a deployment."""


def shown_settings(settings: Settings) -> dict[str, object]:
    """Settings by dotted name. A secret that is set is shown as three stars."""
    return {name: _shown(key, _value(settings, key)) for name, key in setting_keys().items()}


def shared_digests(settings: Settings) -> dict[str, str]:
    """Digests of the settings that all replicas should have alike, without the secrets."""
    shown = shown_settings(settings)
    return {
        name: hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:DIGEST_CHARS]
        for name, value in shown.items()
        if not name.startswith(PER_HOST) and name not in _PER_HOST_NAMES
    }


def _value(settings: Settings, key: SettingKey) -> object:
    found: object = settings
    for name in key.path:
        found = getattr(found, name)
    return found


def _shown(key: SettingKey, value: object) -> object:
    if key.name in _SHOWN_FIELDS:
        entries = cast("Sequence[object]", value)
        return [_entry(key.name, msgspec.to_builtins(one, enc_hook=str)) for one in entries]
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET.search(key.name):
        return MASK
    if key.name == "database.url":
        return redact_url(str(value))
    if key.name == "server.notifications":
        return redact_notifications(str(value))
    if isinstance(value, tuple):
        return [_text(str(one)) for one in cast("tuple[object, ...]", value)]
    return str(value) if isinstance(value, Path) else _text(str(value))


def _entry(name: str, entry: object) -> dict[str, object]:
    fields = cast("Mapping[str, object]", entry)
    return {
        field: _host(str(fields[field])) if field in _URL_FIELDS else fields[field]
        for field in _SHOWN_FIELDS[name]
        if fields.get(field) is not None
    }


def _text(text: str) -> str:
    """Redact an address, which may have a password, or a key in its query."""
    return _host(text) if "://" in text else text


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return MASK
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
