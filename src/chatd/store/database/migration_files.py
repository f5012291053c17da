"""The numbered files `migrations/NNNN_name.sql`: `0001_schema.sql` is the data model, later
ones change it.

A file runs in one transaction. A file whose first line is `-- outside a transaction` runs statement
by statement instead, so that an index of a large table can be built while replicas write to it; a
crash can leave such a file half done, so every statement in it must be one that can run again.

The statements of a released file never change, because a database remembers their checksum.
Comments and layout are not part of it.
"""

import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import msgspec

from chatd.domain.errors import ChatdError

OUTSIDE: Final = "outside a transaction"

_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_ENDS_TRANSACTION = re.compile(
    r"^\s*(commit|rollback|start\s+transaction|begin)(\s+(work|transaction))?\s*;",
    re.IGNORECASE | re.MULTILINE,
)
_COMMENT = re.compile(r"--[^\n]*")
_INDEX = re.compile(
    r"\s*CREATE\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY\s+IF\s+NOT\s+EXISTS\s+"
    r"(?P<name>[a-z_][a-z0-9_]*)\s",
    re.IGNORECASE,
)
_REPEATABLE = re.compile(
    r"\s*(ALTER\s+TABLE\s.*\sADD\s+COLUMN\s+IF\s+NOT\s+EXISTS"
    r"|DROP\s+INDEX\s+CONCURRENTLY\s+IF\s+EXISTS|UPDATE)\s",
    re.IGNORECASE | re.DOTALL,
)


class MigrationError(ChatdError):
    """The database does not match the files, or a file failed. An operator must decide."""

    code = "migration_failed"


class MigrationStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a file that is sent at once. `index`: the index that it builds concurrently."""

    sql: str
    first_line: int = 1
    index: str | None = None


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    name: str
    sql: str

    @property
    def file(self) -> str:
        return f"{self.version:04d}_{self.name}.sql"

    @property
    def checksum(self) -> str:
        """The checksum of the statements, without comments and layout: what the database
        remembers."""
        statements = " ".join(_COMMENT.sub("", self.sql).split())
        return hashlib.sha256(statements.encode()).hexdigest()

    @property
    def is_transaction(self) -> bool:
        return not self.sql.startswith(f"-- {OUTSIDE}\n")

    def statements(self) -> Iterator[MigrationStatement]:
        """The whole file at once, or statement by statement outside a transaction."""
        if self.is_transaction:
            yield MigrationStatement(sql=self.sql)
            return
        # Comments become spaces, so that positions in the text stay the same.
        text = _COMMENT.sub(lambda comment: " " * len(comment[0]), self.sql)
        start = 0
        for part in text.split(";"):
            if sql := part.strip():
                line = text.count("\n", 0, start + part.index(sql)) + 1
                index = _INDEX.match(f"{sql} ")
                yield MigrationStatement(
                    sql=sql, first_line=line, index=index["name"] if index else None
                )
            start += len(part) + 1


def packaged_migrations() -> Traversable:
    return files("chatd.store") / "migrations"


def load_migrations(directory: Traversable) -> list[Migration]:
    """The files in order. Raises MigrationError for a bad name, number or statement."""
    found: list[Migration] = []
    for entry in sorted(directory.iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".sql"):
            continue
        if (match := _NAME.fullmatch(entry.name)) is None:
            raise MigrationError(f"{entry.name}: a migration must be named NNNN_name.sql.")
        sql = entry.read_text(encoding="utf-8")  # text mode: the same checksum for all line endings
        migration = Migration(version=int(match["version"]), name=match["name"], sql=sql)
        _check_statements(migration)
        found.append(migration)
    for expected, migration in enumerate(found, start=1):
        if migration.version != expected:
            raise MigrationError(
                f"{migration.file}: expected number {expected:04d}; numbers start at 0001, "
                "without gaps, each used once."
            )
    return found


def _check_statements(migration: Migration) -> None:
    if _ENDS_TRANSACTION.search(migration.sql):
        raise MigrationError(f"{migration.file}: must not begin or end a transaction.")
    if migration.is_transaction:
        return
    for statement in migration.statements():
        if statement.index is None and not _REPEATABLE.match(f"{statement.sql} "):
            raise MigrationError(
                f"{migration.file}, line {statement.first_line}: this statement cannot run again "
                "after a crash. Outside a transaction a file may have CREATE INDEX CONCURRENTLY IF "
                "NOT EXISTS, DROP INDEX CONCURRENTLY IF EXISTS, ALTER TABLE ... ADD COLUMN IF NOT "
                "EXISTS and UPDATE. Put other statements into a file of their own."
            )
