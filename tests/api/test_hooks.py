"""Hooks over HTTP: administered, tried, and audited without what is secret."""

import pytest
from aiohttp import web

from tests.support.api.server import ADMINISTRATOR, OTHER_USER, ApiServer

HOOK = {"name": "policy", "url": "https://policy.example.com/ask", "events": ["before_tool"]}


async def create(server: ApiServer, **fields: object) -> dict[str, object]:
    made = await server.ask("POST", "/hooks", {**HOOK, **fields}, token=ADMINISTRATOR)
    assert made.status == 201, made.content
    assert str(made.json["secret"]).startswith("whsec_")
    return {name: value for name, value in made.json.items() if name != "secret"}


async def test_a_hook_is_added_listed_changed_and_deleted(server: ApiServer) -> None:
    hook = await create(server)
    path = f"/hooks/{hook['id']}"
    assert (hook["failure"], hook["timeout_ms"], hook["enabled"]) == ("closed", 5000, True)
    assert (await server.ask("GET", "/hooks", token=ADMINISTRATOR)).items == [hook]
    assert "secret" not in (await server.ask("GET", path, token=ADMINISTRATOR)).json
    change = {"events": ["step", "step", "turn_end"], "failure": "open", "enabled": False}
    changed = (await server.ask("PATCH", path, change, token=ADMINISTRATOR)).json
    assert changed["events"] == [
        "step",
        "turn_end",
    ]
    assert (changed["failure"], changed["enabled"], changed["url"]) == ("open", False, HOOK["url"])
    twice = await server.ask("POST", "/hooks", {**HOOK, "name": "POLICY"}, token=ADMINISTRATOR)
    assert twice.code == (409, "hook_exists")
    assert (await server.ask("DELETE", path, token=ADMINISTRATOR)).status == 204
    assert (await server.ask("GET", path, token=ADMINISTRATOR)).code == (404, "not_found")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://x.example/"}, "url"),
        ({"url": "https://user:pass@x.example/"}, "url"),
        ({"events": []}, "events"),
        ({"events": ["turn.finished"]}, "events[0]"),
        ({"name": " "}, "name"),
        ({"timeout_ms": 99}, "timeout_ms"),
        ({"timeout_ms": 30_001}, "timeout_ms"),
        ({"failure": "ajar"}, "failure"),
        ({"secret": "short"}, "secret"),
        ({"template_id": "018f4e9a-0000-7000-8000-000000000001"}, "template_id"),
    ],
)
async def test_a_bad_hook_is_refused_and_not_stored(
    server: ApiServer, changes: dict[str, object], field: str
) -> None:
    refused = await server.ask("POST", "/hooks", {**HOOK, **changes}, token=ADMINISTRATOR)
    assert (refused.status, refused.field) == (400, field)
    assert (await server.ask("GET", "/hooks", token=ADMINISTRATOR)).items == []


async def test_a_test_shows_what_the_receiver_answers(server: ApiServer) -> None:
    asked: list[dict[str, object]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"decision": "deny", "reason": "Because."})

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        hook = await create(server, url=f"http://127.0.0.1:{port}/")
        found = (await server.ask("POST", f"/hooks/{hook['id']}/test", token=ADMINISTRATOR)).json
    finally:
        await runner.cleanup()
    assert (found["ok"], found["decision"], found["reason"]) == (True, "deny", "Because.")
    assert asked == [{"type": "ping", "data": {}}]
    gone = (await server.ask("POST", f"/hooks/{hook['id']}/test", token=ADMINISTRATOR)).json
    assert gone["ok"] is False
    assert gone["reason"]
    stranger = await server.ask("POST", f"/hooks/{hook['id']}/test", token=OTHER_USER)
    assert stranger.status == 403
