"""The OpenAPI document describes everything that a client can send and receive, with an example."""

import ast
from collections.abc import Generator, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

import jsonschema_rs
import pytest

import chatd
from chatd.api.error_codes import ERROR_CODES
from chatd.api.errors import error_reply
from chatd.domain.errors import ChatdError
from tests.support.api.server import ApiServer, Json

METHODS = {"get", "put", "post", "patch", "delete"}
UNDESCRIBED: frozenset[str] = frozenset()
"""Names of operations and types that are not described yet. It may only shrink."""


@pytest.fixture
async def document(server: ApiServer) -> Json:
    return (await server.open_page("/api/v1/openapi.json")).json


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for methods in cast("dict[str, dict[str, Json]]", document["paths"]).values():
        assert methods.keys() <= METHODS
        for operation in methods.values():
            yield str(operation["operationId"]), operation


def section(document: Json, name: str) -> dict[str, Json]:
    return cast("dict[str, dict[str, Json]]", document["components"])[name]


def missing_in_operation(operation: Json) -> Generator[str]:
    for name in ("summary", "description"):
        if not operation.get(name):
            yield name
    for parameter in cast("list[Json]", operation["parameters"]):
        schema = cast("Json", parameter["schema"])
        if not parameter.get("description") or (
            "example" not in parameter | schema_example(schema)
        ):
            yield f"description or example of the parameter {parameter['name']}"
    replies = cast("dict[str, Json]", operation["responses"])
    holders = {f"reply {status}": reply for status, reply in replies.items()}
    if "requestBody" in operation:
        holders["body"] = cast("Json", operation["requestBody"])
    for where, holder in holders.items():
        yield from (f"{what} of the {where}" for what in missing_in_reply(holder))


def schema_example(schema: Json) -> Json:
    found = cast("list[object]", schema.get("examples", []))
    return {"example": found[0]} if found else {}


def missing_in_reply(holder: Json) -> Generator[str]:
    if "$ref" in holder:
        return
    if not holder.get("description"):
        yield "description"
    for kind, media in cast("dict[str, Json]", holder.get("content", {})).items():
        binary = cast("Json", media["schema"]).get("format") == "binary"
        if not binary and not media.keys() & {"example", "examples"}:
            yield f"example ({kind})"
        for name, event in cast("dict[str, Json]", media.get("x-events", {})).items():
            if not all(event.get(what) for what in ("description", "example", "schema")):
                yield f"description or example of the event {name}"
    for name, header in cast("dict[str, Json]", holder.get("headers", {})).items():
        if not header.keys() >= {"description", "example", "schema"}:
            yield f"description or example of the header {name}"


async def test_every_operation_and_its_parts_have_a_description_and_an_example(
    document: Json,
) -> None:
    missing = {
        name: found
        for name, operation in operations(document)
        if (found := list(missing_in_operation(operation))) and name not in UNDESCRIBED
    }
    assert missing == {}
    for name, reply in section(document, "responses").items():
        assert list(missing_in_reply(reply)) == [], name


async def test_every_type_and_field_has_a_description_and_an_example(document: Json) -> None:
    missing: dict[str, list[str]] = {}
    for name, schema in section(document, "schemas").items():
        fields = cast("dict[str, Json]", schema.get("properties", {}))
        found = [field for field, inner in fields.items() if not inner.get("description")]
        found += [what for what in ("description", "examples") if not schema.get(what)]
        if found and name not in UNDESCRIBED:
            missing[name] = found
    assert missing == {}


async def test_the_list_of_what_is_not_described_holds_nothing_else(document: Json) -> None:
    known = {name for name, _ in operations(document)} | section(document, "schemas").keys()
    assert known >= UNDESCRIBED


async def test_websocket_frames_are_described(document: Json) -> None:
    socket = next(one for name, one in operations(document) if name == "socket")
    frames = cast("dict[str, dict[str, Json]]", socket["x-websocket"])
    assert {"subscribe", "unsubscribe", "ping"} == frames["client"].keys()
    assert {"subscribed", "unsubscribed", "refused", "pong"} == frames["server"].keys()
    assert {"status", "message", "message_part", "version", "ready", "chat"} <= frames[
        "events"
    ].keys()
    for direction in frames.values():
        for name, frame in direction.items():
            assert all(frame.get(what) for what in ("description", "example", "schema")), name


async def test_the_document_has_tags_servers_and_a_security_scheme(document: Json) -> None:
    tags = {str(tag["name"]) for tag in cast("list[Json]", document["tags"])}
    used = {tag for _, one in operations(document) for tag in cast("list[str]", one["tags"])}
    assert used == tags
    assert document["servers"]
    assert all(scheme["description"] for scheme in section(document, "securitySchemes").values())


# Examples are valid


