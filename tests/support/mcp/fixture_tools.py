"""The tools and resources of the conformance scenarios, offered by chatd's own protocol layer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from chatd.api.mcp.protocol import Json
from chatd.api.mcp.resources import ListedResource, ResourcePage, ResourceTemplate
from chatd.api.mcp.toolset import ListedTool, Progress, Requester, StreamCut, ToolCall, ToolReply
from chatd.api.request import ApiCaller
from chatd.domain.errors import Conflict, NotFound

PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8"
    "z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
SILENCE: Final = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
NO_ARGUMENTS: Final[Json] = {"type": "object", "properties": {}}
ADDRESS_SCHEMA: Final[Json] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def resource(uri: str, kind: str, words: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": words}}


IMAGE: Final[Json] = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
CONTENTS: Final[Mapping[str, Sequence[Json]]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        resource(
            "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
        ),
    ],
    "json_schema_2020_12_tool": [text("called")],
}


class FixtureTools:
    """Satisfies `ToolSet`."""

    instructions = "Tools for the conformance scenarios."

    def __init__(self) -> None:
        self._special: Mapping[str, Callable[[ToolCall], Awaitable[ToolReply]]] = {
            "test_error_handling": self._fail,
            "test_tool_with_progress": self._report,
            "test_reconnection": self._cut,
        }

    def listed(self, caller: ApiCaller) -> Sequence[ListedTool]:
        del caller
        return [
            ListedTool(
                name=name,
                description="Does what the conformance scenarios expect.",
                input_schema=ADDRESS_SCHEMA if name == "json_schema_2020_12_tool" else NO_ARGUMENTS,
            )
            for name in (*CONTENTS, *self._special)
        ]

    def streams(self, name: str) -> bool | None:
        if name in CONTENTS:
            return False
        return (
            name in ("test_tool_with_progress", "test_reconnection")
            if name in self._special
            else None
        )

    async def call(self, name: str, call: ToolCall) -> ToolReply:
        if name in self._special:
            return await self._special[name](call)
        return ToolReply(content=CONTENTS[name])

    async def _fail(self, call: ToolCall) -> ToolReply:
        del call
        raise Conflict("This tool intentionally returns an error for testing", code="test")

    async def _report(self, call: ToolCall) -> ToolReply:
        for done in (0.0, 50.0, 100.0):
            await call.report(Progress(done=done, total=100.0, message=f"{done:.0f} %"))
        return ToolReply(content=[text("reported")])

    async def _cut(self, call: ToolCall) -> ToolReply:
        if not call.is_resumed:
            raise StreamCut
        return ToolReply(content=[text("Reconnection test completed successfully")])


class FixtureResources:
    """Satisfies `ResourceSet`."""

    templates = (
        ResourceTemplate(
            uri_template="test://template/{id}/data",
            name="template",
            title="A template",
            description="Repeats the id.",
            mime_type="application/json",
        ),
    )

    async def list_page(self, by: Requester, cursor: str | None) -> ResourcePage:
        del by, cursor
        names = ("test://static-text", "test://static-binary")
        return ResourcePage(resources=[ListedResource(uri=name, name=name) for name in names])

    async def read(self, by: Requester, uri: str) -> Sequence[Json]:
        del by
        if uri == "test://static-text":
            words = "This is the content of the static text resource."
            return [{"uri": uri, "mimeType": "text/plain", "text": words}]
        if uri == "test://static-binary":
            return [{"uri": uri, "mimeType": "image/png", "blob": PIXEL}]
        if uri.startswith("test://template/"):
            number = uri.split("/")[3]
            return [{"uri": uri, "mimeType": "application/json", "text": f'{{"id":"{number}"}}'}]
        raise NotFound("There is no such resource.")
