"""What has changed in the repositories that a chat has touched.

A watch tells the state of each repository once and then what differs. It looks again when files
are touched, when asked, and every few seconds, but never twice within one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from chatd.agent.context.watcher import ThreadRunner
from chatd.agent.files.paths import printable_name
from chatd.agent.git.command import GitCommand, GitError, PatchTooLarge, patch_for
from chatd.agent.git.touched_paths import TouchedPaths

MAX_DIFF_BYTES = 3 << 20
MAX_UNTRACKED_FILES = 2000
MAX_REPOSITORIES = 50
MIN_RESCAN_INTERVAL_S = 1.0
RESCAN_INTERVAL_S = 5.0
_MAX_NAMES_BYTES = 1 << 20
_USERINFO = re.compile(r"^([A-Za-z][\w+.-]*://)[^/@]*@")
_DIFF = (
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
        """To be remembered instead of the diff, which may be long."""
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
    """The repositories the paths lie in: the nearest directory above each that git would take."""
    found: dict[str, None] = {}
    known: dict[str, str | None] = {}
    for path in paths:
        root = _root_of(path, known)
        if root is not None and len(found) < MAX_REPOSITORIES:
            found[root] = None
    return sorted(found)


def _root_of(path: str, known: dict[str, str | None]) -> str | None:
    passed: list[str] = []
    at: str = path
    root: str | None = None
    while True:
        if at in known:
            root = known[at]
            break
        passed.append(at)
        if has_repository(at):
            root = at
            break
        above = os.path.dirname(at)
        if above == at:
            break
        at = above
    known.update(dict.fromkeys(passed, root))
    return root


def has_repository(directory: str) -> bool:
    """A worktree or submodule has a file there, everything else a directory."""
    return os.path.exists(os.path.join(directory, ".git"))


def scan(git: GitCommand, root: str) -> RepositoryState:
    """The repository as it is now. Raises GitFailed; then nothing is known. Blocks."""
    answer = git.run_git(root, "rev-parse", "--show-toplevel")
    top = os.fsdecode(answer.output).rstrip("\n")
    if os.path.realpath(top) != os.path.realpath(root):
        raise GitError(f"git takes {top} for the repository of {root}")
    return RepositoryState(
        repo_root=root,
        branch=_branch(git, root),
        remote_origin=_remote(git, root),
        unified_diff=_diff(git, root),
    )


def _branch(git: GitCommand, root: str) -> str:
    answer = git.run_git(root, "symbolic-ref", "--short", "-q", "HEAD", codes=(0, 1))
    if answer.code == 1:  # on no branch: which commit, then
        answer = git.run_git(root, "rev-parse", "--short", "HEAD")
    return answer.output.decode("utf-8", "replace").strip()


def _remote(git: GitCommand, root: str) -> str:
    """Without the name and the password that people put into addresses."""
    answer = git.run_git(root, "config", "--get", "remote.origin.url", codes=(0, 1))
    return _USERINFO.sub(r"\1", answer.output.decode("utf-8", "replace").strip())


def _diff(git: GitCommand, root: str) -> str:
    tracked = git.run_git(root, *_DIFF, _base(git, root), "--", limit=MAX_DIFF_BYTES)
    names = git.run_git(
        root, "ls-files", "--others", "--exclude-standard", "-z", limit=_MAX_NAMES_BYTES
    )
    untracked = [name for name in os.fsdecode(names.output).split("\0") if name]
    if tracked.is_cut:
        return _too_much(f"it is over {MAX_DIFF_BYTES} bytes")
    if names.is_cut or len(untracked) > MAX_UNTRACKED_FILES:
        return _too_much(f"there are more than {MAX_UNTRACKED_FILES} files that git does not know")
    pieces = [tracked.output.decode("utf-8", "replace")]
    room = MAX_DIFF_BYTES - len(tracked.output)
    try:
        for name in untracked:
            patch = patch_for(root, name, limit=room)
            room -= len(patch.encode("utf-8"))
            if room < 0:
                raise PatchTooLarge
            pieces.append(patch)
    except PatchTooLarge:
        return _too_much(f"it is over {MAX_DIFF_BYTES} bytes")
    return "".join(pieces)


def _base(git: GitCommand, root: str) -> str:
    """What to compare with: the last commit, or nothing at all if there is none yet."""
    head = git.run_git(root, "rev-parse", "-q", "--verify", "HEAD^{commit}", codes=(0, 1))
    if head.code == 0:
        return "HEAD"
    return git.run_git(root, "hash-object", "-t", "tree", "/dev/null").output.decode().strip()


def _too_much(reason: str) -> str:
    return f"The diff is not shown: {reason}.\n"


class AgentClock(Protocol):
    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, tag: str) -> None: ...


class GitWatch:
    """One chat's repositories as one listener has been told of them.

    Use it as `with store.watching(chat) as touched: GitWatch(...)`, so that nothing between
    subscribing and the first look is missed.
    """

    def __init__(
        self,
        store: TouchedPaths,
        chat: str,
        touched: asyncio.Event,
        *,
        git: GitCommand,
        threads: ThreadRunner,
        clock: AgentClock,
        now: Callable[[], str],
    ) -> None:
        self._store = store
        self._chat = chat
        self._touched = touched
        self._git = git
        self._threads = threads
        self._clock = clock
        self._now = now
        self._told: dict[str, bytes] = {}
        self._last: float | None = None

    def refresh(self) -> None:
        """Look again soon, touched or not."""
        self._touched.set()

    async def changes(self) -> dict[str, object]:
        """The next message for the listener: waits until there is something to say."""
        while True:
            await self._due()
            self._touched.clear()
            self._last = self._clock.monotonic()
            changed = await self._look()
            if changed:
                return {
                    "type": "changes",
                    "scanned_at": self._now(),
                    "repositories": [each.body() for each in changed],
                }

    async def _due(self) -> None:
        """Until a touch or the poll, and in any case a while after the last look."""
        if self._last is None:
            return
        if not self._touched.is_set():
            await self._touched_or_polled()
        left = self._last + MIN_RESCAN_INTERVAL_S - self._clock.monotonic()
        if left > 0:
            await self._clock.sleep(left, "git rescan")

    async def _touched_or_polled(self) -> None:
        touched = asyncio.ensure_future(self._touched.wait())
        polled = asyncio.ensure_future(self._clock.sleep(RESCAN_INTERVAL_S, "git poll"))
        try:
            await asyncio.wait({touched, polled}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            touched.cancel()
            polled.cancel()
            await asyncio.gather(touched, polled, return_exceptions=True)

    async def _look(self) -> list[RepositoryState]:
        paths = self._store.paths(self._chat)
        roots = await self._threads.run(lambda: find_roots(paths))
        changed: list[RepositoryState] = []
        for root in sorted({*roots, *self._told}):
            seen = await self._threads.run(lambda root=root: read_state(self._git, root))
            if seen is None or (seen.removed and root not in self._told):
                continue
            digest = seen.digest()
            if self._told.get(root) == digest:
                continue
            self._told[root] = digest
            if seen.removed:
                del self._told[root]
            changed.append(seen)
        return changed


def read_state(git: GitCommand, root: str) -> RepositoryState | None:
    """What is there now; gone only if its directory says so. None: git could not tell."""
    if not has_repository(root):
        return RepositoryState(root, removed=True)
    try:
        return scan(git, root)
    except GitError:
        return None if has_repository(root) else RepositoryState(root, removed=True)
