"""HTTP routes for the changes in the repositories that a chat has touched.

A watch is a streamed reply of signed JSON lines, not a WebSocket: it needs no second protocol. Its
client cannot send in it, so a rescan is requested by `refresh`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Sequence
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.files.paths import printable_name
from chatd.agent.git.command import GitCommand
from chatd.agent.git.repositories import MAX_DIFF_BYTES, GitWatch, find_roots
from chatd.agent.git.reverts import revert_files
from chatd.agent.git.snapshots import TreeSnapshots, read_repository
from chatd.agent.git.touched_paths import TouchedPaths
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import AgentSystemClock, WorkerThreads

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
        """One file, or both names of a renamed one."""
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
