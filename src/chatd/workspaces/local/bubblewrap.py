"""The words for bubblewrap. Pure but for looking at how /bin and its like are laid out.

The sandbox has all namespaces of its own, no capability, no way to get one, and a root of its own
in memory that holds only what is named and cannot be written to.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

BWRAP: Final = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap")
MERGED: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
TMP_BYTES: Final = 512 * 1024 * 1024
SHM_BYTES: Final = 64 * 1024 * 1024
UID: Final = "1000"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A path that is seen inside."""

    source: Path
    target: str
    writable: bool = False


def find_bubblewrap() -> str | None:
    return next((path for path in BWRAP if os.access(path, os.X_OK)), None)


def bubblewrap(
    shown: Sequence[Shown],
    env: Mapping[str, str],
    directory: str,
    *,
    network: bool,
    more: int | None = None,
) -> list[str]:
    """All but the command, which comes after. These words can be read by everybody on the host;
    `more` is a descriptor with words for nobody's eyes."""
    words = [find_bubblewrap() or BWRAP[0], "--unshare-all"]
    if network:
        words.append("--share-net")
    words += ["--unshare-user", "--disable-userns", "--uid", UID, "--gid", UID]
    words += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"]
    words += ["--hostname", "workspace"]
    words += ["--ro-bind", "/usr", "/usr", *_system()]
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]
    words += ["--remount-ro", "/dev"]
    words += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    for directory_above in ("/etc", "/home", "/run", "/opt"):
        words += ["--perms", "0755", "--dir", directory_above]
    for each in shown:
        words += ["--bind" if each.writable else "--ro-bind", str(each.source), each.target]
    words += ["--remount-ro", "/"]
    words += _setting(env)
    if more is not None:
        words += ["--args", str(more)]
    return [*words, "--chdir", directory, "--"]


def unseen(env: Mapping[str, str]) -> str:
    """The text for such a descriptor."""
    return "".join(f"{word}\0" for word in _setting(env))


def _setting(env: Mapping[str, str]) -> list[str]:
    return [word for name, value in env.items() for word in ("--setenv", name, value)]


def _system() -> list[str]:
    """Most systems have links to /usr here, some have directories."""
    words: list[str] = []
    for path in MERGED:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path).lstrip("/"), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    return words
