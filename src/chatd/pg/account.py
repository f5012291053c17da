"""Which account runs the server when chatd runs as root, and what that account can reach.

PostgreSQL refuses to run as root. No account is made and no directory of others is opened up:
an account that exists is used, and a directory that it cannot pass is named.
"""

import os
import pwd
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from chatd.pg.errors import PgError
from chatd.pg.places import Layout

CANDIDATES: Final = ("postgres", "nobody", "daemon")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    gid: int


def look_up(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def first_account(
    names: Iterable[str] = CANDIDATES, find: Callable[[str], Account | None] = look_up
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
    """The owner of what is there: only that account can serve it, whatever others exist."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    try:
        name = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        name = f"uid {found.st_uid}"
    return Account(name=name, uid=found.st_uid, gid=found.st_gid)


def choose_account(layout: Layout, *, uid: int) -> Account | None:
    """The account to run as, or None for "as we are"."""
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


def may_enter(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def first_closed_dir(
    path: Path, account: Account, look: Callable[[Path], os.stat_result] = os.stat
) -> Path | None:
    """The outermost directory on the way to `path`, or it, that the account cannot enter."""
    for directory in (*reversed(path.parents), path):
        if not may_enter(look(directory), account):
            return directory
    return None
