"""pgbench with the same transactions that chatd sends.

`capture_statement` intercepts a statement of chatd and its values. A script repeats it, prepared,
with the same values. Versions and ids change from round to round: two rounds are compared, and
pgbench adds the difference each time, with one chat per client, so that every compare-and-set
succeeds.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, LiteralString, NoReturn, cast

import msgspec
from msgspec import Struct

from bench.environment import BenchDatabase
from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChangeId
from chatd.pg.binaries import candidates
from chatd.pg.config import DATABASE, PORT, USER
from chatd.store.chat.change_writer import apply
from chatd.store.database.conn import Conn, DatabaseSession


class CapturedStatement(Struct, frozen=True, kw_only=True):
    text: str
    args: tuple[object, ...]


class _CaughtError(Exception):
    """Leaves chatd's code before it reads a result."""


class _Catcher:
    """A connection that records the first statement and sends nothing."""

    statement: CapturedStatement | None = None

    async def fetch(self, query: LiteralString, *args: object) -> NoReturn:
        self._catch(query, args)

    async def fetchrow(self, query: LiteralString, *args: object) -> NoReturn:
        self._catch(query, args)

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        self._catch(query, args)

    async def execute(self, query: LiteralString, *args: object) -> NoReturn:
        self._catch(query, args)

    def _catch(self, query: str, args: tuple[object, ...]) -> NoReturn:
        self.statement = CapturedStatement(text=query, args=args)
        raise _CaughtError


async def capture_statement(work: Callable[[Conn], Awaitable[object]]) -> CapturedStatement:
    """The first statement that `work` sends."""
    catcher = _Catcher()
    with suppress(_CaughtError):
        await work(catcher)
    assert catcher.statement is not None, "nothing was statement"
    return catcher.statement


async def parameter_types(session: DatabaseSession, sql: str) -> list[str]:
    """The types that PostgreSQL infers."""
    await session.script(f"PREPARE asked AS {sql}", timeout_s=10)
    types = await session.fetchval(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'asked'"
    )
    await session.execute("DEALLOCATE asked")
    return list(types)


async def value_as_text(session: DatabaseSession, kind: str, value: object) -> str | None:
    """The value as PostgreSQL formats it. The type name comes from PostgreSQL's catalogue."""
    query = cast("LiteralString", f"SELECT $1::{kind}::text")
    return await session.fetchval(query, value)


_NUMBER: Final = re.compile(r"\$(\d+)")
_TPS: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
_DONE: Final = re.compile(r"transactions actually processed: (\d+)")
SCRIPT_CHANGE: Final = ChangeId(2**61)


class PgbenchScript(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` is the number per pass; `variables` are pgbench's `--define` options."""

    text: str
    variables: dict[str, str]
    commits: int


class PgbenchScore(msgspec.Struct, frozen=True, kw_only=True):
    commits_per_s: float
    commits: int


def find_pgbench() -> Path | None:
    """Next to the embedded server's programs, else the system's."""
    places = [directory / "pgbench" for directory in candidates(None, os.environ)]
    return next((place for place in places if place.is_file()), None)


async def build_script(
    session: DatabaseSession,
    chats: Sequence[Chat],
    round_: Sequence[Change],
    next_: Sequence[Change],
) -> PgbenchScript:
    """From two rounds of one chat's steps. `chats`, one per client, are in its first state."""
    ids = ",".join(f"'{chat.id}'" for chat in chats)
    lines = [
        r"\if :fresh",
        f"SELECT (ARRAY[{ids}])[:client_id + 1] AS chat_id \\gset",
        r"\set fresh 0",
        r"\endif",
    ]
    variables = {"fresh": "1"}
    for number, (change, later) in enumerate(zip(round_, next_, strict=True)):
        writer = _Writer(session, chats[0], prefix=f"p{number}_")
        lines += await writer.lines(await _captured(change), await _captured(later))
        variables |= writer.variables
    return PgbenchScript(text="\n".join(lines) + "\n", variables=variables, commits=len(round_))


class _Writer:
    """One statement of the script and its variables."""

    def __init__(self, session: DatabaseSession, chat: Chat, prefix: str) -> None:
        self._session = session
        self._chat = chat
        self._prefix = prefix
        self._counts: list[str] = []
        self.variables: dict[str, str] = {}

    async def lines(self, statement: CapturedStatement, later: CapturedStatement) -> list[str]:
        assert statement.text == later.text, "rounds differ"
        types = await parameter_types(self._session, statement.text)
        puts = [
            await self._put(
                f"{self._prefix}{index}", kind, statement.args[index], later.args[index]
            )
            for index, kind in enumerate(types)
        ]
        sql = _NUMBER.sub(lambda match: puts[int(match[1]) - 1], statement.text)
        return [" ".join(sql.split()) + ";", *self._counts]

    async def _put(self, name: str, kind: str, was: object, later: object) -> str:
        if was == self._chat.id:
            return f":chat_id::{kind}"
        if was == later:
            text = await value_as_text(self._session, kind, was)
            if text is not None:  # pgbench sends NULL for an undefined variable
                self.variables[name] = text
            return f":{name}::{kind}"
        if isinstance(was, int) and isinstance(later, int):
            return self._counted(name, kind, was, later)
        assert isinstance(was, list), f"parameter {name} cannot be counted"
        pairs = zip(cast("list[int]", was), cast("list[int]", later), strict=True)
        items = [
            self._counted(f"{name}_{index}", "bigint", *pair) for index, pair in enumerate(pairs)
        ]
        return f"(ARRAY[{', '.join(items)}])::{kind}"

    def _counted(self, name: str, kind: str, was: int, later: int) -> str:
        """A variable that grows by a constant each round."""
        self.variables[name] = str(was)
        self._counts.append(rf"\set {name} :{name} + {later - was}")
        return f":{name}::{kind}"


async def _captured(change: Change) -> CapturedStatement:
    return await capture_statement(lambda conn: apply(conn, change, SCRIPT_CHANGE))


async def run_pgbench(
    database: BenchDatabase, script: PgbenchScript, *, clients: int, seconds: float
) -> PgbenchScore:
    """`clients` connections, one thread, prepared statements."""
    pgbench = find_pgbench()
    assert pgbench is not None, "the caller has checked"
    with tempfile.NamedTemporaryFile("w", prefix="chatd-bench-", suffix=".sql") as file:
        file.write(script.text)
        file.flush()
        argv = [str(pgbench), "--no-vacuum", "--protocol=prepared", f"--client={clients}"]
        argv += ["--jobs=1", f"--time={max(1, round(seconds))}", f"--file={file.name}"]
        argv += [f"--host={database.socket_dir}", f"--port={PORT}", f"--username={USER}"]
        argv += [f"--define={name}={value}" for name, value in script.variables.items()]
        process = await asyncio.create_subprocess_exec(
            *argv, DATABASE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await process.communicate()
    tps, done = _TPS.search(output.decode()), _DONE.search(output.decode())
    if process.returncode != 0 or tps is None or done is None:
        raise RuntimeError(f"pgbench failed: {errors.decode()[-2000:]}")
    return PgbenchScore(
        commits_per_s=float(tps[1]) * script.commits, commits=int(done[1]) * script.commits
    )
