"""Models as stored, by ids that outlive settings and replicas, and the models of single tasks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, LiteralString, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.errors import Conflict
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import LearnedLimit
from chatd.domain.model.protocol import (
    EffortRange,
    Fallback,
    FileInputKind,
    ModelCapabilities,
    ModelConfig,
    Prices,
)
from chatd.domain.text import Json
from chatd.store.database.conn import Conn, DatabaseSession, Row, json_text
from chatd.store.model.providers import managed_elsewhere

LEARNED_LIMIT_DAYS: Final = 7.0
"""A learned context window is forgotten after this time: prompts that are kept too short would
never refute it."""

LIST_MODELS: Final[LiteralString] = """
    SELECT m.*, p.name AS provider,
        coalesce(m.learned_at < now() - $1::float8 * interval '1 day', false) AS is_forgotten
    FROM model_configs m JOIN providers p ON p.id = m.provider_id
    ORDER BY m.enabled DESC, m.is_default DESC, m.position, m.name"""
FIND_NAME: Final[LiteralString] = """
    SELECT id, source, enabled FROM model_configs WHERE name = $1 AND deleted_at IS NULL"""
UPSERT: Final[LiteralString] = """
    INSERT INTO model_configs (id, name, provider_id, model, position, context_limit,
        compaction_threshold, prices, parameters, enabled, is_default, source, display_name,
        capabilities)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, false, 'database', $11, $12)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, provider_id = excluded.provider_id,
        model = excluded.model, position = excluded.position,
        context_limit = excluded.context_limit,
        compaction_threshold = excluded.compaction_threshold, prices = excluded.prices,
        parameters = excluded.parameters, enabled = excluded.enabled,
        is_default = model_configs.is_default AND excluded.enabled, source = 'database',
        display_name = excluded.display_name, capabilities = excluded.capabilities,
        learned_limit = NULL, updated_at = now()"""
DELETE: Final[LiteralString] = """
    UPDATE model_configs SET enabled = false, is_default = false, deleted_at = now(),
        updated_at = now()
    WHERE id = $1 AND source = 'database' AND deleted_at IS NULL"""
REMOVE_FROM_TASKS: Final[LiteralString] = "DELETE FROM model_overrides WHERE model_config_id = $1"

# A unique index refuses two defaults even for a moment.
CLEAR_DEFAULT: Final[LiteralString] = """
    UPDATE model_configs SET is_default = false, updated_at = now()
    WHERE is_default AND id <> $1"""
MAKE_DEFAULT: Final[LiteralString] = """
    UPDATE model_configs SET is_default = true, updated_at = now()
    WHERE id = $1 AND enabled AND NOT is_default"""
DROP_DEFAULT: Final[LiteralString] = """
    UPDATE model_configs SET is_default = false, updated_at = now() WHERE id = $1 AND is_default"""
DEFAULT_KIND: Final[LiteralString] = """
    SELECT p.kind FROM model_configs m JOIN providers p ON p.id = m.provider_id
    WHERE m.is_default"""
# After those that processes declare (`model_declarations`): any model, the demo last.
ELECT_DEFAULT: Final[LiteralString] = """
    UPDATE model_configs SET is_default = true, updated_at = now()
    WHERE id = (
        SELECT m.id FROM model_configs m JOIN providers p ON p.id = m.provider_id
        WHERE m.enabled AND m.id <> $1
        ORDER BY p.kind = 'demo', NOT p.enabled, m.position, m.name LIMIT 1)
      AND NOT EXISTS (SELECT FROM model_configs WHERE is_default)"""

SET_REPORTED: Final[LiteralString] = """
    UPDATE model_configs m SET reported = x.reported
    FROM json_to_recordset($2::json) AS x (model text, reported json)
    WHERE m.provider_id = $1 AND m.model = x.model
      AND m.reported::text IS DISTINCT FROM x.reported::text"""
LEARN_LIMIT: Final[LiteralString] = """
    UPDATE model_configs SET learned_limit = $2, learned_is_bound = $3, learned_at = now()
    WHERE id = $1
      AND (NOT $3 OR learned_limit IS NULL OR (learned_is_bound AND learned_limit > $2)
           OR learned_at < now() - $4::float8 * interval '1 day')"""
FORGET_LIMIT: Final[LiteralString] = """
    UPDATE model_configs SET learned_limit = NULL WHERE id = $1 AND learned_limit <= $2"""

SET_PARAMETERS: Final[LiteralString] = """
    UPDATE model_configs SET parameters = $2, updated_at = now() WHERE id = $1"""

LIST_OVERRIDES: Final[LiteralString] = "SELECT task, model_config_id FROM model_overrides"
SET_OVERRIDE: Final[LiteralString] = """
    INSERT INTO model_overrides (task, model_config_id) VALUES ($1, $2)
    ON CONFLICT (task) DO UPDATE SET model_config_id = excluded.model_config_id,
        updated_at = now()"""
REMOVE_OVERRIDE: Final[LiteralString] = "DELETE FROM model_overrides WHERE task = $1"

DATABASE_POSITION: Final = 5_000
"""Ranks after the models of the settings, before the demo model."""
NO_MODEL: Final = UUID(int=0)

ModelTask = Literal["title", "compaction", "general", "explore", "computer_use"]


class StoredModel(Struct, frozen=True, kw_only=True):
    """`capabilities` are those that an administrator set, `reported` those that the provider's
    list of models told, `learned` the context limit that its refusals have taught."""

    config: ModelConfig
    enabled: bool
    is_default: bool
    source: str
    created_at: datetime
    updated_at: datetime
    provider_id: UUID = NO_MODEL
    display_name: str = ""
    capabilities: ModelCapabilities | None = None
    reported: ModelCapabilities | None = None
    learned: LearnedLimit | None = None
    is_deleted: bool = False


class ModelWrite(Struct, frozen=True, kw_only=True):
    config: ModelConfig
    provider_id: UUID
    display_name: str
    enabled: bool
    capabilities: ModelCapabilities | None


class StoredParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's parameters that have no column."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: EffortRange | None = None
    file_inputs: tuple[FileInputKind, ...] | None = None
    fallbacks: tuple[Fallback, ...] = ()
    options: Json = UNSET


_PARAMETERS: Final = msgspec.json.Decoder(StoredParameters)
_PRICES: Final = msgspec.json.Decoder(Prices)
_CAPABILITIES: Final = msgspec.json.Decoder(ModelCapabilities)


async def list_models(conn: Conn) -> Sequence[StoredModel]:
    """The default first, disabled models last."""
    return [_model(row) for row in await conn.fetch(LIST_MODELS, LEARNED_LIMIT_DAYS)]


async def find_free_name(session: DatabaseSession, name: str, own: UUID | None) -> UUID | None:
    """The id of a row that no process declares any more, to be taken over by a model of this name:
    chats keep their model. Raises Conflict if the name is taken."""
    row = await session.fetchrow(FIND_NAME, name)
    if row is None or row["id"] == own:
        return None
    if row["source"] == "database":
        raise Conflict(f"There is a model {name}. Choose another name.", code="name_taken")
    if row["enabled"]:
        raise managed_elsewhere("model", name, row["source"])
    return row["id"]


async def write(session: DatabaseSession, row: ModelWrite) -> None:
    config = row.config
    await session.execute(
        UPSERT,
        config.id,
        config.name,
        row.provider_id,
        config.model,
        DATABASE_POSITION,
        config.context_limit,
        config.compaction_threshold,
        None if config.prices is None else json_text(config.prices),
        json_text(stored_parameters(config)),
        row.enabled,
        row.display_name,
        None if row.capabilities is None else json_text(row.capabilities),
    )


def stored_parameters(config: ModelConfig) -> StoredParameters:
    names = StoredParameters.__struct_fields__
    return StoredParameters(**{name: getattr(config, name) for name in names})


async def rename_fallback(session: DatabaseSession, old: str, new: str) -> None:
    """Rename it in the models that name it as their fallback."""
    for known in await list_models(session):
        fallbacks = known.config.fallbacks
        if known.source == "database" and any(one.model == old for one in fallbacks):
            renamed = (
                msgspec.structs.replace(one, model=new) if one.model == old else one
                for one in fallbacks
            )
            config = msgspec.structs.replace(known.config, fallbacks=tuple(renamed))
            parameters = json_text(stored_parameters(config))
            await session.execute(SET_PARAMETERS, config.id, parameters)


async def delete(session: DatabaseSession, model_id: ModelConfigId) -> None:
    await session.execute(REMOVE_FROM_TASKS, model_id)
    await session.execute(DELETE, model_id)


async def make_default(session: DatabaseSession, model_id: ModelConfigId) -> None:
    await session.execute(CLEAR_DEFAULT, model_id)
    await session.execute(MAKE_DEFAULT, model_id)


async def drop_default(session: DatabaseSession, model_id: ModelConfigId) -> None:
    """Another model must be elected in the same transaction."""
    await session.execute(DROP_DEFAULT, model_id)


async def is_demo_default(session: DatabaseSession) -> bool:
    """Whether no model is the default but the built-in one."""
    return await session.fetchval(DEFAULT_KIND) in (None, "demo")


async def elect_default(session: DatabaseSession, but: UUID = NO_MODEL) -> None:
    """If no model is the default, make one other than `but` the default."""
    await session.execute(ELECT_DEFAULT, but)
    await session.execute(ELECT_DEFAULT, NO_MODEL)


async def set_reported(
    conn: Conn, provider_id: UUID, found: Mapping[str, ModelCapabilities]
) -> bool:
    """Store what the provider says about its models. Returns whether it changed anything."""
    rows = [{"model": model, "reported": told} for model, told in found.items()]
    return await conn.execute(SET_REPORTED, provider_id, json_text(rows)) != "UPDATE 0"


async def learn_limit(conn: Conn, model_id: ModelConfigId, learned: LearnedLimit) -> None:
    """An estimate replaces neither a number that the provider named nor a smaller estimate."""
    values = (learned.tokens, learned.is_bound, LEARNED_LIMIT_DAYS)
    await conn.execute(LEARN_LIMIT, model_id, *values)


async def forget_limit(conn: Conn, model_id: ModelConfigId, learned: LearnedLimit) -> None:
    """Forget the limit, unless a larger one has been learned since."""
    await conn.execute(FORGET_LIMIT, model_id, learned.tokens)


async def list_overrides(conn: Conn) -> Mapping[str, ModelConfigId]:
    """The model of each task that has one."""
    rows = await conn.fetch(LIST_OVERRIDES)
    return {row["task"]: ModelConfigId(row["model_config_id"]) for row in rows}


async def set_override(
    session: DatabaseSession, task: ModelTask, model_id: ModelConfigId | None
) -> None:
    if model_id is None:
        await session.execute(REMOVE_OVERRIDE, task)
    else:
        await session.execute(SET_OVERRIDE, task, model_id)


def _model(row: Row) -> StoredModel:
    parameters = _PARAMETERS.decode(row["parameters"])
    prices = cast("str | None", row["prices"])
    tokens = None if row["is_forgotten"] else row["learned_limit"]
    is_bound = row["learned_is_bound"]
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
        provider_id=row["provider_id"],
        display_name=row["display_name"] or row["name"],
        capabilities=_capabilities(row["capabilities"]),
        reported=_capabilities(row["reported"]),
        learned=None if tokens is None else LearnedLimit(tokens=tokens, is_bound=is_bound),
        is_deleted=row["deleted_at"] is not None,
    )


def _capabilities(text: str | None) -> ModelCapabilities | None:
    return None if text is None else _CAPABILITIES.decode(text)
