"""Writes the OpenAPI document to a file, without a server or a database.

`python -m tools.openapi build/openapi.json --slim` leaves out texts, examples and error replies:
the page's types are made from that (`npm run types`). The routes keep what they are given and
use it only when they answer, so a placeholder is enough.
"""

import argparse
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from chatd.api.application import all_routes
from chatd.api.deps import ApiDeps
from chatd.api.openapi.document import build_openapi
from chatd.api.sse import ChatEventStreams, WorkspaceEventStreams
from chatd.api.streams import StreamRegistry

_TEXT_KEYS: Final = {"description", "summary", "title", "example", "examples", "tags"}


class _Placeholder:
    """Stands for what a route needs to answer; each of its attributes is another one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder()

    def __call__(self, *_args: object, **_named: object) -> Any:
        return _Placeholder()


def openapi_document() -> bytes:
    deps = cast(ApiDeps, _Placeholder())
    registry = cast(StreamRegistry, _Placeholder())
    streams = (
        *ChatEventStreams(deps, registry).routes(),
        *WorkspaceEventStreams(deps, registry).routes(),
    )
    return build_openapi(all_routes(deps), streams)


def without_texts(value: Any, *, names: bool = False) -> Any:
    """`names`: the keys of this object are names that people chose, such as those of fields."""
    if isinstance(value, list):
        return [without_texts(item) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    kept = cast(dict[str, Any], value)
    if not names:
        kept = {key: item for key, item in kept.items() if key not in _TEXT_KEYS}
    if "responses" in kept:
        told: dict[str, Any] = kept["responses"]
        kept["responses"] = {code: reply for code, reply in told.items() if code.startswith("2")}
    inner = {"properties", "schemas", "paths"}
    return {
        key: without_texts(item, names=not names and key in inner) for key, item in kept.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the OpenAPI document.")
    parser.add_argument("target", type=Path)
    parser.add_argument("--slim", action="store_true", help="without texts and error replies")
    options = parser.parse_args()
    document = openapi_document()
    if options.slim:
        document = msgspec.json.encode(without_texts(msgspec.json.decode(document)))
    target: Path = options.target
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(document)


if __name__ == "__main__":
    main()
