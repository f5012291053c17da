"""The models that running processes declare by their settings and their environment.

A model is enabled while any running process declares it: a replica that starts without the settings
disables nothing. The default is that of the process that runs longest of those that have models in
their settings. If processes define one model differently, the last definition is stored, for the
API and for processes without one; the others use their own (`models.directory`). A provider or a
model that administrators made wins over a declared one of the same name.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.model.protocol import ModelConfig
from chatd.store.database.conn import Conn, DatabaseSession, json_text
from chatd.store.database.pool import Pool
from chatd.store.model.model_configs import elect_default, stored_parameters

LOCK_KEY: Final = 0x6368_6174_6D6F_6465  # "chatmode": an arbitrary key for the advisory lock
LAST_POSITION: Final = 10_000
"""The name of the demo model, which processes with and without other models declare."""
LOCK: Final[LiteralString] = "SELECT pg_advisory_xact_lock($1)"

# What this process is about to change although another process declares it, and what others have in
# addition.
COMPARE: Final[LiteralString] = """
    WITH others AS MATERIALIZED (
        SELECT unnest(models) AS id FROM model_declarations WHERE process_id <> $1),
    mine AS (
        SELECT * FROM json_to_recordset($2::json) AS x (
            id uuid, provider_id uuid, model text, context_limit integer, prices json,
            parameters json))
    SELECT
        ARRAY(SELECT m.name FROM mine x JOIN model_configs m ON m.id = x.id
              WHERE x.id IN (SELECT id FROM others)
                AND (m.provider_id, m.model, m.context_limit, m.prices::text, m.parameters::text)
                    IS DISTINCT FROM
                    (x.provider_id, x.model, x.context_limit, x.prices::text, x.parameters::text)
              ORDER BY 1) AS different,
        ARRAY(SELECT m.name FROM model_configs m
              WHERE m.id IN (SELECT id FROM others) AND m.id NOT IN (SELECT id FROM mine)
              ORDER BY 1) AS missing"""

UPSERT_PROVIDERS: Final[LiteralString] = """
    INSERT INTO providers AS p (id, name, kind, base_url, has_api_key, enabled, source)
    SELECT x.id, x.name, x.kind, x.base_url, x.has_api_key, true, x.source
    FROM json_to_recordset($1::json) AS x (
        id uuid, name text, kind text, base_url text, has_api_key boolean, source text)
    WHERE NOT EXISTS (SELECT FROM providers o WHERE o.name = x.name AND o.id <> x.id)
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, kind = excluded.kind, base_url = excluded.base_url,
        has_api_key = excluded.has_api_key, enabled = true, source = excluded.source,
        updated_at = now()
    WHERE p.source <> 'database'
      AND (p.name, p.kind, p.base_url, p.has_api_key, p.enabled, p.source) IS DISTINCT FROM
          (excluded.name, excluded.kind, excluded.base_url, excluded.has_api_key, true,
           excluded.source)"""
FIND_PROVIDERS: Final[LiteralString] = """
    SELECT id, name, source = 'database' AS is_shadowed FROM providers WHERE name = ANY ($1)"""
FIND_SHADOWED_MODELS: Final[LiteralString] = """
    SELECT name FROM model_configs
    WHERE name = ANY ($1) AND source = 'database' AND deleted_at IS NULL ORDER BY name"""

UPSERT_MODELS: Final[LiteralString] = """
    INSERT INTO model_configs AS m (id, name, provider_id, model, position, context_limit,
        compaction_threshold, prices, parameters, enabled, is_default, source)
    SELECT x.id, x.name, x.provider_id, x.model, x.position, x.context_limit,
        x.compaction_threshold, x.prices, x.parameters, true, false, x.source
    FROM json_to_recordset($1::json) AS x (
        id uuid, name text, provider_id uuid, model text, position integer,
        context_limit integer, compaction_threshold smallint, prices json, parameters json,
        source text)
    WHERE NOT EXISTS (SELECT FROM model_configs o
        WHERE o.name = x.name AND o.deleted_at IS NULL AND o.id <> x.id)
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, provider_id = excluded.provider_id, model = excluded.model,
        position = excluded.position, context_limit = excluded.context_limit,
        compaction_threshold = excluded.compaction_threshold, prices = excluded.prices,
        parameters = excluded.parameters, enabled = true, deleted_at = NULL,
        source = excluded.source, updated_at = now(),
        learned_limit = CASE WHEN (m.provider_id, m.model, m.context_limit, m.parameters::text)
            IS NOT DISTINCT FROM (excluded.provider_id, excluded.model, excluded.context_limit,
            excluded.parameters::text) THEN m.learned_limit END
    WHERE (m.source <> 'database' OR m.deleted_at IS NOT NULL)
      AND (m.name, m.provider_id, m.model, m.position, m.context_limit,
           m.compaction_threshold, m.prices::text, m.parameters::text, m.enabled,
           m.source) IS DISTINCT FROM
          (excluded.name, excluded.provider_id, excluded.model, excluded.position,
           excluded.context_limit, excluded.compaction_threshold, excluded.prices::text,
           excluded.parameters::text, true, excluded.source)"""


# Two statements: a unique index refuses two defaults even for a moment.
ENABLE_MODELS: Final[LiteralString] = """
    WITH chosen AS MATERIALIZED (
        SELECT default_model AS id FROM model_declarations
        WHERE default_model IS NOT NULL
        ORDER BY has_models DESC, declared_at, process_id LIMIT 1)
    UPDATE model_configs m SET
        enabled = m.id IN (SELECT unnest(models) FROM model_declarations),
        is_default = m.is_default AND m.id IN (SELECT id FROM chosen),
        updated_at = now()
    WHERE m.source <> 'database'
      AND (m.enabled <> (m.id IN (SELECT unnest(models) FROM model_declarations))
           OR (m.is_default AND m.id NOT IN (SELECT id FROM chosen)))"""
SET_DEFAULT: Final[LiteralString] = """
    UPDATE model_configs SET is_default = true, updated_at = now()
    WHERE NOT is_default AND enabled AND id = (
        SELECT default_model FROM model_declarations
        WHERE default_model IS NOT NULL AND has_models
        ORDER BY declared_at, process_id LIMIT 1)
      AND NOT EXISTS (SELECT FROM model_configs WHERE is_default)"""
ENABLE_PROVIDERS: Final[LiteralString] = """
    UPDATE providers p SET
        enabled = p.id IN (SELECT unnest(providers) FROM model_declarations), updated_at = now()
    WHERE p.source <> 'database'
      AND p.enabled <> (p.id IN (SELECT unnest(providers) FROM model_declarations))"""

DECLARE: Final[LiteralString] = """
    INSERT INTO model_declarations (process_id, providers, models, default_model, has_models)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (process_id) DO UPDATE SET renewed_at = now()"""
RENEW: Final[LiteralString] = """
    WITH renewed AS (
        UPDATE model_declarations SET renewed_at = now() WHERE process_id = $1)
    SELECT process_id, renewed_at FROM model_declarations"""
WITHDRAW: Final[LiteralString] = "DELETE FROM model_declarations WHERE process_id = $1"
# Only if the process has not renewed since it was observed.
WITHDRAW_DEAD: Final[LiteralString] = """
    DELETE FROM model_declarations d USING unnest($1::uuid[], $2::timestamptz[]) AS o (id, at)
    WHERE d.process_id = o.id AND d.renewed_at = o.at"""


class DeclaredProvider(Struct, frozen=True, kw_only=True):
    """Public facts of a provider. `base_url` contains no user and no query. `source` is `settings`
    or `environment`, also of its models."""

    id: UUID
    name: str
    kind: str
    base_url: str | None = None
    has_api_key: bool = False
    source: str = "settings"


class ModelDeclaration(Struct, frozen=True, kw_only=True):
    """The settings of one process. The first model is the default; each names one of the
    providers. `has_models`: the settings name a model, there is not only the demo."""

    providers: tuple[DeclaredProvider, ...]
    models: tuple[ModelConfig, ...]
    has_models: bool = True


class SettingsDifference(Struct, frozen=True, kw_only=True):
    """Names of models that other running processes define differently, or have in addition, and
    of providers and models that have the name of one that administrators made."""

    different: Sequence[str]
    missing: Sequence[str]
    shadowed: Sequence[str] = ()


async def declare(
    pool: Pool, process_id: UUID, declaration: ModelDeclaration
) -> SettingsDifference:
    """Store the declaration, after any declaration in progress."""
    model_ids = [config.id for config in declaration.models]
    async with pool.transaction() as session:
        await lock(session)
        await session.execute(UPSERT_PROVIDERS, json_text(declaration.providers))
        names = [provider.name for provider in declaration.providers]
        rows = await session.fetch(FIND_PROVIDERS, names)
        ids = {row["name"]: row["id"] for row in rows}
        models = json_text(_rows(declaration, ids))
        found = await session.fetchrow(COMPARE, process_id, models)
        assert found is not None  # a SELECT without FROM has one row
        await session.execute(UPSERT_MODELS, models)
        await session.execute(
            DECLARE,
            process_id,
            [provider.id for provider in declaration.providers],
            model_ids,
            model_ids[0] if model_ids else None,
            declaration.has_models,
        )
        await enable_declared(session)
        shadowed = [row["name"] for row in rows if row["is_shadowed"]]
        model_names = [config.name for config in declaration.models]
        shadowing = await session.fetch(FIND_SHADOWED_MODELS, model_names)
    return SettingsDifference(
        different=found["different"],
        missing=found["missing"],
        shadowed=[*shadowed, *(row["name"] for row in shadowing)],
    )


async def lock(session: DatabaseSession) -> None:
    """Hold the lock until the end of the transaction: one process changes models at a time."""
    await session.execute(LOCK, LOCK_KEY)


async def renew(conn: Conn, process_id: UUID) -> Mapping[UUID, datetime]:
    """When each process last renewed its declaration, as of before this call."""
    return {row["process_id"]: row["renewed_at"] for row in await conn.fetch(RENEW, process_id)}


async def withdraw(conn: Conn, process_id: UUID) -> None:
    """At exit. What is enabled changes with the next declaration or `withdraw_dead`."""
    await conn.execute(WITHDRAW, process_id)


async def withdraw_dead(pool: Pool, dead: Mapping[UUID, datetime]) -> None:
    """Delete the declarations of processes that still have the observed time of renewal, and
    disable what no process declares any more."""
    async with pool.transaction() as session:
        await lock(session)
        await session.execute(WITHDRAW_DEAD, list(dead.keys()), list(dead.values()))
        await enable_declared(session)


async def enable_declared(session: DatabaseSession) -> None:
    """Enable what processes declare, and elect their default model if there is none."""
    for statement in (ENABLE_MODELS, SET_DEFAULT, ENABLE_PROVIDERS):
        await session.execute(statement)
    await elect_default(session)


def _rows(declaration: ModelDeclaration, ids: Mapping[str, UUID]) -> list[dict[str, object]]:
    sources = {provider.name: provider.source for provider in declaration.providers}
    return [
        {
            "id": config.id,
            "name": config.name,
            "provider_id": ids[config.provider],
            "model": config.model,
            "position": LAST_POSITION if config.provider == "demo" else at,
            "context_limit": config.context_limit,
            "compaction_threshold": config.compaction_threshold,
            "prices": config.prices,
            "parameters": stored_parameters(config),
            "source": sources[config.provider],
        }
        for at, config in enumerate(declaration.models)
    ]
