"""This replica's copy of the lists of providers, models and models of tasks.

The copy is used only while this replica hears of changes; otherwise every use reads the lists
again.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Final
from uuid import UUID

from chatd.domain.config_change import ConfigChange, ConfigKind
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ModelConfigId
from chatd.store import model_configs, model_declarations, providers
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.config_changes import ConfigChanges, publish
from chatd.store.conn import DatabaseSession
from chatd.store.model_configs import StoredModel
from chatd.store.pool import Pool
from chatd.store.providers import StoredProvider

CHANGE_KINDS: Final = frozenset({"provider", "model", "secret_key"})


class ModelLists:
    """`on_read` gets the providers of each read. Without a `pool` the lists are empty."""

    def __init__(self, on_read: Callable[[Sequence[StoredProvider]], None] | None) -> None:
        self.pool: Pool | None = None
        self.models: Sequence[StoredModel] = ()
        self.providers: Mapping[UUID, StoredProvider] = {}
        self.overrides: Mapping[str, ModelConfigId] = {}
        self._on_read = on_read
        self._changes: ConfigChanges | None = None
        self._is_stale = True
        self._reads = count(1)
        self._last_read = 0

    def listen_to(self, changes: ConfigChanges) -> None:
        self._changes = changes
        changes.subscribe(self._on_change)

    @asynccontextmanager
    async def change(
        self,
        kind: ConfigKind,
        object_id: UUID,
        by: ChangeAuthor,
        verb: str,
        fields: Iterable[str] = (),
        *,
        detail: Mapping[str, object] | None = None,
    ) -> AsyncGenerator[DatabaseSession]:
        """One transaction that changes providers or models, one at a time, and that all replicas
        hear of. The audit log gets the names of the changed fields, not their values, and what
        `detail` has at the end."""
        if self.pool is None:
            raise InvariantBroken("Models are changed before the database is known.")
        async with self.pool.transaction() as session:
            await model_declarations.lock(session)
            yield session
            await audit.record(
                session,
                by.actor,
                action=f"{kind}.{verb}",
                object_type=kind,
                object_id=object_id,
                ip=by.ip,
                detail={"fields": sorted(fields), **(detail or {})},
            )
            await publish(session, ConfigChange(kind=kind, id=str(object_id)))
        self._is_stale = True

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in CHANGE_KINDS:
            self._is_stale = True

    async def refresh(self) -> None:
        is_heard = self._changes is None or self._changes.is_current
        if self._changes is not None and (self._is_stale or not is_heard):
            await self.read()

    async def read(self) -> None:
        if self.pool is None:
            return
        self._is_stale = False  # first: a change during the read must be read too
        number = next(self._reads)
        try:
            found = await providers.list_providers(self.pool)
            models = await model_configs.list_models(self.pool)
            overrides = await model_configs.list_overrides(self.pool)
        except BaseException:
            self._is_stale = True
            raise
        if number < self._last_read:
            return  # a later read has ended before this one
        self._last_read = number
        self.models, self.overrides = models, overrides
        self.providers = {one.id: one for one in found}
        if self._on_read is not None:
            self._on_read(found)

    def by_id(self, model_id: ModelConfigId) -> StoredModel | None:
        return next((known for known in self.models if known.config.id == model_id), None)

    def by_name(self, name: str) -> StoredModel | None:
        live = (known for known in self.models if not known.is_deleted)
        return next((known for known in live if known.config.name == name), None)
