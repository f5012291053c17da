"""Finding out how well this host can keep workspaces apart, by really trying each level.

Asked once, when the server starts. What is found is recorded on every agent, and said aloud
together with what would make it better.
"""

import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.workspace.entities import ResourceLimits
from chatd.workspaces.backend import BuildFailed
from chatd.workspaces.local import accounts, landlock
from chatd.workspaces.local.accounts import Range
from chatd.workspaces.local.bubblewrap import find_bubblewrap
from chatd.workspaces.local.kit import Kit
from chatd.workspaces.local.layout import Layout, give
from chatd.workspaces.local.levels import LADDER, Level, namespaced
from chatd.workspaces.local.once import run_once
from chatd.workspaces.local.recipes import Room, plan, view

TRY_S: Final = 20.0
QUESTION: Final = "true && touch ~/tried && test -r {kit}/agent/__main__.py"

log: Final = logging.getLogger("chatd.workspaces")


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """`level` is the best that works; None if none does that may be used."""

    level: Level | None
    failed: tuple[tuple[str, str], ...] = ()
    """The better ones, and why they do not work."""
    advice: str = ""

    @property
    def text(self) -> str:
        words = f"isolation of local workspaces: {self.level or 'not possible'}"
        tried = "; ".join(f"{level}: {reason}" for level, reason in self.failed)
        return ". ".join(each for each in (words, tried, self.advice) if each)


async def climb(
    layout: Layout,
    kit: Kit,
    numbers: Range | None,
    *,
    allow_unsafe: bool,
    levels: Sequence[Level] = LADDER,
) -> Isolation:
    """The first of the levels that works."""
    failed: list[tuple[str, str]] = []
    for level in levels:
        reason = _excluded(level, numbers, allow_unsafe=allow_unsafe)
        if reason is None:
            reason = await _try(level, layout, kit, numbers)
        if reason is None:
            return Isolation(level=level, failed=tuple(failed), advice=_advice(level))
        failed.append((level, reason))
    return Isolation(level=None, failed=tuple(failed), advice=_advice(None))


def announce(isolation: Isolation) -> None:
    strong = isolation.level is not None and namespaced(isolation.level)
    log.log(logging.INFO if strong else logging.WARNING, "%s", isolation.text)


def _excluded(level: Level, numbers: Range | None, *, allow_unsafe: bool) -> str | None:
    if level == "bwrap+uid" and os.geteuid() != 0:
        return "only as root"
    if level == "bwrap+uid" and numbers is None:
        return "there are not enough accounts in this container"
    if namespaced(level) and find_bubblewrap() is None:
        return "bubblewrap is not installed"
    if level == "landlock+rlimit" and landlock.version() < landlock.LEAST:
        return "this kernel has no Landlock, or an old one"
    if level == "landlock+rlimit" and numbers is None and not allow_unsafe:
        # Landlock does not know of sockets with a path: those of the database and of the
        # supervisor would open to whoever has the server's own account.
        return "not under the server's own account, unless the settings allow it"
    if level == "none" and not allow_unsafe:
        return "not allowed by the settings"
    return None


async def _try(level: Level, layout: Layout, kit: Kit, numbers: Range | None) -> str | None:
    """None if it works. In a place of its own, with all that a workspace has."""
    with tempfile.TemporaryDirectory(prefix=".try-", dir=layout.workspaces) as scratch:
        top = Path(scratch)
        try:
            room = _room(top, level, kit, numbers)
            question = QUESTION.format(kit=view(level, room).kit)
            words = ["/bin/sh", "-c", question]
            ran = await run_once(plan(level, room, words), log=top / "log", within_s=TRY_S)
        except OSError as error:
            return str(error)
        if ran.code == 0:
            return None
        return ran.said.strip()[-300:] or f"it ended with {ran.code}"


def _room(top: Path, level: Level, kit: Kit, numbers: Range | None) -> Room:
    uid = account(level, numbers)
    home, run = top / "home", top / "run"
    for path in (home, run):
        path.mkdir()
        give(path, uid)
    if not namespaced(level):
        top.chmod(0o711)
        top.parent.chmod(0o711)
    return Room(name="try", home=home, run=run, kit=kit, uid=uid, limits=ResourceLimits())


def account(level: Level, numbers: Range | None) -> int | None:
    """For trying: the last of the range, which is never given to a workspace."""
    if level == "bwrap" or os.geteuid() != 0 or numbers is None:
        return None
    return numbers.base + numbers.size


def require(isolation: Isolation) -> Level:
    if isolation.level is None:
        raise BuildFailed(f"This host cannot make workspaces: {isolation.text}")
    return isolation.level


def numbers_for(data_dir: Path) -> Range | None:
    if os.geteuid() != 0:
        return None
    return accounts.choose_range(data_dir, accounts.UID_MAP.read_text())


def _advice(level: Level | None) -> str:
    if level is not None and namespaced(level):
        return ""
    install = "Install bubblewrap (Debian and Ubuntu: apt install bubblewrap)"
    if find_bubblewrap() is not None:
        install = (
            "Allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        )
    return f"{install} and start chatd again: workspaces are not well kept apart without"