def examples(document: Json) -> Iterator[tuple[str, Json, object]]:
    """Where it is, its schema, and the example."""
    for name, schema in section(document, "schemas").items():
        for example in cast("list[object]", schema.get("examples", [])):
            yield name, schema, example
        for field, inner in cast("dict[str, Json]", schema.get("properties", {})).items():
            for example in cast("list[object]", inner.get("examples", [])):
                yield f"{name}.{field}", inner, example
    for name, operation in operations(document):
        for parameter in cast("list[Json]", operation["parameters"]):
            schema = cast("Json", parameter["schema"])
            example = (parameter | schema_example(schema))["example"]
            yield f"{name}: {parameter['name']}", schema, example
        for where, schema, example in media_examples(operation):
            yield f"{name}: {where}", schema, example


def media_examples(operation: Json) -> Iterator[tuple[str, Json, object]]:
    holders = [*cast("dict[str, Json]", operation["responses"]).values()]
    holders.append(cast("Json", operation.get("requestBody", {})))
    for holder in holders:
        for kind, media in cast("dict[str, Json]", holder.get("content", {})).items():
            schema = cast("Json", media["schema"])
            if "example" in media:
                yield kind, schema, media["example"]
            for code, one in cast("dict[str, Json]", media.get("examples", {})).items():
                yield code, schema, one["value"]
            for name, event in cast("dict[str, Json]", media.get("x-events", {})).items():
                yield name, cast("Json", event["schema"]), event["example"]
    for direction in cast("dict[str, dict[str, Json]]", operation.get("x-websocket", {})).values():
        for name, frame in direction.items():
            yield name, cast("Json", frame["schema"]), frame["example"]


async def test_every_example_is_valid_by_its_schema(document: Json) -> None:
    found = list(examples(document))
    schemas = {f"{number} {where}": schema for number, (where, schema, _) in enumerate(found)}
    root = {"components": document["components"], "type": "object", "properties": schemas}
    validator = jsonschema_rs.Draft202012Validator(root, validate_formats=True)
    values = {name: one[2] for name, one in zip(schemas, found, strict=True)}
    wrong = [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(values)]
    assert wrong == []
    assert len(found) > 700


# Error codes


@cache
def error_classes() -> dict[str, type[ChatdError]]:
    """All errors that become a reply below 500 or 503, by class name."""
    found: dict[str, type[ChatdError]] = {}
    pending: list[type[ChatdError]] = [ChatdError]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__module__.startswith("chatd.") and ".bench." not in kind.__module__:
            bare = kind.__new__(kind)
            bare.message, bare.args = "", ()
            if error_reply_status(bare) != 500:
                found[kind.__name__] = kind
    return found


def error_reply_status(error: ChatdError) -> int:
    try:
        return error_reply(error).status
    except AttributeError:  # it lacks what its constructor sets
        return 0


def raised_codes() -> Iterator[tuple[str, str]]:
    """The codes in calls such as `Conflict("...", code="name_taken")`, and where they are."""
    root, kinds = Path(str(resources.files(chatd))), error_classes()
    for path in sorted(root.rglob("*.py")):
        if path.parts[len(root.parts)] in ("agent", "bench", "pg", "cli", "providers", "settings"):
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "code=" in text else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in kinds:
                continue
            for keyword in node.keywords:
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), f"{path.name}:{node.lineno}"


STARTUP_CODES = {
    *("database_too_old", "settings", "client_disconnected", "migration_busy"),
    *("not_empty", "backup_too_new", "foreign_backup"),
}
"""Raised before the server serves, by chatd restore, or when there is no client to reply to."""


async def test_every_code_that_is_raised_is_in_the_table(server: ApiServer) -> None:
    del server  # its modules define the errors
    raised = dict(raised_codes()) | {kind.code: name for name, kind in error_classes().items()}
    missing = {code: where for code, where in raised.items() if code not in ERROR_CODES}
    assert missing.keys() - STARTUP_CODES == set(), missing


async def test_the_table_has_the_status_that_is_sent(server: ApiServer) -> None:
    del server  # its modules define the errors
    for name, kind in error_classes().items():
        bare = kind.__new__(kind)
        bare.message, bare.args = "", ()
        status = error_reply_status(bare)
        if kind.code in ERROR_CODES and status:
            assert ERROR_CODES[kind.code].status == status, name


def test_every_code_has_a_meaning_and_a_remedy() -> None:
    for code, error in ERROR_CODES.items():
        assert error.meaning.endswith("."), code
        assert error.remedy.endswith("."), code


UNLISTED = {"bad_request", "method_not_allowed"}
"""Codes of every path, and the bases of more exact ones."""


async def test_every_code_in_the_table_is_listed_by_an_operation(document: Json) -> None:
    listed: set[str] = set()
    replies = [
        *section(document, "responses").values(),
        *(
            reply
            for _, operation in operations(document)
            for reply in cast("dict[str, Json]", operation["responses"]).values()
        ),
    ]
    for reply in replies:
        for media in cast("dict[str, Json]", reply.get("content", {})).values():
            listed |= cast("dict[str, Json]", media.get("examples", {})).keys()
    assert ERROR_CODES.keys() - listed == UNLISTED
