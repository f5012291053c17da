"""The route table: literal segments before parameters, empty segments ignored, exact Allow."""

import pytest

from chatd.api.application import all_routes
from chatd.api.errors import MethodNotAllowed
from chatd.api.request import Scope
from chatd.api.route import RouteTable
from tests.support.api.server import ApiServer
from tests.support.outcomes import present


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/api/v1/chats", "/api/v1/chats", {}),
        ("/api/v1//chats/", "/api/v1/chats", {}),
        ("/api/v1/model-options/schema", "/api/v1/model-options/schema", {}),
        ("/api/v1/chats/{}", "/api/v1/chats/{chat_id}", {"chat_id": "{}"}),
        ("/api/v1/chats/models/queue", "/api/v1/chats/{chat_id}/queue", {"chat_id": "models"}),
        (
            "/api/v1/chats/c/queue/7/move",
            "/api/v1/chats/{chat_id}/queue/{queue_id}/move",
            {"chat_id": "c", "queue_id": "7"},
        ),
        ("/api/v1", None, {}),
        ("/api/v1/CHATS", None, {}),
        ("/api/v1/chats/c/queue/7/nothing", None, {}),
        ("/api/v1/chats/c/queue/7/move/x", None, {}),
    ],
)
async def test_a_path_finds_its_template_and_parameters(
    server: ApiServer, path: str, template: str | None, parameters: dict[str, str]
) -> None:
    found = RouteTable({}, all_routes(server.deps), ()).find(path)
    if template is None:
        assert found is None
    else:
        assert found is not None
        assert (found[0].template, found[1]) == (template, parameters)


async def test_a_wrong_method_names_all_methods_of_the_path(server: ApiServer) -> None:
    found = present(RouteTable({}, all_routes(server.deps), ()).find("/api/v1/chats"))
    with pytest.raises(MethodNotAllowed) as refused:
        found[0].select(_scope("PUT"))
    assert refused.value.allow == "GET, HEAD, OPTIONS, POST"


async def test_options_lists_the_methods(server: ApiServer) -> None:
    asked = await server.ask("OPTIONS", "/chats", token=None)
    assert (asked.status, asked.headers["allow"], asked.content) == (
        204,
        "GET, HEAD, OPTIONS, POST",
        b"",
    )


def _scope(method: str) -> Scope:
    return {"method": method, "headers": [], "query_string": b""}


async def test_head_is_answered_like_get_without_the_body(server: ApiServer) -> None:
    got = await server.ask("GET", "/models")
    head = await server.ask("HEAD", "/models")
    assert (head.status, head.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]
    assert (await server.ask("HEAD", "/models", token=None)).status == 401
    assert (await server.ask("HEAD", "/events")).status == 405
