"""Choose the account that runs the server when chatd runs as root: PostgreSQL refuses root.

chatd creates no account and changes no mode of a directory that it did not create: it uses an
existing account, and names the directory that the account cannot enter.
"""

import os
import pwd
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from chatd.pg.config import PgError
from chatd.pg.layout import ClusterLayout

CANDIDATES: Final = ("postgres", "nobody", "daemon")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    gid: int


def find_account(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def first_account(
    names: Iterable[str] = CANDIDATES, find: Callable[[str], Account | None] = find_account
) -> Account:
    tried = tuple(names)
    for name in tried:
        account = find(name)
        if account is not None and account.uid != 0:
            return account
    raise PgError(
        "PostgreSQL does not run as root, and none of the accounts "
        f"{', '.join(tried)} exists to run it. Start chatd as an ordinary user, "
        "add one of these accounts, or give a database URL."
    )


def owner_of(path: Path) -> Account | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    try:
        name = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        name = f"uid {found.st_uid}"
    return Account(name=name, uid=found.st_uid, gid=found.st_gid)


def choose_account(layout: ClusterLayout, *, uid: int) -> Account | None:
    """The account that runs the server; None: the current one. Only its owner serves a cluster."""
    owner = owner_of(layout.cluster)
    if uid == 0:
        owners = (owner, owner_of(layout.data_dir))
        return (
            next((found for found in owners if found and found.uid != 0), None) or first_account()
        )
    if owner is not None and owner.uid != uid:
        raise PgError(
            f"The database in {layout.cluster} belongs to {owner.name}. Start chatd as that user "
            "(or as root), or choose another data directory."
        )
    return None


def can_enter(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def first_closed_dir(
    path: Path, account: Account, read_stat: Callable[[Path], os.stat_result] = os.stat
) -> Path | None:
    """The outermost of `path` and its parents that the account cannot enter."""
    for directory in (*reversed(path.parents), path):
        if not can_enter(read_stat(directory), account):
            return directory
    return None
