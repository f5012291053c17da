"""The declaration of this process: the models of its settings and its environment, written to the
database and renewed while the process runs."""

from contextlib import suppress
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Env
from chatd.providers.registry import ProviderRegistry
from chatd.store import model_declarations
from chatd.store.model_declarations import DeclaredProvider, ModelDeclaration
from chatd.store.pool import Pool

_PROVIDER_NAMES: Final = UUID("0d9a5f6e-3c1b-4b6a-8a57-2f4e9b7c6d12")

DECLARATION_DEAD_AFTER_S: Final = 120.0
"""A process that has not renewed its declaration for this long no longer keeps models enabled."""
MAX_DECLARE_ATTEMPTS: Final = 4
"""Meanwhile the statement timeout ends a declaration of another replica that hangs."""


def build_declaration(known: ProviderRegistry) -> ModelDeclaration:
    """The part of these models that every replica and the API may show: no key, no header."""
    return ModelDeclaration(
        providers=tuple(
            DeclaredProvider(
                id=uuid5(_PROVIDER_NAMES, name),
                name=name,
                kind=provider.kind,
                base_url=_without_secrets(provider.base_url),
                has_api_key=bool(provider.api_key),
                source="environment" if provider.is_preset else "settings",
            )
            for name, provider in known.providers.items()
        ),
        models=tuple(known.models),
        has_models=any(known.providers[one.provider].kind != "demo" for one in known.models),
    )


def _without_secrets(url: str | None) -> str | None:
    """Drop user, password and query, which may hold a key."""
    if url is None:
        return None
    try:
        pieces = urlsplit(url.strip())
        host, port = pieces.hostname or "", pieces.port
    except ValueError:
        return None
    where = f"[{host}]" if ":" in host else host
    where = where if port is None else f"{where}:{port}"
    return urlunsplit((pieces.scheme, where, pieces.path, "", ""))


class SettingsDeclaration:
    def __init__(self, own: ProviderRegistry, env: Env) -> None:
        self._own = own
        self._env = env
        self._process_id = env.new_id()
        self._renewals: dict[UUID, tuple[datetime, float]] = {}

    async def declare(self, pool: Pool) -> None:
        """Write the models to the database, and log how other running processes differ."""
        declaration = build_declaration(self._own)
        for left in reversed(range(MAX_DECLARE_ATTEMPTS)):
            try:
                found = await model_declarations.declare(pool, self._process_id, declaration)
                break
            except Unavailable:
                if left == 0:
                    raise
        else:
            raise AssertionError  # the last attempt returns or raises
        if found.different:
            self._env.emit("settings_differ", models=", ".join(found.different))
        if found.missing:
            self._env.emit("settings_lack_models", models=", ".join(found.missing))
        if found.shadowed:
            self._env.emit("settings_shadowed", names=", ".join(found.shadowed))

    async def withdraw(self, pool: Pool) -> None:
        """At exit: the next process to start need not wait until this one counts as dead."""
        with suppress(Unavailable):
            await model_declarations.withdraw(pool, self._process_id)

    async def renew(self, pool: Pool) -> None:
        """A process is dead if its time of renewal has not changed for long, by this process's
        own clock: the database's clock may jump."""
        now = self._env.clock.monotonic()
        renewals = await model_declarations.renew(pool, self._process_id)
        if self._process_id not in renewals:  # this process was suspended for long
            await self.declare(pool)
        known, self._renewals = self._renewals, {}
        for process_id, at in renewals.items():
            seen = known.get(process_id)
            self._renewals[process_id] = seen if seen is not None and seen[0] == at else (at, now)
        dead = {
            process_id: at
            for process_id, (at, since) in self._renewals.items()
            if process_id != self._process_id and now - since >= DECLARATION_DEAD_AFTER_S
        }
        if dead or known.keys() - renewals.keys():
            await model_declarations.withdraw_dead(pool, dead)
