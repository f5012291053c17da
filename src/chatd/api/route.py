"""Routes: their declaration, the table that finds them by method and path, and metrics by route.

A route declares its handler, body, query and reply types once. The route table and the OpenAPI
document are both built from that declaration, so they cannot differ. Templates are static, such as
`/api/v1/chats/{chat_id}`. A literal segment wins over a parameter. Empty segments are ignored, so
a trailing slash makes no difference.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from chatd.api.errors import MethodNotAllowed
from chatd.api.request import ApiCaller, ApiReply, ApiRequest, BodySpec, Receive, Scope, Send
from chatd.domain.access.permissions import Permission

PREFIX: Final = "/api/v1"
LATENCY_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

_PARAMETER: Final = "{}"


Handle = Callable[[ApiRequest], Coroutine[Any, Any, ApiReply]]
RouteAccess = Permission | Literal["public", "signed_in"]
"""A caller needs the permission; or `signed_in` only; or the route is `public`, for the time before
a sign-in."""
Authenticate = Callable[[Scope, Mapping[str, str]], Awaitable[ApiCaller]]
Page = Callable[[], Awaitable[ApiReply]]
ServePage = Callable[[Scope], Awaitable[ApiReply]]
ServeExchange = Callable[[Scope, Receive, Send], Awaitable[None]]
ServeStream = Callable[[ApiRequest, Send], Awaitable[None]]


class PageRoute(Struct, frozen=True, kw_only=True):
    """A page with a reply that depends on the request's headers."""

    serve: ServePage


class MountedRoute(Struct, frozen=True, kw_only=True):
    """A path, outside the prefix, with a protocol of its own: it finds its caller itself."""

    path: str
    methods: tuple[str, ...]
    serve: ServeExchange


class ApiRoute(Struct, frozen=True, kw_only=True):
    """`endpoint` is a method and a path, such as `GET /chats/{chat_id}`. `replies` maps the status
    of each successful reply to its type, None if it has no body; `errors` lists the error codes
    beside those of every route. A caller needs `permission`. A draining server refuses routes
    with `starts_work`. The operation id is the handler's name unless `name` is given. `raw_body`:
    the body is a file. `authenticate` finds the caller, from the path parameters too, if it is not
    the bearer token that names it. A type of `bytes` in `replies` is a file.
    `body_types` and `reply_types` are the media types of such files, if not all kinds of files."""

    endpoint: str
    permission: RouteAccess
    summary: str
    handle: Handle
    replies: Mapping[int, object]
    body_spec: BodySpec[Struct] | None = None
    body_optional: bool = False
    raw_body: bool = False
    body_types: tuple[str, ...] = ()
    reply_types: tuple[str, ...] = ()
    query: type[Struct] | None = None
    description: str = ""
    errors: tuple[str, ...] = ()
    authenticate: Authenticate | None = None
    keyed: bool = False
    starts_work: bool = False
    name: str = ""

    @property
    def method(self) -> str:
        return self.endpoint.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.endpoint.partition(" ")[2]

    @property
    def operation_id(self) -> str:
        return self.name or self.handle.__name__


def _always(_scope: Scope) -> bool:
    return True


class StreamRoute(Struct, frozen=True, kw_only=True):
    """A GET that is answered with server-sent events of type `events`, which name themselves, and
    of the `named_events`. `is_requested` chooses between the stream and a route of the same path. A
    `resumable` one takes Last-Event-ID."""

    path: str
    permission: Permission
    name: str
    summary: str
    serve: ServeStream
    events: object
    named_events: Mapping[str, type[Struct]] = {}
    description: str = ""
    errors: tuple[str, ...] = ()
    query: type[Struct] | None = None
    resumable: bool = False
    is_requested: Callable[[Scope], bool] = _always


