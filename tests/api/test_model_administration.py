"""Models over the API: what is stored, what is refused, and which one is the default."""

from collections.abc import AsyncGenerator
from uuid import UUID

import msgspec
import pytest
from msgspec import Struct, field

from tests.support.api.server import (
    ADMINISTRATOR,
    ApiOptions,
    ApiReply,
    ApiServer,
    message_body,
    serve_api,
)

LOCAL = {"name": "local", "kind": "openai-compat", "base_url": "http://127.0.0.1:1/v1"}
QWEN = {"name": "qwen", "provider": "local", "model": "qwen3:8b"}


@pytest.fixture
async def server(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn, ApiOptions(models=None)) as server:
        assert (await ask(server, "POST", "/providers", LOCAL)).status == 201
        yield server


async def ask(server: ApiServer, method: str, path: str, body: object = None) -> ApiReply:
    return await server.ask(method, path, body, token=ADMINISTRATOR)


async def create(server: ApiServer, **fields: object) -> str:
    made = await ask(server, "POST", "/models", {**QWEN, **fields})
    assert made.status == 201, made.content
    return str(made.json["id"])


async def default(server: ApiServer) -> str:
    [found] = [one["name"] for one in (await ask(server, "GET", "/models")).items
               if one["is_default"]]  # fmt: skip
    return str(found)


async def test_a_model_is_stored_with_all_its_fields(server: ApiServer) -> None:
    fields = {
        "display_name": "Qwen",
        "context_limit": 32768,
        "compaction_threshold": 60,
        "max_output_tokens": 4096,
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 40,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "reasoning_effort": {"default": "low", "max": "high"},
        "prices": {"input": "0.10", "output": "2"},
        "options": {"think_tags": False},
        "capabilities": {"images": True},
    }
    made = await ask(server, "POST", "/models", {**QWEN, **fields})
    shown = (await ask(server, "GET", f"/models/{made.json['id']}")).json
    assert made.json == shown
    expected = fields | {
        "prices": {"input": "0.1", "output": "2"},
        "capabilities": {"images": True, "context_limit": 32768},
    }
    assert {name: shown[name] for name in fields} == expected
    assert (shown["source"], shown["provider"], shown["enabled"]) == ("database", "local", True)


async def test_a_fallback_is_named_with_its_reasons_and_follows_a_new_name(
    server: ApiServer,
) -> None:
    other = await ask(server, "POST", "/models", {**QWEN, "name": "other"})
    chain = [{"model": "other", "on": ["outage", "context"]}, {"model": "demo"}]
    made = await ask(server, "POST", "/models", {**QWEN, "fallbacks": chain})
    every = ["outage", "overload", "access", "refusal", "context"]
    assert made.json["fallbacks"] == [chain[0], {"model": "demo", "on": every}]
    await ask(server, "PATCH", f"/models/{other.json['id']}", {"name": "renamed"})
    path = f"/models/{made.json['id']}"
    renamed = [{**chain[0], "model": "renamed"}, {"model": "demo", "on": every}]
    assert (await ask(server, "GET", path)).json["fallbacks"] == renamed
    assert "fallbacks" not in (await ask(server, "PATCH", path, {"fallbacks": []})).json


async def test_an_effort_is_given_as_a_word_or_with_its_maximum(server: ApiServer) -> None:
    made = await ask(server, "POST", "/models", {**QWEN, "reasoning_effort": "low"})
    assert made.json["reasoning_effort"] == {"default": "low", "max": None}
    path = f"/models/{made.json['id']}"
    wider = {"reasoning_effort": {"default": "low", "max": "high"}}
    changed = await ask(server, "PATCH", path, wider)
    assert changed.json["reasoning_effort"] == wider["reasoning_effort"]


async def test_an_effort_for_a_model_that_takes_none_is_refused_with_its_code(
    server: ApiServer,
) -> None:
    """When it is configured, and by each request that asks for it."""
    plain = {"name": "plain", "provider": "local", "model": "gpt-4o"}
    refused = await ask(server, "POST", "/models", {**plain, "reasoning_effort": "low"})
    assert (refused.status, refused.field) == (400, "reasoning_effort")
    assert (await ask(server, "POST", "/models", plain)).status == 201
    await create(server)
    hello = message_body("hello", model="plain")
    schedule = {"name": "n", "cron": "@daily", "prompt": "hello", "model": "plain"}
    chat = (await ask(server, "POST", "/chats", hello)).json["id"]
    high = {"reasoning_effort": "high"}
    for path, body in (
        ("/chats", hello),
        (f"/chats/{chat}/messages", message_body("more")),
        ("/schedules", schedule),
    ):
        refused = await ask(server, "POST", path, {**body, **high})
        assert refused.code == (400, "effort_not_supported"), refused.content
        assert "the model plain takes no reasoning effort" in str(refused.json["message"])
    other = await ask(server, "POST", "/chats", message_body("hello", model="qwen", **high))
    assert other.status == 201


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"provider": "lokal"}, "provider"),
        ({"model": ""}, "model"),
        ({"context_limit": 0}, "context_limit"),
        ({"compaction_threshold": 101}, "compaction_threshold"),
        ({"temperature": 3}, "temperature"),
        ({"prices": {"input": "-1"}}, "prices.input"),
        ({"prices": {"input": "1", "inputs": "2"}}, "prices.inputs"),
        ({"reasoning_effort": {"default": "huge"}}, "reasoning_effort.default"),
        ({"reasoning_effort": {"default": "max", "max": "low"}}, "reasoning_effort"),
        ({"options": {"thinking": 1}}, "options.thinking"),
        ({"options": []}, "options"),
        ({"capabilities": {"images": "yes"}}, "capabilities.images"),
        ({"enabled": False, "is_default": True}, "is_default"),
        ({"colour": "red"}, "colour"),
        ({"fallbacks": [{"model": "nobody"}]}, "fallbacks"),
        ({"fallbacks": [{"model": "qwen"}]}, "fallbacks"),
        ({"fallbacks": [{"model": "demo", "on": ["rain"]}]}, "fallbacks[0].on[0]"),
    ],
)
async def test_an_invalid_model_is_refused_by_its_field(
    server: ApiServer, fields: dict[str, object], field: str
) -> None:
    refused = await ask(server, "POST", "/models", {**QWEN, **fields})
    assert (refused.status, refused.field) == (400, field), refused.content
    made = await create(server)
    changed = await ask(server, "PATCH", f"/models/{made}", fields)
    assert (changed.status, changed.field) == (400, field), changed.content


