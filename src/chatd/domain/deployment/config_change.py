"""Notices that accounts, models, settings or limits changed."""

from typing import Literal

import msgspec
from msgspec import Struct

ConfigKind = Literal[
    "user",
    "group",
    "credential",
    "host_credential",
    "share",
    "project",
    "project_access",
    "provider",
    "user_key",
    "model",
    "settings",
    "limit",
    "mcp_server",
    "hook",
    "runner",
    "runner_token",
    "secret_key",
    "spend_warning",
]


class ConfigChange(Struct, frozen=True, kw_only=True):
    """What changed. `id` is the changed object's, or empty for all of this kind."""

    kind: ConfigKind
    id: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ConfigChange)


def encode_config_change(change: ConfigChange) -> str:
    return _encoder.encode(change).decode()


def decode_config_change(payload: str) -> ConfigChange | None:
    """None for a kind of a newer replica and for a payload that is none: every database user can
    write to the channel."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
