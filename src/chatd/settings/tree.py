"""The settings tree: every key, its type, its bounds and its default.

Owns the one list of keys from which the names in chatd.toml, in the environment and on the
command line are derived. Does not read any of them; see load.py.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from chatd.domain.errors import ChatdError

PostgresUrl = Annotated[str, Meta(pattern="^postgres(ql)?://.")]
Seconds = Annotated[float, Meta(gt=0, le=3600)]


class SettingsError(ChatdError):
    """A key or value was refused. The message names it and where it came from."""

    code = "settings"


class Database(msgspec.Struct, frozen=True, kw_only=True):
    url: Annotated[
        PostgresUrl | None,
        Meta(
            description="PostgreSQL to use; without one, chatd runs its own in the data directory",
            extra={"expected": "an address such as postgresql://user@host/name"},
        ),
    ] = None
    pool_size: Annotated[
        int, Meta(ge=2, le=500, description="Connections this process may hold open")
    ] = 10
    statement_timeout_s: Annotated[
        Seconds, Meta(description="The longest that a statement may run")
    ] = 15.0
    lock_timeout_s: Annotated[
        Seconds, Meta(description="The longest that a statement may wait for a lock")
    ] = 5.0

    def __repr__(self) -> str:
        """The usual one, less the password: settings end up in logs."""
        shown = msgspec.structs.asdict(self)
        shown["url"] = None if self.url is None else redact_url(self.url)
        return f"Database({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Log(msgspec.Struct, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least that is logged")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="One line of text, or one JSON object, per event")
    ] = "text"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[str, Meta(min_length=1, description="Address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    ] = 7870


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    slots: Annotated[int, Meta(ge=1, le=10_000, description="Chats this process runs at once")] = (
        100
    )
    child_slots: Annotated[
        int, Meta(ge=1, le=10_000, description="Chats of subagents this process runs at once")
    ] = 200
    drain_s: Annotated[
        float, Meta(ge=0, le=300, description="How long running steps may take to finish at exit")
    ] = 25.0


Cap = Annotated[int, Meta(ge=0, le=1_000_000)]
Days = Annotated[int, Meta(ge=0, le=3650)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    running: Annotated[
        Cap, Meta(description="Chats that run at once on all replicas; others wait. 0: no limit")
    ] = 0
    running_per_user: Annotated[Cap, Meta(description="The same, of each user. 0: no limit")] = 0
    running_subagents: Annotated[
        Cap, Meta(description="Chats of subagents that run at once on all replicas. 0: no limit")
    ] = 0
    running_subagents_per_user: Annotated[
        Cap, Meta(description="The same, of each user. 0: no limit")
    ] = 0
    spend_micros: Annotated[
        int,
        Meta(
            ge=0,
            le=10**15,
            description="What each user may spend in a period, in millionths of a USD. 0: no limit",
        ),
    ] = 0
    spend_period: Annotated[
        Literal["day", "week", "month"],
        Meta(description="When it begins anew: at midnight, on Monday, on the first; all in UTC"),
    ] = "month"


class Chats(msgspec.Struct, frozen=True, kw_only=True):
    auto_archive_days: Annotated[
        Days, Meta(description="Archive chats that nobody has touched for so long. 0: never")
    ] = 0
    retention_days: Annotated[
        Days, Meta(description="Remove chats for good that were archived so long ago. 0: never")
    ] = 0


class Workspaces(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, Meta(description="Whether chats get tools that act in workspaces on this host")
    ] = True
    allow_unsafe: Annotated[
        bool,
        Meta(description="Run workspaces even where nothing keeps them apart from this host"),
    ] = False
    roots: Annotated[
        tuple[Path, ...],
        Meta(description="Directories of this host that templates may copy, clone or show"),
    ] = ()
    ttl_s: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400,
            description="How long a workspace may run unused. 0: as its template says",
        ),
    ] = 0


class ProviderEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[providers]]` in chatd.toml. A key is given here or named by a variable. `headers` go out
    with every request and may hold keys too; `region` is Amazon's."""

    name: Annotated[str, Meta(min_length=1)]
    kind: Annotated[str, Meta(min_length=1)]
    base_url: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    region: str | None = None

    def __repr__(self) -> str:
        return f"ProviderEntry(name={self.name!r}, kind={self.kind!r}, base_url={self.base_url!r})"


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens."""

    input: str | float | None = None
    output: str | float | None = None
    cache_read: str | float | None = None
    cache_write: str | float | None = None


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[models]]` in chatd.toml. `provider` is the name of a provider, `model` its own name
    for the model."""

    name: Annotated[str, Meta(min_length=1)]
    provider: str
    model: str
    default: bool = False
    context_limit: Annotated[int, Meta(gt=0)] | None = None
    compaction_threshold: Annotated[int, Meta(ge=0, le=100)] | None = None
    max_output_tokens: Annotated[int, Meta(gt=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    options: dict[str, Any] = {}  # checked by the provider, which alone knows its keys
    prices: PriceEntry | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Annotated[Path, Meta(description="Where chatd keeps what it must not lose")]
    database: Database = Database()
    log: Log = Log()
    server: Server = Server()
    worker: Worker = Worker()
    limits: Limits = Limits()
    chats: Chats = Chats()
    workspaces: Workspaces = Workspaces()
    templates: Annotated[
        tuple[dict[str, Any], ...],  # checked by the workspaces, which alone know what they take
        Meta(description="What workspaces are made from, as [[templates]] tables"),
    ] = ()
    providers: Annotated[
        tuple[ProviderEntry, ...], Meta(description="Model APIs, as [[providers]] tables")
    ] = ()
    models: Annotated[tuple[ModelEntry, ...], Meta(description="Models, as [[models]] tables")] = ()


def redact_url(url: str) -> str:
    """Rather too much than too little: a password may hold any character, even unescaped."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***"
    rest = re.sub(r"^([^:@/?]*):.*@", r"\1:***@", rest, flags=re.DOTALL)
    rest = re.sub(r"([?&][^=&]*pass[^=&]*=)[^&]*", r"\1***", rest, flags=re.IGNORECASE)
    return f"{scheme}://{rest}"