async def test_exactly_one_model_is_the_default(server: ApiServer) -> None:
    assert await default(server) == "demo"
    first = await create(server)
    assert await default(server) == "qwen", "the first model takes the place of the demo model"
    second = await create(server, name="second")
    assert await default(server) == "qwen"
    await ask(server, "PATCH", f"/models/{second}", {"is_default": True})
    assert await default(server) == "second"
    await ask(server, "PATCH", f"/models/{second}", {"is_default": False})
    assert await default(server) == "qwen"
    await ask(server, "PATCH", f"/models/{first}", {"enabled": False})
    assert await default(server) == "second"
    await ask(server, "DELETE", f"/models/{second}")
    assert await default(server) == "demo"


async def test_a_change_keeps_what_it_does_not_name_and_null_removes(server: ApiServer) -> None:
    made = await create(server, temperature=0.5, prices={"input": "1"}, display_name="Qwen")
    path = f"/models/{made}"
    changed = (await ask(server, "PATCH", path, {"temperature": None, "name": "q"})).json
    assert "temperature" not in changed
    assert (changed["name"], changed["display_name"]) == ("q", "Qwen")
    assert changed["prices"] == {"input": "1"}


async def test_a_deleted_model_keeps_its_row_and_frees_its_name(server: ApiServer) -> None:
    made = await create(server)
    chat = await server.create(model="qwen")
    assert (await ask(server, "DELETE", f"/models/{made}")).status == 204
    assert (await ask(server, "DELETE", f"/models/{made}")).code == (404, "not_found")
    old = (await ask(server, "GET", f"/models/{made}")).json
    assert (old["deleted"], old["enabled"]) == (True, False)
    assert str((await server.chat(chat)).model_config_id) == made
    assert await create(server) != made
    refused = await ask(server, "POST", "/models", QWEN)
    assert refused.code == (409, "name_taken")


async def test_a_model_of_the_settings_is_read_only(server: ApiServer) -> None:
    [demo] = [one for one in (await ask(server, "GET", "/models")).items if one["name"] == "demo"]
    for method, body in (("PATCH", {"enabled": False}), ("DELETE", None)):
        refused = await ask(server, method, f"/models/{demo['id']}", body)
        assert refused.code == (409, "managed_by_settings")
    assert (await ask(server, "POST", "/models", {**QWEN, "name": "demo"})).code == (
        409,
        "managed_by_settings",
    )
    missing = await ask(server, "PATCH", f"/models/{UUID(int=9)}", {"enabled": False})
    assert missing.code == (404, "not_found")


class OneSchema(Struct):
    properties: dict[str, dict[str, object]]
    additionalProperties: bool = True  # noqa: N815


class OptionsSchema(Struct):
    properties: dict[str, object]
    definitions: dict[str, OneSchema] = field(name="$defs")


async def test_the_schema_of_the_options_describes_every_kind(server: ApiServer) -> None:
    found = await server.ask("GET", "/model-options/schema")
    schema = msgspec.json.decode(found.content, type=OptionsSchema)
    assert {"anthropic", "openai", "google", "openai-compat"} <= schema.properties.keys()
    anthropic = schema.definitions["AnthropicOptions"]
    assert anthropic.additionalProperties is False
    assert anthropic.properties["web_search_enabled"]["description"]


async def test_models_of_tasks_are_chosen_by_name(server: ApiServer) -> None:
    made = await create(server)
    none = dict.fromkeys(("title", "compaction", "general", "explore", "computer_use"))
    assert (await ask(server, "GET", "/model-overrides")).json == none
    chosen = await ask(server, "PATCH", "/model-overrides", {"title": "qwen"})
    assert chosen.json == {**none, "title": "qwen"}
    unknown = await ask(server, "PATCH", "/model-overrides", {"compaction": "nope"})
    assert (unknown.status, unknown.field) == (400, "compaction")
    await ask(server, "DELETE", f"/models/{made}")
    assert (await ask(server, "GET", "/model-overrides")).json == none
