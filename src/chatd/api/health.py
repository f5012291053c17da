"""Health pages for operators, and the metrics of the API."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from chatd.api.route import ApiReply, Page, reply
from chatd.api.schemas.chats import HealthReply
from chatd.domain.errors import ChatdError
from chatd.store.pool import Pool

HEALTH_TIMEOUT_S: Final = 2.0
LATENCY_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class HealthRoutes:
    """Public pages: they show nothing that belongs to a user."""

    def __init__(
        self, pool: Pool, registry: CollectorRegistry, draining: Callable[[], bool]
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._draining = draining

    @property
    def pages(self) -> Mapping[str, Page]:
        return {"/healthz": self.alive, "/readyz": self.ready, "/metrics": self.metrics}

    async def alive(self) -> ApiReply:
        return reply(HealthReply(status="ok"))

    async def ready(self) -> ApiReply:
        """Not ready while draining, so that a load balancer sends no new requests."""
        if self._draining():
            return reply(HealthReply(status="draining"), 503)
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._pool.ping()
        except (ChatdError, TimeoutError):
            return reply(HealthReply(status="unavailable"), 503)
        return reply(HealthReply(status="ok"))

    async def metrics(self) -> ApiReply:
        return ApiReply(body=generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class ApiMetrics:
    """Requests are labelled with the route's template, so that no id becomes a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "chatd_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "chatd_http_request_seconds",
            "Time from the first byte of a request to the last byte of its response",
            ("method", "route"),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._streams = Gauge(
            "chatd_streams", "Open event streams", ("transport",), registry=registry
        )
        self._ended = Counter(
            "chatd_streams_ended", "Event streams that ended", ("code",), registry=registry
        )

    def on_reply(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """`seconds` is None for streams, which last as long as the client stays."""
        self._requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self._seconds.labels(method, route).observe(seconds)

    def on_stream_open(self, transport: str) -> None:
        self._streams.labels(transport).inc()

    def on_stream_end(self, transport: str, code: str) -> None:
        self._streams.labels(transport).dec()
        self._ended.labels(code).inc()