class RoutePath:
    """What one path template serves: a handler per method, and possibly a stream."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.handlers: dict[str, ApiRoute | MountedRoute | Page | PageRoute] = {}
        self.stream: StreamRoute | None = None

    @property
    def allow(self) -> str:
        """The value of the Allow header. A path that only streams has no HEAD and no OPTIONS."""
        if not self.handlers:
            return "GET"
        head = {"HEAD"} if "GET" in self.handlers else set[str]()
        return ", ".join(sorted({*self.handlers, *head, "OPTIONS"}))

    def select(
        self, scope: Scope
    ) -> ApiRoute | MountedRoute | Page | PageRoute | StreamRoute | None:
        """None for OPTIONS. Raises MethodNotAllowed."""
        method = scope["method"]
        if method == "GET" and self.stream is not None and self.stream.is_requested(scope):
            return self.stream
        # The server leaves the body out of the reply to HEAD.
        if (handler := self.handlers.get("GET" if method == "HEAD" else method)) is not None:
            return handler
        if method == "OPTIONS" and self.handlers:
            return None
        raise MethodNotAllowed(f"{method} is not allowed here, only {self.allow}.", self.allow)


class RouteTable:
    def __init__(
        self,
        pages: Mapping[str, Page | PageRoute],
        routes: Iterable[ApiRoute],
        streams: Iterable[StreamRoute],
        mounted: Iterable[MountedRoute] = (),
    ) -> None:
        self._root = _Node()
        for path, page in pages.items():
            self._add(path).handlers["GET"] = page
        for route in routes:
            self._add(PREFIX + route.path).handlers[route.method] = route
        for stream in streams:
            self._add(PREFIX + stream.path).stream = stream
        for mount in mounted:
            for method in mount.methods:
                self._add(mount.path).handlers[method] = mount

    def find(self, path: str) -> tuple[RoutePath, Mapping[str, str]] | None:
        """The endpoint of a decoded path, and the path parameters."""
        segments = _split(path)
        endpoint = self._root.find(segments)
        if endpoint is None:
            return None
        pairs = zip(_split(endpoint.template), segments, strict=True)
        return endpoint, {name[1:-1]: value for name, value in pairs if name[0] == "{"}

    def __iter__(self) -> Iterator[RoutePath]:
        return self._root.walk()

    def _add(self, template: str) -> RoutePath:
        node = self._root
        for segment in _split(template):
            name = _PARAMETER if segment[0] == "{" else segment
            node = node.children.setdefault(name, _Node())
        if node.endpoint is None:
            node.endpoint = RoutePath(template)
        return node.endpoint


class _Node:
    __slots__ = ("children", "endpoint")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.endpoint: RoutePath | None = None

    def find(self, segments: list[str], depth: int = 0) -> RoutePath | None:
        if depth == len(segments):
            return self.endpoint
        for name in (segments[depth], _PARAMETER):
            child = self.children.get(name)
            if child is not None and (found := child.find(segments, depth + 1)) is not None:
                return found
        return None

    def walk(self) -> Iterator[RoutePath]:
        if self.endpoint is not None:
            yield self.endpoint
        for child in self.children.values():
            yield from child.walk()


def _split(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


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
        # A metric looks up its labels under a lock, and checks them, each time. There are as many
        # entries as it has itself.
        self._counts: dict[tuple[str, str, int], Callable[[], None]] = {}
        self._measures: dict[tuple[str, str], Callable[[float], None]] = {}

    def on_reply(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """`seconds` is None for streams, which last as long as the client stays."""
        key = (method, route, status)
        if (count := self._counts.get(key)) is None:
            count = self._counts[key] = self._requests.labels(method, route, str(status)).inc
        count()
        if seconds is not None:
            if (measure := self._measures.get(key[:2])) is None:
                measure = self._measures[key[:2]] = self._seconds.labels(method, route).observe
            measure(seconds)

    def on_stream_open(self, transport: str) -> None:
        self._streams.labels(transport).inc()

    def on_stream_end(self, transport: str, code: str) -> None:
        self._streams.labels(transport).dec()
        self._ended.labels(code).inc()
