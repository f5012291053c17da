"""Providers and models as stored, by ids that outlive settings and replicas. Without API keys."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.ids import ModelConfigId
from chatd.domain.model.accepted_files import FileInputKind
from chatd.domain.model.protocol import EffortRange, ModelConfig, Prices
from chatd.domain.text import Json
from chatd.store.conn import Conn, Row

LIST_MODELS: Final[LiteralString] = """
    SELECT m.*, p.name AS provider FROM model_configs m JOIN providers p ON p.id = m.provider_id
    ORDER BY m.enabled DESC, m.is_default DESC, m.position, m.name"""
LIST_PROVIDERS: Final[LiteralString] = """
    SELECT * FROM providers ORDER BY enabled DESC, name"""


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
    options: Json = UNSET


_PARAMETERS: Final = msgspec.json.Decoder(StoredParameters)
_PRICES: Final = msgspec.json.Decoder(Prices)


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
