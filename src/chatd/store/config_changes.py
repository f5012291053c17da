"""Publish changes of accounts, models, settings and limits to all replicas.

The notice is part of the transaction that writes the change: a replica hears of every committed
change and of no other. A NOTIFY in a transaction takes a lock of the whole server during its
commit, so only writes that are rare do this.
"""

from collections.abc import Callable
from typing import Final

from chatd.domain.deployment.config_change import (
    ConfigChange,
    decode_config_change,
    encode_config_change,
)
from chatd.store.conn import DatabaseSession

CONFIG_CHANNEL: Final = "chatd_config"
NOTIFY_CONFIG_CHANGE: Final = "SELECT pg_notify($1, $2)"

OnConfigChange = Callable[[ConfigChange | None], None]
"""Called with each change, in this replica too; with None when changes may have been missed: then
everything cached must be read again. Must not raise or block."""


async def publish(session: DatabaseSession, change: ConfigChange) -> None:
    """Only inside the transaction that writes the change."""
    await session.execute(NOTIFY_CONFIG_CHANGE, CONFIG_CHANNEL, encode_config_change(change))


class ConfigChanges:
    """What this replica hears. While `is_current` is False, it hears nothing, and cached values
    must not be used."""

    def __init__(self) -> None:
        self._callbacks: list[OnConfigChange] = []
        self.is_current = False

    def subscribe(self, callback: OnConfigChange) -> None:
        self._callbacks.append(callback)

    def on_connected(self) -> None:
        self.is_current = True
        self._call(None)

    def on_disconnected(self) -> None:
        self.is_current = False

    def on_notice(self, payload: str) -> None:
        if (change := decode_config_change(payload)) is not None:
            self._call(change)

    def _call(self, change: ConfigChange | None) -> None:
        for callback in self._callbacks:
            callback(change)
