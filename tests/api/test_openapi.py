"""The description of the API: complete, true, and fetched from nowhere else."""

import re

import msgspec
import pytest
from prometheus_client import CONTENT_TYPE_LATEST

from chatd.api.application import all_routes
from tests.support.front import Front, Json

SCHEMAS = "#/components/schemas/"


async def described(front: Front) -> Json:
    asked = await front.open_page("/api/v1/openapi.json")
    assert (asked.status, asked.headers["content-type"]) == (200, "application/json")
    return asked.json


async def test_every_route_is_described_and_so_is_every_stream(front: Front) -> None:
    document = await described(front)
    paths = msgspec.convert(document["paths"], dict[str, dict[str, Json]])
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    routes = {(route.method, f"/api/v1{route.path}") for route in all_routes(front.doors)}
    streams = {
        ("GET", "/api/v1/chats/{chat_id}/events"),
        ("GET", "/api/v1/chats/{chat_id}/git"),
        ("GET", "/api/v1/events"),
        ("GET", "/api/v1/ws"),
    }
    assert found == routes | streams
    names = [one["operationId"] for methods in paths.values() for one in methods.values()]
    assert len(set(names)) == len(names)


async def test_every_type_that_is_named_is_there_and_errors_have_one_shape(front: Front) -> None:
    document = await described(front)
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
                    assert f"{SCHEMAS}ErrorBody" in str(answer)


async def test_the_page_for_people_fetches_nothing_from_anywhere(front: Front) -> None:
    page = await front.open_page("/docs")
    assert page.status == 200
    text = page.content.decode()
    assert "/api/v1/chats/{chat_id}/queue/{queue_id}/promote" in text
    assert re.findall(r"(?:src|href)=['\"]?([^'\" >]+)", text) == ["/api/v1/openapi.json"]
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_whoever_opens_the_bare_address_is_shown_the_way(front: Front) -> None:
    page = await front.open_page("/")
    assert page.status == 200
    links = re.findall(r"href='([^']+)'", page.content.decode())
    assert {"/docs", "/healthz", "/readyz"} <= set(links)
    for link in links:
        assert (await front.open_page(link)).status == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/metrics", CONTENT_TYPE_LATEST),
        ("/healthz", "application/json"),
    ],
)
async def test_each_page_names_its_type_once(front: Front, path: str, kind: str) -> None:
    assert (await front.open_page(path)).headers["content-type"] == kind
