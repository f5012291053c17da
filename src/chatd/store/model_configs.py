"""Providers and models as stored, by ids that outlive settings and replicas. Without API keys.

A declaration is stored as a whole: what it names is enabled, what it no longer names is disabled.
Of several concurrent declarations the last one wins.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import EffortRange, ModelConfig, Prices
from chatd.domain.text import Json
from chatd.store.conn import Conn, Row, json_text
from chatd.store.pool import Pool

LOCK_KEY: Final = 0x6368_6174_6D6F_6465  # "chatmode": an arbitrary key for the advisory lock
LOCK: Final[LiteralString] = "SELECT pg_advisory_xact_lock($1)"

UPSERT_PROVIDERS: Final[LiteralString] = """
    INSERT INTO providers AS p (id, name, kind, base_url, has_api_key, enabled, source)
    SELECT x.id, x.name, x.kind, x.base_url, x.has_api_key, true, 'settings'
    FROM json_to_recordset($1::json) AS x (
        id uuid, name text, kind text, base_url text, has_api_key boolean)
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, kind = excluded.kind, base_url = excluded.base_url,
        has_api_key = excluded.has_api_key, enabled = true, source = 'settings',
        updated_at = now()
    WHERE (p.name, p.kind, p.base_url, p.has_api_key, p.enabled, p.source) IS DISTINCT FROM
          (excluded.name, excluded.kind, excluded.base_url, excluded.has_api_key, true,
           'settings')"""

# First, because a unique index refuses two defaults even for a moment.
CLEAR_OTHER_DEFAULTS: Final[LiteralString] = """
    UPDATE model_configs SET is_default = false, updated_at = now()
    WHERE is_default AND id <> ALL (
        SELECT x.id FROM json_to_recordset($1::json) AS x (id uuid, is_default boolean)
        WHERE x.is_default)"""

UPSERT_MODELS: Final[LiteralString] = """
    INSERT INTO model_configs AS m (id, name, provider_id, model, position, context_limit,
        compaction_threshold, prices, parameters, enabled, is_default, source)
    SELECT x.id, x.name, x.provider_id, x.model, x.position, x.context_limit,
        x.compaction_threshold, x.prices, x.parameters, true, x.is_default, 'settings'
    FROM json_to_recordset($1::json) AS x (
        id uuid, name text, provider_id uuid, model text, position integer,
        context_limit integer, compaction_threshold smallint, prices json, parameters json,
        is_default boolean)
    ON CONFLICT (id) DO UPDATE SET
        name = excluded.name, provider_id = excluded.provider_id, model = excluded.model,
        position = excluded.position, context_limit = excluded.context_limit,
        compaction_threshold = excluded.compaction_threshold, prices = excluded.prices,
        parameters = excluded.parameters, enabled = true, is_default = excluded.is_default,
        source = 'settings', updated_at = now()
    WHERE (m.name, m.provider_id, m.model, m.position, m.context_limit,
           m.compaction_threshold, m.prices::text, m.parameters::text, m.enabled,
           m.is_default, m.source) IS DISTINCT FROM
          (excluded.name, excluded.provider_id, excluded.model, excluded.position,
           excluded.context_limit, excluded.compaction_threshold, excluded.prices::text,
           excluded.parameters::text, true, excluded.is_default, 'settings')"""

DISABLE_MODELS: Final[LiteralString] = """
    UPDATE model_configs SET enabled = false, is_default = false, updated_at = now()
    WHERE enabled AND source = 'settings' AND id <> ALL ($1::uuid[])"""
DISABLE_PROVIDERS: Final[LiteralString] = """
    UPDATE providers SET enabled = false, updated_at = now()
    WHERE enabled AND source = 'settings' AND id <> ALL ($1::uuid[])"""

LIST_MODELS: Final[LiteralString] = """
    SELECT m.*, p.name AS provider FROM model_configs m JOIN providers p ON p.id = m.provider_id
    ORDER BY m.enabled DESC, m.is_default DESC, m.position, m.name"""
LIST_PROVIDERS: Final[LiteralString] = """
    SELECT * FROM providers ORDER BY enabled DESC, name"""


class DeclaredProvider(Struct, frozen=True, kw_only=True):
    """Public facts of a provider. `base_url` contains no user and no query."""

    id: UUID
    name: str
    kind: str
    base_url: str | None = None
    has_api_key: bool = False


class ModelDeclaration(Struct, frozen=True, kw_only=True):
    """The settings of one process. The first model is the default; each names one of the
    providers."""

    providers: tuple[DeclaredProvider, ...]
    models: tuple[ModelConfig, ...]


class StoredProvider(Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    kind: str
    base_url: str | None
    has_api_key: bool
    enabled: bool
    source: str
    created_at: datetime
    updated_at: datetime


class StoredModel(Struct, frozen=True, kw_only=True):
    config: ModelConfig
    enabled: bool
    is_default: bool
    source: str
    created_at: datetime
    updated_at: datetime


class _Parameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's parameters that have no column."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: EffortRange | None = None
    options: Json = UNSET


_PARAMETERS: Final = msgspec.json.Decoder(_Parameters)
_PRICES: Final = msgspec.json.Decoder(Prices)


async def declare(pool: Pool, declaration: ModelDeclaration) -> None:
    """Store the declaration as a whole, after any declaration in progress."""
    ids = {provider.name: provider.id for provider in declaration.providers}
    providers = json_text(declaration.providers)
    models = json_text([_row(at, config, ids) for at, config in enumerate(declaration.models)])
    async with pool.transaction() as session:
        await session.execute(LOCK, LOCK_KEY)
        await session.execute(UPSERT_PROVIDERS, providers)
        await session.execute(CLEAR_OTHER_DEFAULTS, models)
        await session.execute(UPSERT_MODELS, models)
        await session.execute(DISABLE_MODELS, [config.id for config in declaration.models])
        await session.execute(DISABLE_PROVIDERS, list(ids.values()))


def _row(at: int, config: ModelConfig, provider_ids: Mapping[str, UUID]) -> dict[str, object]:
    return {
        "id": config.id,
        "name": config.name,
        "provider_id": provider_ids[config.provider],
        "model": config.model,
        "position": at,
        "context_limit": config.context_limit,
        "compaction_threshold": config.compaction_threshold,
        "prices": config.prices,
        "parameters": _Parameters(
            **{name: getattr(config, name) for name in _Parameters.__struct_fields__}
        ),
        "is_default": at == 0,
    }


async def list_models(conn: Conn) -> Sequence[StoredModel]:
    """The default first, disabled models last."""
    return [_model(row) for row in await conn.fetch(LIST_MODELS)]


async def list_providers(conn: Conn) -> Sequence[StoredProvider]:
    return [StoredProvider(**dict(row)) for row in await conn.fetch(LIST_PROVIDERS)]


def _model(row: Row) -> StoredModel:
    parameters = _PARAMETERS.decode(row["parameters"])
    prices = cast("str | None", row["prices"])
    rest: dict[str, Any] = msgspec.structs.asdict(parameters)
    config = ModelConfig(
        id=ModelConfigId(row["id"]),
        name=row["name"],
        provider=row["provider"],
        model=row["model"],
        context_limit=row["context_limit"],
        compaction_threshold=row["compaction_threshold"],
        prices=None if prices is None else _PRICES.decode(prices),
        **rest,
    )
    return StoredModel(
        config=config,
        enabled=row["enabled"],
        is_default=row["is_default"],
        source=row["source"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
