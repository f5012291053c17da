"""Where the trees of snapshots lie: in `chatd/` inside the repository's own git directory.

A tree is `chatd/<chat>/<name>/`: its id is in `tree`, and `objects/` has what the repository lacks.
So no ref names it: `git push --mirror` does not publish it, and git's own clean-up neither sees nor
needs it. A directory is made complete and then renamed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

from chatd.agent.git.command import GitCommand, GitError

MAX_SNAPSHOT_CHATS = 200
"""In one repository: the trees of older chats are deleted."""
ABANDONED_AFTER_S = 3600.0
"""A directory that an agent did not finish is deleted then."""
_TREE = re.compile(r"[0-9a-f]{40,64}")
_MAX_NOTE_CHARS = 500
_NEW = "new-"
_PENDING = "pending-"
_LATE = "late"


@dataclass(frozen=True)
class KeptTree:
    """`late`: why the tree is from a later moment than it should be; empty if it is not."""

    tree: str
    objects: str
    late: str = ""

    @property
    def env(self) -> Mapping[str, str]:
        return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quote_directory(self.objects)}


class TreeStore:
    """The trees of a chat in one repository. Blocks. Raises GitError and OSError."""

    def __init__(self, git: GitCommand, root: str, chat: str) -> None:
        self._directory = git_path(git, root, "chatd")
        self._own = os.path.join(self._directory, chat)

    def find(self, name: str) -> KeptTree | None:
        path = os.path.join(self._own, name)
        tree = _read(os.path.join(path, "tree"))
        if not _TREE.fullmatch(tree):
            return None
        objects = os.path.join(path, "objects")
        return KeptTree(tree, objects, _read(os.path.join(path, _LATE)))

    def begin(self, name: str) -> str:
        """Note that a tree is being kept. Empty, or why an earlier attempt kept none: the note of
        one that failed, or that the agent did not survive, stays."""
        os.makedirs(self._own, exist_ok=True)
        path = self._pending(name)
        if os.path.exists(path):
            return _read(path) or "the first attempt did not end"
        with open(path, "x", encoding="utf-8"):
            return ""

    def note_failure(self, name: str, reason: str) -> None:
        """The first reason stays."""
        path = self._pending(name)
        if os.path.exists(path) and not _read(path):
            with open(path, "w", encoding="utf-8", errors="replace") as note:
                note.write(reason[:_MAX_NOTE_CHARS])

    def new(self) -> str:
        """A directory for the objects of a tree, until `keep`."""
        os.makedirs(self._directory, exist_ok=True)
        directory = tempfile.mkdtemp(prefix=_NEW, dir=self._directory)
        os.mkdir(os.path.join(directory, "objects"))
        return directory

    def keep(self, new: str, tree: str, names: Mapping[str, str]) -> None:
        """Under each of the names, which may have a note that it is late."""
        for name, late in names.items():
            copy = f"{new}-{name}"
            shutil.copytree(new, copy, copy_function=os.link)
            for file, text in (("tree", tree), (_LATE, late)):
                if text:
                    with open(os.path.join(copy, file), "w", encoding="utf-8") as written:
                        written.write(text)
            try:
                os.rename(copy, os.path.join(self._own, name))
            finally:
                shutil.rmtree(copy, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._pending(name))

    def delete_others(self, turn: str) -> None:
        """Earlier turns of the chat, old chats, and what was not finished."""
        for name in _list(self._own):
            if name.startswith(("turn-", f"{_PENDING}turn-")) and not name.endswith(f"turn-{turn}"):
                _delete(os.path.join(self._own, name))
        chats: list[tuple[float, str]] = []
        for name in _list(self._directory):
            path = os.path.join(self._directory, name)
            with contextlib.suppress(FileNotFoundError):
                changed_at = os.stat(path).st_mtime
                if not name.startswith(_NEW):
                    chats.append((changed_at, path))
                elif changed_at < time.time() - ABANDONED_AFTER_S:
                    _delete(path)
        old = [path for _, path in sorted(chats) if path != self._own]
        for path in old[: max(0, len(old) + 1 - MAX_SNAPSHOT_CHATS)]:
            _delete(path)

    def _pending(self, name: str) -> str:
        return os.path.join(self._own, f"{_PENDING}{name}")


def git_path(git: GitCommand, root: str, name: str) -> str:
    """A path inside the repository's git directory, wherever that is."""
    found = os.fsdecode(git.run_git(root, "rev-parse", "--git-path", name).output)
    return os.path.join(root, found.rstrip("\n"))


def quote_directory(path: str) -> str:
    """For git's list of object directories, which colons separate."""
    if "\n" in path:
        raise GitError("the path of the repository has a line break")
    if ":" not in path and not path.startswith('"'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_NOTE_CHARS).strip()
    except OSError:
        return ""


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _delete(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
