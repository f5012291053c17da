"""The HTTP routes for changes in the repositories that a chat has touched, and the revert of one
file.

A watch is a streamed reply of signed JSON lines, not a WebSocket: it needs no second protocol. Its
client cannot send in it, so a rescan is requested by `refresh`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.files.file_paths import printable_name
from chatd.agent.git.git_command import GitCommand, GitError
from chatd.agent.git.git_repositories import (
    MAX_DIFF_BYTES,
    GitWatch,
    TouchedPaths,
    find_roots,
    read_base_tree,
)
from chatd.agent.git.git_snapshots import TreeSnapshots, find_tree, read_repository
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import AgentSystemClock, WorkerThreads

# Reverts: a file as it was before a turn, before the chat, or in the last commit.
#
# Git writes the file, without hooks and filters. A revert to the last commit also resets the index;
# one to a snapshot changes the working tree only. A file that did not exist then is deleted.

_LITERAL = {"GIT_LITERAL_PATHSPECS": "1"}


def revert_files(git: GitCommand, root: str, chat: str, scope: str, turn: str, *paths: str) -> None:
    """Blocks. Raises AgentError, even for one file that cannot be reverted: the files after it then
    stay as they are. The same revert again changes nothing."""
    for path in paths:
        _check(path)
    try:
        tree, env = _base(git, root, chat, scope, turn)
        for path in paths:
            _revert(git, root, tree, {**_LITERAL, **env}, path, with_index=scope == "git")
    except (GitError, OSError) as error:
        raise AgentError(
            409, f"git has not reverted the file: {error}", code="not_reverted"
        ) from error


def _base(
    git: GitCommand, root: str, chat: str, scope: str, turn: str
) -> tuple[str, Mapping[str, str]]:
    if scope == "git":
        return read_base_tree(git, root), {}
    kept = find_tree(git, root, chat, scope, turn)
    if kept is None:
        text = f"there is no snapshot from before this {scope} to go back to"
        raise AgentError(409, text, code="not_reverted")
    return kept.tree, kept.env


def _revert(
    git: GitCommand,
    root: str,
    tree: str,
    env: Mapping[str, str],
    path: str,
    *,
    with_index: bool,
) -> None:
    kind = _kind(git, root, tree, env, path)
    if kind not in ("", "blob"):
        raise AgentError(409, f"{path} is no file in that state", code="not_reverted")
    target = os.path.join(root, path)
    if os.path.isdir(target) and not os.path.islink(target):
        raise AgentError(409, f"{path} is a directory now", code="not_reverted")
    if with_index and kind and _has_filter(git, root, path):
        text = f"{path} has a filter that git must run: use git restore in the terminal"
        raise AgentError(409, text, code="not_reverted")
    is_tracked = git.run_git(root, "ls-files", "-z", "--", path, env=env).output != b""
    if kind or (with_index and is_tracked):
        places = ("--staged", "--worktree") if with_index else ("--worktree",)
        command = ("restore", f"--source={tree}", *places, "--", path)
        git.run_git(root, *command, settings=git.settings_without_filters(root), env=env)
    elif os.path.lexists(target):
        _delete(root, target)


def _kind(git: GitCommand, root: str, tree: str, env: Mapping[str, str], path: str) -> str:
    """`blob`, `tree`, `commit`, or empty if the tree does not have it."""
    listed = git.run_git(root, "ls-tree", "-z", "--full-tree", tree, "--", path, env=env)
    for entry in os.fsdecode(listed.output).split("\0"):
        facts, tab, name = entry.partition("\t")
        if tab and name == path:
            return facts.split(" ")[1]
    return ""


def _has_filter(git: GitCommand, root: str, path: str) -> bool:
    found = git.run_git(root, "check-attr", "-z", "filter", "--", path, env=_LITERAL)
    return os.fsdecode(found.output).split("\0")[2:3] not in (["unspecified"], ["unset"], [])


def _delete(root: str, target: str) -> None:
    parent = os.path.realpath(os.path.dirname(target))
    top = os.path.realpath(root)
    if parent != top and not parent.startswith(top + os.sep):
        raise AgentError(409, "the file lies outside the repository", code="not_reverted")
    os.unlink(os.path.join(parent, os.path.basename(target)))


def _check(path: str) -> None:
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..", ".git") for part in parts):
        raise AgentError(400, "path must be that of a file, relative to the repository")


# Routes

GIT_API_PREFIX = "/api/v0/git"
SCOPES = ("turn", "chat", "git")
KEEPALIVE_INTERVAL_S = 15.0
MAX_WATCH_S = 3600.0
MAX_WATCHES = 16
GIT_THREADS = 2
SCAN_TIMEOUT_S = 60.0
_KEEPALIVE_EVENTS: list[dict[str, object]] = [{"type": "alive"}]


class GitRoutes:
    """Scans in its own threads, so that a large repository does not delay file operations."""

    def __init__(self, paths: TouchedPaths, git: GitCommand, directory: str = "") -> None:
        """`directory` is where commands start: its repository is shown to every chat."""
        self._paths = paths
        self._git = git
        self._directory = directory
        self._threads = WorkerThreads(GIT_THREADS, SCAN_TIMEOUT_S)
        self._snapshots = TreeSnapshots(git, self._threads)
        self._watches = 0

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{GIT_API_PREFIX}/watch", self._watch),
            AgentRoute("POST", f"{GIT_API_PREFIX}/refresh", self._refresh),
            AgentRoute("GET", f"{GIT_API_PREFIX}/diff", self._diff),
            AgentRoute("POST", f"{GIT_API_PREFIX}/revert", self._revert),
        ]

    def close(self) -> None:
        self._threads.close()

    async def _watch(self, request: AgentRouteRequest) -> AgentHttpReply:
        chat = _read_chat(request)
        if self._watches >= MAX_WATCHES:
            raise AgentError(503, f"there are already {MAX_WATCHES} watches", code="busy")
        return AgentHttpReply(200, content_type="application/x-ndjson", lines=self._lines(chat))

    async def before_effect(self, caller: AgentCaller, paths: Sequence[str]) -> None:
        """Keep the trees as they are before the first effect of a turn."""
        if caller.chat_id and caller.turn:
            chat, turn = caller.chat_id, caller.turn
            known = [*self._paths.paths(chat), self._directory]
            named = [os.path.join(self._directory, path) for path in paths if path]
            await self._snapshots.take(chat, turn, [*known, *named])

    async def _diff(self, request: AgentRouteRequest) -> AgentHttpReply:
        """What a turn, a chat, or the working tree since the last commit has changed."""
        query = request.query()
        chat = query.text("chat_id", request.caller.chat_id)
        scope, turn = query.text("scope", "git"), query.text("turn", "")
        with_text = not query.flag("stat")
        query.reject_unknown()
        if scope not in SCOPES:
            raise AgentError(400, "scope must be turn, chat or git")
        if request.caller.chat_id and chat != request.caller.chat_id:
            raise AgentError(404, f"there is no chat {chat} that this chat may read")
        roots = await self._roots(chat)
        found: list[dict[str, object]] = []
        left = MAX_DIFF_BYTES
        for root in roots:
            one = await self._threads.run(
                lambda root=root: read_repository(self._git, root, chat, scope, turn)
            )
            if one is None:
                continue
            text = str(one["unified_diff"])
            late = one.pop("late")
            if late:
                one["omitted"] = f"This diff begins after the chat's first changes: {late}."
            if not one.pop("has_snapshot"):
                reason = self._snapshots.reason(chat, turn, root)
                one["omitted"] = f"There is no diff of this {scope}: {reason}."
            elif not with_text or len(text) > left:
                one["unified_diff"] = ""
                if with_text:
                    one["omitted"] = f"The diffs together are over {MAX_DIFF_BYTES} bytes."
            left -= len(str(one["unified_diff"]))
            one["repo_root"] = printable_name(root)
            found.append(one)
        return json_reply({"repositories": found})

    async def _revert(self, request: AgentRouteRequest) -> AgentHttpReply:
        """Revert one file, or both names of a renamed one."""
        fields = request.json()
        chat = fields.text("chat_id", request.caller.chat_id)
        scope, turn = fields.text("scope"), fields.text("turn", "")
        root, path = fields.text("repo_root"), fields.text("path")
        old_path = fields.text("old_path", "")
        fields.reject_unknown()
        if scope not in SCOPES:
            raise AgentError(400, "scope must be turn, chat or git")
        if request.caller.chat_id:
            raise AgentError(403, "a file is reverted by the server, for a person")
        if root not in await self._roots(chat):
            raise AgentError(404, f"this chat has no repository {root}")
        paths = (path, old_path) if old_path else (path,)
        await self._threads.run(lambda: revert_files(self._git, root, chat, scope, turn, *paths))
        self._paths.notify([chat])
        return json_reply({"ok": True})

    async def _roots(self, chat: str) -> list[str]:
        known = [*self._paths.paths(chat), self._directory]
        return await self._threads.run(lambda: find_roots([path for path in known if path]))

    async def _refresh(self, request: AgentRouteRequest) -> AgentHttpReply:
        self._paths.notify([_read_chat(request)])
        return json_reply({"ok": True})

    async def _lines(self, chat: str) -> AsyncGenerator[bytes, None]:
        """Changes, and keep-alive events between them so that both sides notice a lost connection.
        Ends after an hour; the client then starts another watch."""
        self._watches += 1
        pending: asyncio.Future[dict[str, object]] | None = None
        try:
            with self._paths.subscribe(chat) as touched:
                watch = GitWatch(
                    self._paths,
                    chat,
                    touched,
                    git=self._git,
                    threads=self._threads,
                    clock=AgentSystemClock(),
                    now=_timestamp,
                )
                deadline = time.monotonic() + MAX_WATCH_S
                while time.monotonic() < deadline:
                    pending = pending or asyncio.ensure_future(watch.changes())
                    done, _ = await asyncio.wait({pending}, timeout=KEEPALIVE_INTERVAL_S)
                    for event in _events(pending) if done else _KEEPALIVE_EVENTS:
                        yield json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
                    pending = None if done else pending
        finally:
            self._watches -= 1
            if pending is not None:
                pending.cancel()


def _events(changes: asyncio.Future[dict[str, object]]) -> list[dict[str, object]]:
    """One event per repository, since each may be long; none if the scan failed."""
    try:
        event = changes.result()
    except (AgentError, OSError):
        return []
    repositories = cast("list[object]", event["repositories"])
    return [{**event, "repositories": [each]} for each in repositories]


def _read_chat(request: AgentRouteRequest) -> str:
    """A chat may name only itself; the server names any chat."""
    query = request.query()
    chat = query.text("chat_id", request.caller.chat_id)
    query.reject_unknown()
    if not chat:
        raise AgentError(400, "chat_id is required")
    if request.caller.chat_id and chat != request.caller.chat_id:
        raise AgentError(404, f"there is no chat {chat} that this chat may watch")
    return chat


def _timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
