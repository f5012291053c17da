"""Trees of repositories as they were when a chat and its current turn began to change them.

A snapshot is the tree `start` of a chat or `turn-<turn>`. It is made with an index file and an
object directory of its own: the user's index, refs and working tree stay as they are, and no hook
or filter is run. A repository that is too large has none, and the diff says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chatd.agent.git.git_command import GitCommand, GitError
from chatd.agent.git.git_repositories import (
    DIFF_COMMAND,
    MAX_DIFF_BYTES,
    MAX_UNTRACKED_FILES,
    find_roots,
    omitted_diff,
    read_branch,
    read_remote,
    scan,
)
from chatd.agent.threads import ThreadRunner

# Where the trees are stored: in `chatd/` inside the repository's own git directory.
#
# A tree is `chatd/<chat>/<name>/`: its id is in `tree`, and `objects/` has what the repository
# lacks. No ref names it, so `git push --mirror` does not publish it, and git's own clean-up neither
# sees nor needs it. A directory is made complete and then renamed.

MAX_SNAPSHOT_CHATS = 200
"""Limit for one repository: the trees of older chats are deleted."""
ABANDONED_AFTER_S = 3600.0
"""After this time a directory that an agent did not finish is deleted."""
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
        """Note that a tree is being kept. Returns why an earlier attempt kept none, or an empty
        text: the note of one that failed, or that the agent did not survive, stays."""
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
        """A new directory for the objects of a tree, until `keep`."""
        os.makedirs(self._directory, exist_ok=True)
        directory = tempfile.mkdtemp(prefix=_NEW, dir=self._directory)
        os.mkdir(os.path.join(directory, "objects"))
        return directory

    def keep(self, new: str, tree: str, names: Mapping[str, str]) -> None:
        """Keep the tree under each of the names, whose text may say why it is late."""
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
        """Delete earlier turns of the chat, old chats, and what was not finished."""
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
    """Quote it for git's list of object directories, which colons separate."""
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


# Snapshots and their diffs

MAX_INDEX_BYTES = 16 << 20
"""Limit for a repository with snapshots: about a hundred thousand files."""
MAX_UNTRACKED_BYTES = 32 << 20
MAX_REMEMBERED_TURNS = 2000
SNAPSHOT_TIMEOUT_S = 5.0
"""Limit for all repositories of an effect, which waits for it."""
_MAX_NAMES_BYTES = 1 << 20
_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
START = "start"
NO_SNAPSHOT_TEXT = "nothing was changed in it since the turn or the chat began"


