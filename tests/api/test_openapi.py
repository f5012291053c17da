"""The OpenAPI document and the HTML pages."""

import re

import msgspec
import pytest
from prometheus_client import CONTENT_TYPE_LATEST

from chatd.api.application import all_routes
from tests.support.api.server import ApiServer, Json

SCHEMAS = "#/components/schemas/"


async def described(server: ApiServer) -> Json:
    asked = await server.open_page("/api/v1/openapi.json")
    assert (asked.status, asked.headers["content-type"]) == (200, "application/json")
    return asked.json


async def test_every_route_and_stream_is_described(server: ApiServer) -> None:
    document = await described(server)
    paths = msgspec.convert(document["paths"], dict[str, dict[str, Json]])
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    routes = {(route.method, f"/api/v1{route.path}") for route in all_routes(server.deps)}
    streams = {
        ("GET", "/api/v1/chats/{chat_id}/events"),
        ("GET", "/api/v1/chats/{chat_id}/git"),
        ("GET", "/api/v1/chats/{chat_id}/desktop/stream"),
        ("GET", "/api/v1/chats/{chat_id}/terminal"),
        ("GET", "/api/v1/events"),
        ("GET", "/api/v1/ws"),
    }
    assert found == routes | streams
    names = [one["operationId"] for methods in paths.values() for one in methods.values()]
    assert len(set(names)) == len(names)


def test_a_write_replies_what_it_changed_unless_nothing_is_left_to_show(server: ApiServer) -> None:
    silent = {route.endpoint for route in all_routes(server.deps) if 204 in route.replies}
    assert {one for one in silent if not one.startswith("DELETE ")} == {
        "POST /chats/{chat_id}/read",  # the mark is the client's own
        "POST /chats/{chat_id}/workspace/revert",  # a file, which the client reads again
        "POST /auth/logout",
        "POST /auth/password",
        "POST /demo/kill-worker",
    }


NOT_PAGES = {
    "/chats/{chat_id} workspace_mcp_servers": "a part of the chat",
    "/chats/{chat_id}/acl groups": "written as a whole",
    "/chats/{chat_id}/acl users": "written as a whole",
    "/chats/{chat_id}/diff repositories": "one state of all repositories",
    "/chats/{chat_id}/public-links items": "at most 20, with what the settings allow",
    "/chats/{chat_id}/tool-policy rules": "written as a whole",
    "/cost/me/summary by_chat": "a report with a bounded table",
    "/cost/me/summary by_day": "a report with a bounded table",
    "/cost/me/summary by_day_and_model": "a report with a bounded table",
    "/cost/me/summary by_model": "a report with a bounded table",
    "/cost/summary by_day_and_model": "a report with a bounded table",
    "/cost/summary by_model": "a report with a bounded table",
    "/cost/{user_id}/summary by_chat": "a report with a bounded table",
    "/cost/{user_id}/summary by_day": "a report with a bounded table",
    "/cost/{user_id}/summary by_day_and_model": "a report with a bounded table",
    "/cost/{user_id}/summary by_model": "a report with a bounded table",
    "/directory groups": "the best matches of a search, for one picker",
    "/directory users": "the best matches of a search, for one picker",
    "/models/{model_id} fallbacks": "at most five, a part of the model",
    "/providers/{provider_id} keys": "a part of the provider",
    "/runners/{runner_id} backends": "a part of the runner",
    "/runners/{runner_id} waiting_builds": "the first 200; all are in /builds/waiting",
    "/runners/{runner_id} workspaces": "the last used 200 of one runner",
    "/settings/me/tool-policy rules": "written as a whole",
    "/settings/tool-policy rules": "written as a whole",
    "/template-configs/{template_id} parameters": "a part of the template",
    "/template-configs/{template_id}/versions/{version_id} parameters": "a part of the template",
    "/templates/{template_id} parameters": "a part of the template",
    "/templates/{template_id}/tool-policy rules": "written as a whole",
    "/usage-limits group_overrides": "the first 200; the whole list is a page of its own",
    "/usage-limits overrides": "the first 200; the whole list is a page of its own",
    "/usage-limits/status warnings": "the limits of one user that are nearly reached",
    "/workspaces/{workspace_id} agents": "a part of the workspace",
    "/workspaces/{workspace_id}/network credentials": "as many as its owner and groups may have",
    "/workspaces/{workspace_id}/network refusals": "the latest 100, as the proxy keeps them",
    "/diagnosis findings": "a finding for each check",
}
"""Lists of objects that are not pages, and why."""


async def test_every_list_is_a_page_unless_it_is_a_part_of_something_else(
    server: ApiServer,
) -> None:
    document = await described(server)
    components = msgspec.convert(document["components"], dict[str, dict[str, Json]])
    found: set[str] = set()
    for route in all_routes(server.deps):
        kind = route.replies.get(200)
        schema = components["schemas"].get(getattr(kind, "__name__", ""), {})
        fields = msgspec.convert(schema.get("properties", {}), dict[str, Json])
        if route.method != "GET" or {"items", "has_more", "next_cursor"} <= fields.keys():
            continue
        found |= {
            f"{route.path} {name}"
            for name, field in fields.items()
            if field.get("type") == "array" and SCHEMAS in str(field)
        }
    assert found == NOT_PAGES.keys()


async def test_every_referenced_type_exists_and_errors_have_one_shape(server: ApiServer) -> None:
    document = await described(server)
    text = msgspec.json.encode(document).decode()
    components = msgspec.convert(document["components"], dict[str, Json])
    named = set(re.findall(rf'"{SCHEMAS}([^"]+)"', text))
    assert named <= components["schemas"].keys()
    assert "ErrorBody" in named
    paths = msgspec.convert(document["paths"], dict[str, dict[str, Json]])
    for methods in paths.values():
        for one in methods.values():
            for status, answer in msgspec.convert(one["responses"], Json).items():
                if int(status) >= 400:
                    shared = str(msgspec.convert(answer, Json).get("$ref")).rpartition("/")[2]
                    body = components["responses"].get(shared, answer)
                    assert f"{SCHEMAS}ErrorBody" in str(body)


async def test_the_docs_page_loads_nothing_from_elsewhere(server: ApiServer) -> None:
    page = await server.open_page("/docs")
    assert page.status == 200
    text = page.content.decode()
    links = re.findall(r"(?:src|href)='([^']+)'", text)
    assert {link.partition("/")[0] for link in links} == {"", "data:,"}
    for link in links:
        if link.startswith("/"):
            assert (await server.open_page(link)).status == 200, "run make dev"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    script = (await server.open_page("/docs/start.js")).content.decode()
    assert "validatorUrl: null" in script
    assert "://" not in script + text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/metrics", CONTENT_TYPE_LATEST),
        ("/healthz", "application/json"),
    ],
)
async def test_each_page_has_one_content_type(server: ApiServer, path: str, kind: str) -> None:
    assert (await server.open_page(path)).headers["content-type"] == kind
