"""Builds over HTTP: created, cancelled, and their logs read and streamed."""

import asyncio
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from chatd.store.workspace import builds
from chatd.store.workspace.builds import BuildLogLine
from tests.api.workspace_api import HERE, WorkspaceApi, end_build, first_build
from tests.support.api.server import Json
from tests.support.api.sse_viewer import event_source
from tests.support.outcomes import present
from tests.support.workspaces import hold, wanted


async def take(api: WorkspaceApi) -> builds.BuildLease:
    [taken] = await builds.acquire_builds(api.pool, wanted(hosts=(HERE,)))
    return hold(taken.build)


async def say(api: WorkspaceApi, held: builds.BuildLease, *words: str) -> None:
    lines = [BuildLogLine(stage="seed", level="info", output=text) for text in words]
    await builds.append_log(api.pool, held, lines)


async def test_builds_stop_start_and_delete_a_workspace(api: WorkspaceApi) -> None:
    made = await api.make()
    await end_build(api)
    numbers: list[object] = []
    for transition in ("stop", "start", "delete"):
        asked = await api.build(made, transition)
        assert asked.status == 201, asked.content
        assert asked.headers["location"] == f"/api/v1/builds/{asked.json['id']}"
        assert (asked.json["transition"], asked.json["status"]) == (transition, "pending")
        numbers.append(asked.json["build_number"])
        await end_build(api)
    assert numbers == [2, 3, 4]
    assert api.control.woken == 4
    assert (await api.build(made, "start")).code == (409, "workspace_deleted")

    listed = await api.ask("GET", f"/workspaces/{made['id']}/builds?limit=3")
    assert [one["build_number"] for one in listed.items] == [4, 3, 2]
    rest = await api.ask("GET", f"/workspaces/{made['id']}/builds?cursor={listed.cursor}")
    assert [one["build_number"] for one in rest.items] == [1]
    one = await api.ask("GET", f"/builds/{rest.items[0]['id']}")
    assert one.json == rest.items[0]
    assert not {"worker_id", "heartbeat_at"} & one.json.keys()


async def test_a_build_without_effect_or_during_another_is_a_conflict(api: WorkspaceApi) -> None:
    made = await api.make()
    for transition in ("start", "stop", "delete"):
        assert (await api.build(made, transition)).code == (409, "build_active")
    await end_build(api)
    assert (await api.build(made, "start")).code == (409, "nothing_to_do")
    assert (await api.build(made, "stop")).status == 201
    await end_build(api)
    assert (await api.build(made, "stop")).code == (409, "nothing_to_do")


async def test_of_many_concurrent_requests_one_creates_a_build(api: WorkspaceApi) -> None:
    made = await api.make()
    await end_build(api)
    asked = await asyncio.gather(*(api.build(made, "stop") for _ in range(6)))
    assert sorted(one.status for one in asked) == [201] + [409] * 5
    assert {one.code for one in asked if one.status == 409} == {(409, "build_active")}


async def test_a_repeated_key_creates_one_build(api: WorkspaceApi) -> None:
    made = await api.make()
    await end_build(api)
    path, key = f"/workspaces/{made['id']}/builds", {"Idempotency-Key": "k"}
    asked = await asyncio.gather(
        *(api.ask("POST", path, {"transition": "stop"}, headers=key) for _ in range(4))
    )
    assert {one.status for one in asked} == {201}
    assert len({str(one.json["id"]) for one in asked}) == 1
    await end_build(api)
    again = await api.ask("POST", path, {"transition": "stop"}, headers=key)
    assert (again.json["status"], again.headers["idempotency-replayed"]) == ("succeeded", "true")
    other = await api.ask("POST", path, {"transition": "start"}, headers=key)
    assert other.code == (409, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "transition"),
        ({"transition": "restart"}, "transition"),
        ({"transition": "stop", "parameters": {"a": "b"}}, "parameters"),
        ({"transition": "start", "parameters": {"a": "b"}}, "parameters.a"),
        ({"transition": "stop", "force": True}, "force"),
    ],
)
async def test_an_invalid_build_is_refused(api: WorkspaceApi, body: Json, field: str) -> None:
    made = await api.make()
    await end_build(api)
    if body.get("transition") == "start":
        await api.build(made, "stop")
        await end_build(api)
    refused = await api.ask("POST", f"/workspaces/{made['id']}/builds", body)
    assert (refused.code, refused.field) == ((400, "invalid_input"), field)


