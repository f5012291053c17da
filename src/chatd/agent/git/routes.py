"""The agent's routes for what has changed in the repositories that a chat has touched.

A watch is a stream of JSON lines in a reply without an end, not a WebSocket: it needs no second
protocol, and every line is signed like a reply. Its listener cannot speak in it, so asking to
look again is a request of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.files.routes import WorkerThreads
from chatd.agent.git.command import GitCommand
from chatd.agent.git.repositories import GitWatch
from chatd.agent.git.touched_paths import TouchedPaths
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply

API = "/api/v0/git"
KEEPALIVE_INTERVAL_S = 15.0
MAX_WATCH_S = 3600.0
MAX_WATCHES = 16
GIT_THREADS = 2
SCAN_TIMEOUT_S = 60.0
_ALIVE: list[dict[str, object]] = [{"type": "alive"}]


class AgentSystemClock:
    """The system's."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float, tag: str) -> None:
        del tag
        await asyncio.sleep(seconds)


class GitRoutes:
    """Looks in threads of its own: a large repository shall not hold up files."""

    def __init__(
        self, store: TouchedPaths, git: GitCommand, *, alive_s: float = KEEPALIVE_INTERVAL_S
    ) -> None:
        self._store = store
        self._git = git
        self._alive_s = alive_s
        self._threads = WorkerThreads(GIT_THREADS, SCAN_TIMEOUT_S)
        self._watches = 0

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{API}/watch", self._watch),
            AgentRoute("POST", f"{API}/refresh", self._refresh),
        ]

    def close(self) -> None:
        self._threads.close()

    async def _watch(self, request: AgentRouteRequest) -> AgentHttpReply:
        chat = _chat(request)
        if self._watches >= MAX_WATCHES:
            raise AgentError(503, f"there are {MAX_WATCHES} watches already", code="busy")
        return AgentHttpReply(200, content_type="application/x-ndjson", lines=self._lines(chat))

    async def _refresh(self, request: AgentRouteRequest) -> AgentHttpReply:
        self._store.notify([_chat(request)])
        return json_reply({"ok": True})

    async def _lines(self, chat: str) -> AsyncGenerator[bytes, None]:
        """What changes; and now and then that nothing did, so that both ends know of each other.
        Ends after an hour: whoever still wants to know asks again."""
        self._watches += 1
        pending: asyncio.Future[dict[str, object]] | None = None
        try:
            with self._store.subscribe(chat) as touched:
                watch = GitWatch(
                    self._store,
                    chat,
                    touched,
                    git=self._git,
                    threads=self._threads,
                    clock=AgentSystemClock(),
                    now=_now,
                )
                until = time.monotonic() + MAX_WATCH_S
                while time.monotonic() < until:
                    pending = pending or asyncio.ensure_future(watch.changes())
                    done, _ = await asyncio.wait({pending}, timeout=self._alive_s)
                    for event in _news(pending) if done else _ALIVE:
                        yield json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
                    pending = None if done else pending
        finally:
            self._watches -= 1
            if pending is not None:
                pending.cancel()


def _news(changes: asyncio.Future[dict[str, object]]) -> list[dict[str, object]]:
    """One event for each repository, since each may be long. A look that failed is no news."""
    try:
        event = changes.result()
    except (AgentError, OSError):
        return []
    repositories = cast("list[object]", event["repositories"])
    return [{**event, "repositories": [each]} for each in repositories]


def _chat(request: AgentRouteRequest) -> str:
    """A chat sees its own; who speaks for none names one."""
    query = request.query()
    chat = query.text("chat_id", request.caller.chat_id)
    query.reject_unknown()
    if not chat:
        raise AgentError(400, "chat_id is required")
    if request.caller.chat_id and chat != request.caller.chat_id:
        raise AgentError(404, "there is no such chat here")
    return chat


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
