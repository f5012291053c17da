"""HTTP routes for the changes in the repositories that a chat has touched.

A watch is a streamed reply of signed JSON lines, not a WebSocket: it needs no second protocol. Its
client cannot send in it, so a rescan is requested by `refresh`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.git.command import GitCommand
from chatd.agent.git.repositories import GitWatch
from chatd.agent.git.touched_paths import TouchedPaths
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import AgentSystemClock, WorkerThreads

GIT_API_PREFIX = "/api/v0/git"
KEEPALIVE_INTERVAL_S = 15.0
MAX_WATCH_S = 3600.0
MAX_WATCHES = 16
GIT_THREADS = 2
SCAN_TIMEOUT_S = 60.0
_KEEPALIVE_EVENTS: list[dict[str, object]] = [{"type": "alive"}]


class GitRoutes:
    """Scans in its own threads, so that a large repository does not delay file operations."""

    def __init__(self, paths: TouchedPaths, git: GitCommand) -> None:
        self._paths = paths
        self._git = git
        self._threads = WorkerThreads(GIT_THREADS, SCAN_TIMEOUT_S)
        self._watches = 0

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{GIT_API_PREFIX}/watch", self._watch),
            AgentRoute("POST", f"{GIT_API_PREFIX}/refresh", self._refresh),
        ]

    def close(self) -> None:
        self._threads.close()

    async def _watch(self, request: AgentRouteRequest) -> AgentHttpReply:
        chat = _read_chat(request)
        if self._watches >= MAX_WATCHES:
            raise AgentError(503, f"there are already {MAX_WATCHES} watches", code="busy")
        return AgentHttpReply(200, content_type="application/x-ndjson", lines=self._lines(chat))

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