class TreeSnapshots:
    """Used in the event loop's thread; git runs in `threads`."""

    def __init__(
        self, git: GitCommand, threads: ThreadRunner, *, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> None:
        self._git = git
        self._threads = threads
        self._timeout_s = timeout_s
        self._taken: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def take(self, chat: str, turn: str, paths: Sequence[str]) -> None:
        """Take snapshots before an effect of this turn on these paths. Never raises: without a
        snapshot the diff says why. After a failure or a timeout the turn gets no more snapshots,
        because they would contain its effects."""
        whole_turn = (chat, turn, "")
        if not (_NAME.fullmatch(chat) and _NAME.fullmatch(turn)):
            return
        if whole_turn in self._taken:
            return
        is_late = threading.Event()
        try:
            taking = self._take_all(chat, turn, paths, is_late.is_set)
            await asyncio.wait_for(taking, self._timeout_s)
        except asyncio.TimeoutError:  # noqa: UP041 - another one before Python 3.11
            self._remember(whole_turn, f"the snapshot took more than {self._timeout_s:g} seconds")
        except Exception as error:  # noqa: BLE001 - an effect must not fail for its snapshot
            self._remember(whole_turn, str(error))
        finally:
            is_late.set()

    async def _take_all(
        self, chat: str, turn: str, paths: Sequence[str], is_late: Callable[[], bool]
    ) -> None:
        for root in await self._threads.run(lambda: _roots(paths)):
            await self._take_once(chat, turn, root, is_late)

    async def _take_once(
        self, chat: str, turn: str, root: str, is_late: Callable[[], bool]
    ) -> None:
        key = (chat, turn, root)
        async with self._locks.setdefault(root, asyncio.Lock()):
            if key not in self._taken:
                reason = await self._threads.run(
                    lambda: take_snapshot(self._git, root, chat, turn, is_late)
                )
                self._remember(key, reason)

    def _remember(self, key: tuple[str, str, str], reason: str) -> None:
        self._taken[key] = reason
        while len(self._taken) > MAX_REMEMBERED_TURNS:
            self._taken.popitem(last=False)

    def reason(self, chat: str, turn: str, root: str) -> str:
        """Why there is no snapshot."""
        found = self._taken.get((chat, turn, root)) or self._taken.get((chat, turn, ""))
        return found or NO_SNAPSHOT_TEXT


def _roots(paths: Sequence[str]) -> list[str]:
    return find_roots([os.path.normpath(path) for path in paths if path.startswith("/")])


def take_snapshot(
    git: GitCommand,
    root: str,
    chat: str,
    turn: str,
    is_late: Callable[[], bool] = lambda: False,
) -> str:
    """Returns why there is no snapshot; empty if there is one. Blocks. An existing snapshot stays:
    the agent may have been restarted within a turn. `is_late`: the effect no longer waits, and the
    tree may contain it."""
    try:
        store = TreeStore(git, root, chat)
        wanted = [name for name in (START, f"turn-{turn}") if store.find(name) is None]
        if not wanted:
            return ""
        missed = {name: store.begin(name) for name in wanted}
        try:
            _keep_tree(git, root, store, missed, is_late)
        except (GitError, OSError) as error:
            for name in wanted:
                store.note_failure(name, str(error))
            raise
        store.delete_others(turn)
    except (GitError, OSError) as error:
        return str(error) or "git has failed"
    return ""


def _keep_tree(
    git: GitCommand,
    root: str,
    store: TreeStore,
    missed: Mapping[str, str],
    is_late: Callable[[], bool],
) -> None:
    """A chat whose start was missed begins later, and says so. A turn has no such note: it is not
    tried again."""
    new = store.new()
    try:
        tree = write_tree(git, root, os.path.join(new, "objects"))
        if is_late():
            raise GitError("the snapshot came too late")
        names = {name: why if name == START else "" for name, why in missed.items()}
        store.keep(new, tree, names)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_tree(git: GitCommand, root: str, objects: str) -> str:
    """The working tree with its untracked files as a git tree. What the repository does not have
    goes into the directory `objects`. Blocks. Raises GitError, also if the repository is too
    large."""
    index = git_path(git, root, "index")
    if os.path.exists(index) and os.path.getsize(index) > MAX_INDEX_BYTES:
        raise GitError("the repository is too large for snapshots")
    _check_untracked(git, root)
    directory = tempfile.mkdtemp(prefix="chatd-index-")
    try:
        copy = os.path.join(directory, "index")
        if os.path.exists(index):
            shutil.copyfile(index, copy)
        settings = [*git.settings_without_filters(root), "advice.addEmbeddedRepo=false"]
        env = {
            "GIT_INDEX_FILE": copy,
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quote_directory(git_path(git, root, "objects")),
        }
        git.run_git(root, "add", "-A", "--", ".", settings=settings, env=env)
        return git.run_git(root, "write-tree", env=env).output.decode().strip()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _check_untracked(git: GitCommand, root: str) -> None:
    names = git.run_git(
        root, "ls-files", "--others", "--exclude-standard", "-z", limit=_MAX_NAMES_BYTES
    )
    untracked = [name for name in os.fsdecode(names.output).split("\0") if name]
    if names.is_cut or len(untracked) > MAX_UNTRACKED_FILES:
        raise GitError(f"there are more than {MAX_UNTRACKED_FILES} files that git does not track")
    total = 0
    for name in untracked:
        try:
            total += os.lstat(os.path.join(root, name)).st_size
        except OSError:
            continue
    if total > MAX_UNTRACKED_BYTES:
        raise GitError(f"files that git does not track have over {MAX_UNTRACKED_BYTES} bytes")


def find_tree(git: GitCommand, root: str, chat: str, scope: str, turn: str) -> KeptTree | None:
    """The snapshot from before the turn or the chat. Blocks. Raises GitError."""
    name = START if scope == "chat" else f"turn-{turn}"
    if not (_NAME.fullmatch(chat) and _NAME.fullmatch(name)):
        return None
    return TreeStore(git, root, chat).find(name)


def read_scope(git: GitCommand, root: str, chat: str, scope: str, turn: str) -> str | None:
    """The diff of `turn`, `chat` or `git`; None without a snapshot. Blocks. Raises GitError."""
    if scope == "git":
        return scan(git, root).unified_diff
    kept = find_tree(git, root, chat, scope, turn)
    return None if kept is None else _diff_since(git, root, kept)


def _diff_since(git: GitCommand, root: str, kept: KeptTree) -> str:
    directory = tempfile.mkdtemp(prefix="chatd-objects-")
    try:
        now = write_tree(git, root, directory)
        places = (kept.objects, directory)
        env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(map(quote_directory, places))}
        diff = git.run_git(root, *DIFF_COMMAND, kept.tree, now, limit=MAX_DIFF_BYTES, env=env)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if diff.is_cut:
        return omitted_diff(f"it is over {MAX_DIFF_BYTES} bytes")
    return diff.output.decode("utf-8", "replace")