async def test_a_pending_build_is_cancelled_at_once_and_a_running_one_later(
    api: WorkspaceApi,
) -> None:
    made = await api.make()
    first = first_build(made)["id"]
    cancelled = await api.ask("POST", f"/builds/{first}/cancel")
    assert (cancelled.status, cancelled.json["status"]) == (200, "canceled")
    assert (await api.ask("POST", f"/builds/{first}/cancel")).status == 200
    second = (await api.build(made, "start")).json["id"]
    held = await take(api)
    for _ in range(2):
        asked = await api.ask("POST", f"/builds/{second}/cancel")
        assert (asked.status, asked.json["status"]) == (200, "canceling")
    await builds.finish_build(api.pool, held, builds.BuildResult(status="canceled"))
    third = (await api.build(made, "start")).json["id"]
    await end_build(api)
    assert (await api.ask("POST", f"/builds/{third}/cancel")).code == (409, "build_ended")


async def test_a_build_log_is_paged(api: WorkspaceApi) -> None:
    build = first_build(await api.make())["id"]
    held = await take(api)
    await say(api, held, "one", "two", "three")
    page = await api.ask("GET", f"/builds/{build}/logs?limit=2")
    assert (page.json["has_more"], page.json["ended"]) == (True, False)
    rest = await api.ask("GET", f"/builds/{build}/logs?cursor={page.cursor}")
    assert [one["output"] for one in rest.items] == ["three"]
    await builds.finish_build(api.pool, held, builds.BuildResult(status="failed", error="no"))
    last = await api.ask("GET", f"/builds/{build}/logs?after_id={rest.items[-1]['id']}")
    assert last.json == {"items": [], "has_more": False, "next_cursor": None, "ended": True}


async def test_a_build_log_streams_to_its_end_and_resumes_at_any_line(api: WorkspaceApi) -> None:
    build = first_build(await api.make())["id"]
    held = await take(api)
    await say(api, held, "one", "two")
    path = f"/builds/{build}/logs?follow=true"
    async with event_source(api.server, path) as source:
        first = present(await source.event())
        assert first.id is not None
    async with event_source(api.server, path, last_id=first.id) as source:
        assert (await source.json())["output"] == "two"
        await say(api, held, "three")
        assert (await source.json())["output"] == "three"
        await say(api, held, "four")
        await builds.finish_build(
            api.pool, held, builds.BuildResult(status="failed", error="broken")
        )
        assert (await source.json())["output"] == "four"
        ended = present(await source.event())
        assert (ended.event, b'"error":"broken"' in ended.data) == ("build", True)
        end = present(await source.event())
        assert (end.event, b"build_ended" in end.data) == ("end", True)
        assert await source.event() is None


async def test_the_events_of_a_build_log_are_as_described(api: WorkspaceApi) -> None:
    document = (await api.server.open_page("/api/v1/openapi.json")).json
    described = msgspec.convert(document["paths"], dict[str, dict[str, Any]], strict=False)[
        "/api/v1/builds/{build_id}/logs"
    ]["get"]["responses"]["200"]["content"]
    variants = {
        one["properties"]["event"]["const"]: one["properties"]["data"]["contentSchema"]
        for one in described["text/event-stream"]["schema"]["oneOf"]
    }
    build = first_build(await api.make())["id"]
    held = await take(api)
    await say(api, held, "one")
    await builds.finish_build(api.pool, held, builds.BuildResult(status="failed", error="broken"))
    seen: list[str] = []
    async with event_source(api.server, f"/builds/{build}/logs?follow=true") as source:
        while event := await source.event():
            schema = variants[event.event or "message"] | {"components": document["components"]}
            jsonschema_rs.Draft202012Validator(schema).validate(msgspec.json.decode(event.data))
            seen.append(event.event or "message")
    assert seen == ["message", "build", "end"]


async def test_the_accept_header_selects_a_stream(api: WorkspaceApi) -> None:
    build = first_build(await api.make())["id"]
    cancelled = await api.ask("POST", f"/builds/{build}/cancel")
    assert cancelled.status == 200
    stream = await api.ask("GET", f"/builds/{build}/logs", headers={"Accept": "text/event-stream"})
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert b"event: build\n" in stream.content
    for wrong in ("after_id=x", "after_id=-1", "follow=maybe", "limit=0"):
        refused = await api.ask("GET", f"/builds/{build}/logs?{wrong}")
        assert refused.code == (400, "invalid_input")
    header = {"Accept": "text/event-stream", "Last-Event-ID": "x"}
    refused = await api.ask("GET", f"/builds/{build}/logs", headers=header)
    assert (refused.code, refused.field) == ((400, "invalid_input"), "Last-Event-ID")
