"""Traces and metrics of model calls for an OpenTelemetry collector, with the names of the semantic
conventions for generative AI.

Imported only if the settings ask for it: the SDK is an extra of the package. A thread sends what
has ended, so that a collector that is slow or away delays nothing; what its queue does not hold is
dropped. Spans have ids, names and numbers. Texts of people, models and tools are in them only if
the settings say so, and errors only with their kind.
"""

import asyncio
import hashlib
import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Emit, SpanAttributes, SpanRole
from chatd.settings.schema import OtelSettings

EXPORT_TIMEOUT_S: Final = 5.0
FLUSH_TIMEOUT_S: Final = 3.0
"""How long a process that stops waits until the last spans are sent."""

_KINDS: Final[Mapping[SpanRole, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
}
_TURN: Final[ContextVar[int | None]] = ContextVar("turn", default=None)
_TOKEN_COUNTS: Final = (
    ("gen_ai.usage.input_tokens", "input"),
    ("gen_ai.usage.output_tokens", "output"),
)
_METRIC_LABELS: Final = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")


class TurnTraceIds(IdGenerator):
    """The trace of a turn has the same id on every worker that runs a part of it."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        return self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return _TURN.get() or self._random.generate_trace_id()


class CheckedExporter(SpanExporter):
    """Removes the texts of errors, and reports once that spans cannot be sent."""

    def __init__(self, exporter: SpanExporter, emit: Emit, *, has_content: bool) -> None:
        self._exporter = exporter
        self._emit = emit
        self._has_content = has_content
        self._failures = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        sent = spans if self._has_content else [_without_error_text(span) for span in spans]
        result = self._exporter.export(sent)
        if result is SpanExportResult.SUCCESS:
            self._failures = 0
        else:
            self._failures += 1
            self._emit("traces_not_sent", error_kind="export", failures=self._failures)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _without_error_text(span: ReadableSpan) -> ReadableSpan:
    """Other libraries put what a server replied into the status of their spans."""
    if span.status.description is None:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class CollectorSpan:
    """Satisfies `ports.TracedSpan`."""

    def __init__(self, span: Span, attributes: SpanAttributes) -> None:
        self._span = span
        self.attributes = dict(attributes)

    def set(self, attributes: SpanAttributes) -> None:
        self.attributes.update(attributes)
        self._span.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        self.set({"error.type": kind})
        self._span.set_status(Status(StatusCode.ERROR))


class CollectorTracer:
    """Satisfies `ports.Tracer`. One for a process, because libraries find it by a global."""

    def __init__(self, settings: OtelSettings, emit: Emit) -> None:
        self.has_content = settings.content
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `emit` reports instead
        resource = Resource.create({SERVICE_NAME: "chatd", SERVICE_VERSION: version("chatd")})
        # Libraries record the texts of exceptions as events.
        limits = SpanLimits() if settings.content else SpanLimits(max_events=0)
        self._spans = TracerProvider(
            sampler=choose_sampler(settings),
            resource=resource,
            shutdown_on_exit=False,
            id_generator=TurnTraceIds(),
            span_limits=limits,
        )
        if settings.traces:
            exporter = OTLPSpanExporter(
                endpoint=_address(settings, "traces"), timeout=EXPORT_TIMEOUT_S
            )
            checked = CheckedExporter(exporter, emit, has_content=settings.content)
            self._spans.add_span_processor(BatchSpanProcessor(checked))
        trace.set_tracer_provider(self._spans)
        self._tracer = self._spans.get_tracer("chatd", version("chatd"))
        self._meters: MeterProvider | None = None
        if settings.metrics:
            address = _address(settings, "metrics")
            reader = PeriodicExportingMetricReader(
                OTLPMetricExporter(endpoint=address, timeout=EXPORT_TIMEOUT_S)
            )
            self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
            metrics.set_meter_provider(self._meters)
        meter = metrics.get_meter("chatd", version("chatd"))
        self._durations = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")

    @contextmanager
    def span(
        self,
        name: str,
        attributes: SpanAttributes,
        *,
        role: SpanRole = "internal",
        turn: str | None = None,
    ) -> Generator[CollectorSpan]:
        token = None if turn is None else _TURN.set(turn_trace_id(turn))
        try:
            with self._tracer.start_as_current_span(
                name,
                context=None if turn is None else Context(),
                kind=_KINDS[role],
                attributes=attributes,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                traced = CollectorSpan(span, attributes)
                try:
                    yield traced
                except asyncio.CancelledError:
                    traced.set({"chatd.cancelled": True})
                    raise
                except BaseException as error:
                    is_ours = isinstance(error, ChatdError)
                    traced.fail(error.code if is_ours else type(error).__name__)
                    raise
        finally:
            if token is not None:
                _TURN.reset(token)

    def count_call(self, span: object, duration_s: float) -> None:
        """A model call has ended."""
        if not isinstance(span, CollectorSpan):
            return
        known = span.attributes
        labels = {name: known[name] for name in (*_METRIC_LABELS, "error.type") if name in known}
        self._durations.record(duration_s, labels)
        for name, kind in _TOKEN_COUNTS:
            if isinstance(count := known.get(name), int):
                self._tokens.record(count, {**labels, "gen_ai.token.type": kind})

    def place(self) -> str | None:
        found = trace.get_current_span().get_span_context()
        if not found.is_valid:
            return None
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"

    async def close(self) -> None:
        """Send what is left, for a short time."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            self._spans.shutdown()
            if self._meters is not None:
                self._meters.shutdown(FLUSH_TIMEOUT_S * 1000)
            loop.call_soon_threadsafe(done.set)

        # A daemon: the process does not wait for a collector that does not answer.
        threading.Thread(target=stop, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await done.wait()
        except TimeoutError:
            pass


def _address(settings: OtelSettings, signal: str) -> str | None:
    """None: as the OTEL_* variables say."""
    if settings.endpoint is None:
        return None
    return f"{settings.endpoint.rstrip('/')}/v1/{signal}"


def choose_sampler(settings: OtelSettings) -> Sampler | None:
    """By the id of the trace, so that all workers of a turn decide alike. None: as
    OTEL_TRACES_SAMPLER says."""
    if not settings.traces:
        return ALWAYS_OFF
    return None if settings.sample is None else ParentBased(TraceIdRatioBased(settings.sample))


def turn_trace_id(turn: str) -> int:
    return int.from_bytes(hashlib.sha256(turn.encode()).digest()[:16]) or 1
