"""The settings tree: every key, its type, its bounds and its default.

Owns the one list of keys from which the names in chatd.toml, in the environment and on the
command line are derived. Does not read any of them; see load.py.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Annotated[Path, Meta(description="Where chatd keeps what it must not lose")]
    database: Database = Database()
    log: Log = Log()


def redact_url(url: str) -> str:
    """Rather too much than too little: a password may hold any character, even unescaped."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***"
    rest = re.sub(r"^([^:@/?]*):.*@", r"\1:***@", rest, flags=re.DOTALL)
    rest = re.sub(r"([?&][^=&]*pass[^=&]*=)[^&]*", r"\1***", rest, flags=re.IGNORECASE)
    return f"{scheme}://{rest}"
