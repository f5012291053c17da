"""The client's structs against the API's description: names, and a value that fits."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec
import pytest
from msgspec import Struct

import chatd.client
from chatd.api.openapi.schemas import build_example
from chatd.client import drafts, frames
from chatd.client.resources import Page
from tools.openapi import openapi_document

Json = dict[str, Any]

SENT = {
    drafts.SendBody: "SendMessageBody",
    drafts.CreateBody: "CreateChatBody",
    drafts.TextInput: "InputText",
    drafts.FileInput: "InputFile",
    drafts.FileReferenceInput: "InputFileReference",
    frames.Subscribe: "Subscribe",
    frames.Unsubscribe: "Unsubscribe",
    frames.Ping: "Ping",
}
RECEIVED = {
    frames.Subscribed: "Subscribed",
    frames.Unsubscribed: "Unsubscribed",
    frames.Refused: "SubscribeRefused",
    frames.ListReady: "ChatListReady",
    frames.ChatChanged: "ChatListEvent",
    frames.ChatRemoved: "ChatListRemoved",
    frames.SpendWarning: "SpendWarningEvent",
}


def structs_of(module: str) -> Iterator[type[Struct]]:
    for found in vars(import_module(module)).values():
        if isinstance(found, type) and issubclass(found, Struct) and found.__module__ == module:
            yield found


def resources() -> dict[type[Struct], str]:
    modules = [one.name for one in pkgutil.iter_modules(chatd.client.__path__)]
    found = [
        struct
        for name in modules
        if name.endswith("resources")
        for struct in structs_of(f"chatd.client.{name}")
        if struct is not Page
    ]
    return {struct: vars(struct).get("api_name", "") for struct in found}


ALL = resources() | RECEIVED | SENT


@pytest.fixture(scope="module")
def schemas() -> dict[str, Json]:
    return msgspec.json.decode(openapi_document())["components"]["schemas"]


@pytest.mark.parametrize("struct", ALL, ids=lambda struct: struct.__name__)
def test_every_field_is_one_of_the_api(struct: type[Struct], schemas: dict[str, Json]) -> None:
    assert ALL[struct], f"{struct.__name__} has no api_name of its own"
    known = set(schemas[ALL[struct]]["properties"])
    assert {field.encode_name for field in msgspec.structs.fields(struct)} - known == set()


@pytest.mark.parametrize("struct", {**resources(), **RECEIVED}, ids=lambda one: one.__name__)
def test_the_apis_own_example_is_understood(struct: type[Struct], schemas: dict[str, Json]) -> None:
    example = build_example(schemas[ALL[struct]], schemas)
    assert isinstance(msgspec.json.decode(msgspec.json.encode(example), type=struct), struct)


@pytest.mark.parametrize("struct", resources(), ids=lambda one: one.__name__)
def test_only_ids_and_what_carries_them_are_required(struct: type[Struct]) -> None:
    """So that a server of another version is understood."""
    required = {one.name for one in msgspec.structs.fields(struct) if one.required}
    assert required <= {"id", "chat_id", "user", "items"}


def test_a_page_has_the_fields_of_every_list(schemas: dict[str, Json]) -> None:
    names = {field.name for field in msgspec.structs.fields(Page)}
    pages = [one for name, one in schemas.items() if name.endswith("Page")]
    assert len(pages) > 10
    assert all(names <= set(page["properties"]) for page in pages)
