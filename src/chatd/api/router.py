"""The route table: which handler serves a method and a path.

Templates are static, such as `/api/v1/chats/{chat_id}`. A literal segment wins over a parameter.
Empty segments are ignored, so a trailing slash makes no difference.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from chatd.api.errors import MethodNotAllowed
from chatd.api.route import PREFIX, ApiRoute, Page, Scope, StreamRoute

_PARAMETER: Final = "{}"
_DECLARED: Final = (f"{PREFIX}/models", f"{PREFIX}/providers")
_DECLARED_TEXT: Final = (
    "Models and providers are declared in chatd.toml. Change them there and restart chatd."
)


class RoutePath:
    """What one path template serves: a handler per method, and possibly a stream."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.handlers: dict[str, ApiRoute | Page] = {}
        self.stream: StreamRoute | None = None

    @property
    def allow(self) -> str:
        """The value of the Allow header. A path that only streams has no OPTIONS."""
        return ", ".join(sorted({*self.handlers, "OPTIONS"})) if self.handlers else "GET"

    def select(self, scope: Scope) -> ApiRoute | Page | StreamRoute | None:
        """None for OPTIONS. Raises MethodNotAllowed."""
        method = scope["method"]
        if method == "GET" and self.stream is not None and self.stream.is_requested(scope):
            return self.stream
        if (handler := self.handlers.get(method)) is not None:
            return handler
        if method == "OPTIONS" and self.handlers:
            return None
        if self.template.startswith(_DECLARED):
            raise MethodNotAllowed(_DECLARED_TEXT, self.allow, code="managed_by_settings")
        raise MethodNotAllowed(f"{method} is not allowed here, only {self.allow}.", self.allow)


class RouteTable:
    def __init__(
        self, pages: Mapping[str, Page], routes: Iterable[ApiRoute], streams: Iterable[StreamRoute]
    ) -> None:
        self._root = _Node()
        for path, page in pages.items():
            self._add(path).handlers["GET"] = page
        for route in routes:
            self._add(PREFIX + route.path).handlers[route.method] = route
        for stream in streams:
            self._add(PREFIX + stream.path).stream = stream

    def find(self, path: str) -> tuple[RoutePath, Mapping[str, str]] | None:
        """The endpoint of a decoded path, and the path parameters."""
        segments = _split(path)
        endpoint = self._root.find(segments)
        if endpoint is None:
            return None
        pairs = zip(_split(endpoint.template), segments, strict=True)
        return endpoint, {name[1:-1]: value for name, value in pairs if name[0] == "{"}

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


def _split(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]
