"""The changes in the repositories that a chat has touched.

A watch sends the state of each repository once and then each change. It rescans when a file is
touched, on request, and every few seconds, at most once per second.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chatd.agent.files.file_paths import printable_name
from chatd.agent.git.git_command import GitCommand, GitError, PatchTooLarge, build_new_file_patch
from chatd.agent.threads import AgentClock, ThreadRunner

# The files that each chat has touched, which say where to look. In memory and bounded.

MAX_TOUCHING_CHATS = 500
MAX_PATHS_PER_CHAT = 1000


class TouchedPaths:
    """Used in the event loop's thread only. The chats and paths touched longest ago are dropped
    first."""

    def __init__(self) -> None:
        self._paths: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def add(self, chats: Sequence[str], paths: Sequence[str]) -> None:
        """Add the absolute ones of the paths to each of the chats and notify their watchers."""
        normal = [os.path.normpath(path) for path in paths if path.startswith("/")]
        for chat in dict.fromkeys(chats):
            if normal:
                self._add(chat, normal)
            self.notify([chat])

    def notify(self, chats: Sequence[str]) -> None:
        """Make the watchers of these chats scan again."""
        for chat in chats:
            for watcher in self._watchers.get(chat, ()):
                watcher.set()

    def paths(self, chat: str) -> tuple[str, ...]:
        return tuple(self._paths.get(chat, ()))

    @contextmanager
    def subscribe(self, chat: str) -> Generator[asyncio.Event]:
        """An event that is set at each touch. Subscribe before reading `paths`."""
        event = asyncio.Event()
        self._watchers.setdefault(chat, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers[chat]
            watchers.discard(event)
            if not watchers:
                del self._watchers[chat]

    def _add(self, chat: str, normal: Sequence[str]) -> None:
        paths = self._paths.setdefault(chat, OrderedDict())
        self._paths.move_to_end(chat)
        for path in normal:
            paths[path] = None
            paths.move_to_end(path)
        while len(paths) > MAX_PATHS_PER_CHAT:
            paths.popitem(last=False)
        while len(self._paths) > MAX_TOUCHING_CHATS:
            self._paths.popitem(last=False)


# Watches

MAX_DIFF_BYTES = 3 << 20
MAX_UNTRACKED_FILES = 2000
MAX_REPOSITORIES = 50
MIN_RESCAN_INTERVAL_S = 1.0
RESCAN_INTERVAL_S = 5.0
_MAX_NAMES_BYTES = 1 << 20
_USERINFO = re.compile(r"^([A-Za-z][\w+.-]*://)[^/@]*@")
DIFF_COMMAND = (
    "diff",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=dirty",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


@dataclass(frozen=True)
class RepositoryState:
    repo_root: str
    branch: str = ""
    remote_origin: str = ""
    unified_diff: str = ""
    removed: bool = False

    def digest(self) -> bytes:
        """Stored instead of the state, because the diff may be long."""
        return hashlib.sha256(repr(self).encode("utf-8", "replace")).digest()

    def body(self) -> dict[str, object]:
        body: dict[str, object] = {
            "repo_root": printable_name(self.repo_root),
            "branch": self.branch,
            "remote_origin": self.remote_origin,
            "unified_diff": self.unified_diff,
        }
        if self.removed:
            body["removed"] = True
        return body


def find_roots(paths: Iterable[str]) -> list[str]:
    """The repositories that contain the paths: for each path the nearest one above it."""
    found: dict[str, None] = {}
    known: dict[str, str | None] = {}
    for path in paths:
        root = _find_root(path, known)
        if root is not None and len(found) < MAX_REPOSITORIES:
            found[root] = None
    return sorted(found)


def _find_root(path: str, known: dict[str, str | None]) -> str | None:
    passed: list[str] = []
    directory = path
    while directory not in known:
        passed.append(directory)
        parent = os.path.dirname(directory)
        if has_repository(directory):
            known[directory] = directory
        elif parent == directory:
            known[directory] = None
        else:
            directory = parent
    root = known[directory]
    known.update(dict.fromkeys(passed, root))
    return root


def has_repository(directory: str) -> bool:
    """`.git` is a file in worktrees and submodules, otherwise a directory."""
    return os.path.exists(os.path.join(directory, ".git"))


def scan(git: GitCommand, root: str) -> RepositoryState:
    """The repository's current state. Blocks. Raises GitError if it cannot be read."""
    top = os.fsdecode(git.run_git(root, "rev-parse", "--show-toplevel").output).rstrip("\n")
    if os.path.realpath(top) != os.path.realpath(root):
        raise GitError(f"git reports {top} as the repository of {root}")
    return RepositoryState(
        repo_root=root,
        branch=read_branch(git, root),
        remote_origin=read_remote(git, root),
        unified_diff=_read_diff(git, root),
    )


def read_branch(git: GitCommand, root: str) -> str:
    result = git.run_git(root, "symbolic-ref", "--short", "-q", "HEAD", codes=(0, 1))
    if result.code == 1:  # detached: show the commit
        result = git.run_git(root, "rev-parse", "--short", "HEAD")
    return result.output.decode("utf-8", "replace").strip()


