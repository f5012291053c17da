"""Health pages and metrics for operators."""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    generate_latest,
)

from chatd.api.errors import Unauthorized
from chatd.api.request import ApiReply, Scope, header, reply
from chatd.api.route import Page, PageRoute
from chatd.api.schemas.chats import HealthReply
from chatd.domain.errors import ChatdError
from chatd.store.conn import DATABASE_CAUSES
from chatd.store.pool import Pool

HEALTH_TIMEOUT_S: Final = 2.0


class HealthRoutes:
    """Public pages: they show nothing that belongs to a user. With `metrics_token` the metrics need
    it as a bearer token."""

    def __init__(
        self,
        pool: Pool,
        registry: CollectorRegistry,
        draining: Callable[[], bool],
        database_error: Callable[[], str | None] = lambda: None,
        *,
        metrics_token: str | None = None,
    ) -> None:
        """`database_error` is the code of the latest write's error while writes fail: a database
        with a full disk still answers a ping."""
        self._pool = pool
        self._registry = registry
        self._draining = draining
        self._database_error = database_error
        self._metrics_token = metrics_token

    @property
    def pages(self) -> Mapping[str, Page | PageRoute]:
        metrics = PageRoute(serve=self.metrics)
        return {"/healthz": self.alive, "/readyz": self.ready, "/metrics": metrics}

    async def alive(self) -> ApiReply:
        return reply(HealthReply(status="ok"))

    async def ready(self) -> ApiReply:
        """Not ready while draining, so that a load balancer sends no new requests."""
        if self._draining():
            return reply(HealthReply(status="draining"), 503)
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._pool.ping()
        except ChatdError as error:
            return _unavailable(error.code)
        except TimeoutError:
            return _unavailable("database_timeout")
        if (code := self._database_error()) is not None:
            return _unavailable(code)
        return reply(HealthReply(status="ok"))

    async def metrics(self, scope: Scope) -> ApiReply:
        if self._metrics_token is not None:
            wanted = f"Bearer {self._metrics_token}".encode()
            given = (header(scope, b"authorization") or "").encode(errors="replace")
            if not hmac.compare_digest(given, wanted):
                raise Unauthorized("The metrics need the token of server.metrics_token.")
        return ApiReply(body=generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def _unavailable(code: str) -> ApiReply:
    message = DATABASE_CAUSES.get(code, "the database does not answer")
    return reply(HealthReply(status="unavailable", reason=code, message=message), 503)
