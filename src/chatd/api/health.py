"""For whoever runs the server: is it alive, may it be sent requests, what has it counted."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from chatd.api.call import Page, Reply, reply
from chatd.api.wire import HealthReply
from chatd.domain.errors import ChatdError
from chatd.store.chat import updates
from chatd.store.conn import Conn

ANSWER_WITHIN_S: Final = 2.0


class Health:
    """Nobody has to say who they are here, so nothing is told that is anybody's."""

    def __init__(
        self, pool: Conn, registry: CollectorRegistry, draining: Callable[[], bool]
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._draining = draining

    @property
    def pages(self) -> Mapping[str, Page]:
        return {"/healthz": self.alive, "/readyz": self.ready, "/metrics": self.metrics}

    async def alive(self) -> Reply:
        return reply(HealthReply(status="ok"))

    async def ready(self) -> Reply:
        """Not while draining: a replica that goes away should get no new requests."""
        if self._draining():
            return reply(HealthReply(status="draining"), 503)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await updates.alive(self._pool)
        except (ChatdError, TimeoutError):
            return reply(HealthReply(status="unavailable"), 503)
        return reply(HealthReply(status="ok"))

    async def metrics(self) -> Reply:
        return Reply(body=generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