def read_remote(git: GitCommand, root: str) -> str:
    """The remote's URL without a user name and password."""
    result = git.run_git(root, "config", "--get", "remote.origin.url", codes=(0, 1))
    return _USERINFO.sub(r"\1", result.output.decode("utf-8", "replace").strip())


def _read_diff(git: GitCommand, root: str) -> str:
    tracked = git.run_git(
        root,
        *DIFF_COMMAND,
        read_base_tree(git, root),
        "--",
        limit=MAX_DIFF_BYTES,
        settings=git.settings_without_filters(root),
    )
    names = git.run_git(
        root, "ls-files", "--others", "--exclude-standard", "-z", limit=_MAX_NAMES_BYTES
    )
    untracked = [name for name in os.fsdecode(names.output).split("\0") if name]
    if tracked.is_cut:
        return omitted_diff(f"it is over {MAX_DIFF_BYTES} bytes")
    if names.is_cut or len(untracked) > MAX_UNTRACKED_FILES:
        return omitted_diff(
            f"there are more than {MAX_UNTRACKED_FILES} files that git does not track"
        )
    pieces = [tracked.output.decode("utf-8", "replace")]
    free_bytes = MAX_DIFF_BYTES - len(tracked.output)
    try:
        for name in untracked:
            patch = build_new_file_patch(root, name, limit=free_bytes)
            free_bytes -= len(patch.encode("utf-8"))
            if free_bytes < 0:
                raise PatchTooLarge
            pieces.append(patch)
    except PatchTooLarge:
        return omitted_diff(f"it is over {MAX_DIFF_BYTES} bytes")
    return "".join(pieces)


def read_base_tree(git: GitCommand, root: str) -> str:
    """The last commit; the empty tree if there is none yet."""
    head = git.run_git(root, "rev-parse", "-q", "--verify", "HEAD^{commit}", codes=(0, 1))
    if head.code == 0:
        return "HEAD"
    return git.run_git(root, "hash-object", "-t", "tree", "/dev/null").output.decode().strip()


def omitted_diff(reason: str) -> str:
    return f"The diff is not shown: {reason}.\n"


def read_state(git: GitCommand, root: str) -> RepositoryState | None:
    """None if git failed. A repository counts as removed only if its `.git` is gone."""
    if not has_repository(root):
        return RepositoryState(root, removed=True)
    try:
        return scan(git, root)
    except GitError:
        return None if has_repository(root) else RepositoryState(root, removed=True)


class GitWatch:
    """The changes of one chat's repositories since the last message to one viewer.

    Use it as `with paths.subscribe(chat) as touched: GitWatch(...)`, so that no touch between
    subscribing and the first scan is missed.
    """

    def __init__(
        self,
        paths: TouchedPaths,
        chat: str,
        touched: asyncio.Event,
        *,
        git: GitCommand,
        threads: ThreadRunner,
        clock: AgentClock,
        now: Callable[[], str],
    ) -> None:
        self._paths = paths
        self._chat = chat
        self._touched = touched
        self._git = git
        self._threads = threads
        self._clock = clock
        self._now = now
        self._sent: dict[str, bytes] = {}
        self._last_scan: float | None = None

    async def changes(self) -> dict[str, object]:
        """Wait for a change and return the message about it."""
        while True:
            await self._wait_until_due()
            self._touched.clear()
            self._last_scan = self._clock.monotonic()
            changed = await self._scan()
            if changed:
                return {
                    "type": "changes",
                    "scanned_at": self._now(),
                    "repositories": [each.body() for each in changed],
                }

    async def _wait_until_due(self) -> None:
        """Wait for a touch or the interval, and for the minimum time since the last scan."""
        if self._last_scan is None:
            return
        if not self._touched.is_set():
            await self._wait_for_touch()
        left = self._last_scan + MIN_RESCAN_INTERVAL_S - self._clock.monotonic()
        if left > 0:
            await self._clock.sleep(left, "git rescan")

    async def _wait_for_touch(self) -> None:
        touched = asyncio.ensure_future(self._touched.wait())
        elapsed = asyncio.ensure_future(self._clock.sleep(RESCAN_INTERVAL_S, "git poll"))
        try:
            await asyncio.wait({touched, elapsed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            touched.cancel()
            elapsed.cancel()
            await asyncio.gather(touched, elapsed, return_exceptions=True)

    async def _scan(self) -> list[RepositoryState]:
        paths = self._paths.paths(self._chat)
        roots = await self._threads.run(lambda: find_roots(paths))
        changed: list[RepositoryState] = []
        for root in sorted({*roots, *self._sent}):
            state = await self._threads.run(lambda root=root: read_state(self._git, root))
            if state is None or (state.removed and root not in self._sent):
                continue
            digest = state.digest()
            if self._sent.get(root) == digest:
                continue
            self._sent[root] = digest
            if state.removed:
                del self._sent[root]
            changed.append(state)
        return changed
