"""PostgreSQL's own load generator, given the very transactions that the product sends.

Owns turning changes into a pgbench script: the same statements, prepared, with the same values.
What moves from round to round (versions and ids) is found by comparing two rounds, and pgbench
counts it along by itself, in one chat for each client; so every statement finds the version it
expects and writes its rows.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from chatd.bench.ground import Ground
from chatd.bench.sent import Sent, as_text, caught, parameter_types
from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChangeId
from chatd.pg.binaries import candidates
from chatd.pg.config import DATABASE, PORT, USER
from chatd.store.chat.transactor import apply
from chatd.store.conn import DatabaseSession

_NUMBER: Final = re.compile(r"\$(\d+)")
_TPS: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
_DONE: Final = re.compile(r"transactions actually processed: (\d+)")
_CHANGE: Final = ChangeId(2**61)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` is how many one pass makes; `variables` are what pgbench is started with."""

    text: str
    variables: dict[str, str]
    commits: int


class Score(msgspec.Struct, frozen=True, kw_only=True):
    commits_per_s: float
    commits: int


def program() -> Path | None:
    """Beside the server's own programs if the wheel has it, else the system's."""
    places = [directory / "pgbench" for directory in candidates(None, os.environ)]
    return next((place for place in places if place.is_file()), None)


async def script(
    session: DatabaseSession,
    chats: Sequence[Chat],
    round_: Sequence[Change],
    next_: Sequence[Change],
) -> Script:
    """Two rounds of one chat's steps. `chats`, one for each client, are all where it began."""
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
        lines += await writer.lines(await _sent(change), await _sent(later))
        variables |= writer.variables
    return Script(text="\n".join(lines) + "\n", variables=variables, commits=len(round_))


class _Writer:
    """One statement of the script, and the variables it needs."""

    def __init__(self, session: DatabaseSession, chat: Chat, prefix: str) -> None:
        self._session = session
        self._chat = chat
        self._prefix = prefix
        self._counts: list[str] = []
        self.variables: dict[str, str] = {}

    async def lines(self, sent: Sent, later: Sent) -> list[str]:
        assert sent.text == later.text, "a round is like the one before it"
        types = await parameter_types(self._session, sent.text)
        puts = [
            await self._put(f"{self._prefix}{index}", kind, sent.args[index], later.args[index])
            for index, kind in enumerate(types)
        ]
        sql = _NUMBER.sub(lambda match: puts[int(match[1]) - 1], sent.text)
        return [" ".join(sql.split()) + ";", *self._counts]

    async def _put(self, name: str, kind: str, was: object, later: object) -> str:
        if was == self._chat.id:
            return f":chat_id::{kind}"
        if was == later:
            text = await as_text(self._session, kind, was)
            if text is not None:  # pgbench sends NULL for a variable that it does not know
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
        """Grows by the same amount with each round."""
        self.variables[name] = str(was)
        self._counts.append(rf"\set {name} :{name} + {later - was}")
        return f":{name}::{kind}"


async def _sent(change: Change) -> Sent:
    return await caught(lambda conn: apply(conn, change, _CHANGE))


async def run(ground: Ground, script: Script, *, clients: int, seconds: float) -> Score:
    """`clients` connections, one thread, prepared statements."""
    pgbench = program()
    assert pgbench is not None, "asked for before"
    with tempfile.NamedTemporaryFile("w", prefix="chatd-bench-", suffix=".sql") as file:
        file.write(script.text)
        file.flush()
        argv = [str(pgbench), "--no-vacuum", "--protocol=prepared", f"--client={clients}"]
        argv += ["--jobs=1", f"--time={max(1, round(seconds))}", f"--file={file.name}"]
        argv += [f"--host={ground.socket_dir}", f"--port={PORT}", f"--username={USER}"]
        argv += [f"--define={name}={value}" for name, value in script.variables.items()]
        process = await asyncio.create_subprocess_exec(
            *argv, DATABASE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, complaints = await process.communicate()
    tps, done = _TPS.search(said.decode()), _DONE.search(said.decode())
    if process.returncode != 0 or tps is None or done is None:
        raise RuntimeError(f"pgbench failed: {complaints.decode()[-2000:]}")
    return Score(
        commits_per_s=float(tps[1]) * script.commits, commits=int(done[1]) * script.commits
    )
