"""What the front door counts: requests, how long they took, open streams."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Routes are named by their pattern, so that no id becomes a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "chatd_http_requests",
            "Requests that were answered",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "chatd_http_request_seconds",
            "From the first byte of a request to the last of its answer",
            ("method", "route"),
            buckets=SECONDS,
            registry=registry,
        )
        self._streams = Gauge(
            "chatd_streams", "Open event streams", ("transport",), registry=registry
        )
        self._ended = Counter(
            "chatd_streams_ended", "Event streams that ended", ("code",), registry=registry
        )

    def answered(self, method: str, route: str, status: int) -> None:
        self._requests.labels(method, route, str(status)).inc()

    def took(self, method: str, route: str, seconds: float) -> None:
        self._seconds.labels(method, route).observe(seconds)

    def opened(self, transport: str) -> None:
        self._streams.labels(transport).inc()

    def ended(self, transport: str, code: str) -> None:
        self._streams.labels(transport).dec()
        self._ended.labels(code).inc()