def read_repository(
    git: GitCommand, root: str, chat: str, scope: str, turn: str
) -> dict[str, object] | None:
    """The reply about one repository; None if git failed or it has no snapshot of this scope."""
    try:
        kept = None if scope == "git" else find_tree(git, root, chat, scope, turn)
        diff = read_scope(git, root, chat, scope, turn)
        branch, base = read_branch(git, root), _read_base(git, root)
        remote, (ahead, behind) = read_remote(git, root), _count_commits(git, root, base)
    except (GitError, OSError):
        return None
    added, deleted, files = count_changes(diff or "")
    return {
        "repo_root": root,
        "branch": branch,
        "base": base,
        "remote": remote,
        "ahead": ahead,
        "behind": behind,
        "unified_diff": diff or "",
        "additions": added,
        "deletions": deleted,
        "changed_files": files,
        "has_snapshot": diff is not None,
        "late": "" if kept is None else kept.late,
    }


def _read_base(git: GitCommand, root: str) -> str:
    """The default branch of `origin`, as the last clone or fetch has it; empty if it is unknown."""
    found = git.run_git(
        root, "symbolic-ref", "--short", "-q", "refs/remotes/origin/HEAD", codes=(0, 1, 128)
    )
    return found.output.decode("utf-8", "replace").strip() if found.code == 0 else ""


def _count_commits(git: GitCommand, root: str, base: str) -> tuple[int | None, int | None]:
    """Commits that the branch has and its upstream lacks, and the reverse, as of the last fetch.
    Without an upstream the default branch of `origin` takes its place; without both, or without a
    commit, nothing is known."""
    for other in ("@{upstream}", base):
        if not other:
            continue
        found = git.run_git(
            root, "rev-list", "--left-right", "--count", f"HEAD...{other}", "--", codes=(0, 128)
        )
        if found.code == 0:
            ahead, behind = found.output.split()
            return int(ahead), int(behind)
    return None, None


def count_changes(diff: str) -> tuple[int, int, int]:
    """Added lines, deleted lines and files of a unified diff."""
    added = deleted = files = old_left = new_left = 0
    for line in diff.split("\n"):
        if old_left > 0 or new_left > 0:
            if line.startswith("+"):
                added, new_left = added + 1, new_left - 1
            elif line.startswith("-"):
                deleted, old_left = deleted + 1, old_left - 1
            elif not line.startswith("\\"):
                old_left, new_left = old_left - 1, new_left - 1
        elif line.startswith("diff --git "):
            files += 1
        elif found := _HUNK.match(line):
            old_left, new_left = int(found[1] or 1), int(found[2] or 1)
    return added, deleted, files
