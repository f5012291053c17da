"""The models of one replica as the composition builds them: directory, clients and administration
over a real database, with keys of their own."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chatd.clock import SystemClock
from chatd.domain.ports import Clock
from chatd.sealed_secrets import KeyRing, SecretKey, check_value
from chatd.services.models.configuration import build_registry
from chatd.services.models.directory import ModelDirectory
from chatd.services.models.model_administration import ModelAdministration
from chatd.services.models.provider_administration import ProviderAdministration, UserKeys
from chatd.services.models.provider_clients import ProviderClients
from chatd.services.models.provider_trials import ProviderTrials
from chatd.settings.schema import Settings
from chatd.store.database import sealed_columns
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import KeyRecord
from tests.support.stream_replica import Emitted, env_with

TEST_KEY: Final = SecretKey(bytes(32))
NO_SETTINGS: Final = Settings(data_dir=Path("/nowhere"))


class ModelRig:
    """`changes` is heard from the start; a test connects it to a listener, or reports changes
    itself."""

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        settings: Settings = NO_SETTINGS,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.pool = pool
        self.emitted = Emitted()
        self.env = env_with(clock, self.emitted)
        self.ring = KeyRing([TEST_KEY], TEST_KEY.id)
        self.own = build_registry(settings, variables or {}, clock)
        self.clients = ProviderClients(self.ring, self.env, variables or {})
        self.changes = ConfigChanges()
        self.changes.on_connected()
        self.directory = ModelDirectory(self.own, self.env, self.clients, self.changes)
        self.models = ModelAdministration(self.directory, self.env)
        self.providers = ProviderAdministration(self.directory, self.clients, self.ring, self.env)
        self.user_keys = UserKeys(pool, self.directory, self.ring, self.env)
        self.calls = ProviderTrials(self.directory, self.clients, self.own, self.env)

    async def start(self) -> None:
        record = KeyRecord(id=TEST_KEY.id, check_value=check_value(TEST_KEY), state="current")
        await sealed_columns.insert_key(self.pool, record)
        await self.directory.declare(self.pool)


@asynccontextmanager
async def model_rig(
    pool: Pool,
    clock: Clock | None = None,
    settings: Settings = NO_SETTINGS,
    variables: Mapping[str, str] | None = None,
) -> AsyncGenerator[ModelRig]:
    rig = ModelRig(pool, clock or SystemClock(), settings, variables)
    await rig.start()
    try:
        yield rig
    finally:
        await rig.directory.close()
