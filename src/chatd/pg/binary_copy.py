"""Copy the programs to where the server's account can run them.

Needed for a checkout under root's home, which the account cannot enter. The copy is in the data
directory and belongs to root, so the account cannot change it.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from chatd.pg.account import Account, first_closed_dir
from chatd.pg.binaries import PROGRAMS, Binaries, probe
from chatd.pg.config import PgError

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

    A wheel has the libraries of the package `p` in `p.libs` beside it, and the programs find them
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
