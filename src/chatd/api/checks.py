"""What is wrong with what a client sent, beyond its types. Pure; raises InvalidInput.

Text that a column cannot hold is refused here. The text of messages may hold anything.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from chatd.api.wire import (
    ClientTool,
    InputFile,
    InputFileReference,
    InputPart,
    InputText,
    ToolResultIn,
)
from chatd.domain.chat.commands import ClientResult
from chatd.domain.chat.parts import FileReferencePart, Json, Part, TextPart, validate_json
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ToolCallId, WorkspaceId
from chatd.domain.model.protocol import ToolSpec

MAX_TITLE: Final = 200
MAX_LABELS: Final = 50
MAX_LABEL_KEY: Final = 64
MAX_LABEL_VALUE: Final = 256
MAX_KEY: Final = 255

_LABEL_KEY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/-]*")


def content(parts: Sequence[InputPart]) -> tuple[Part, ...]:
    return tuple(_part(part, f"content[{index}]") for index, part in enumerate(parts))


def _part(part: InputPart, where: str) -> Part:
    match part:
        case InputText(text=text):
            return TextPart(text=text.strip())
        case InputFile():
            raise InvalidInput(f"{where}.file_id", "there is no such file")
        case InputFileReference():
            if part.end_line < part.start_line:
                raise InvalidInput(f"{where}.end_line", "it is before the start")
            return FileReferencePart(
                file_name=part.file_name,
                start_line=part.start_line,
                end_line=part.end_line,
                content=part.content,
            )


def title(text: str) -> str:
    trimmed = text.strip()
    if not 0 < len(trimmed) <= MAX_TITLE:
        raise InvalidInput("title", f"must have 1 to {MAX_TITLE} characters")
    return _storable("title", trimmed)


def labels(wanted: Mapping[str, str]) -> Mapping[str, str]:
    if len(wanted) > MAX_LABELS:
        raise InvalidInput("labels", f"at most {MAX_LABELS} labels")
    for key, value in wanted.items():
        if len(key) > MAX_LABEL_KEY or not _LABEL_KEY.fullmatch(key):
            raise InvalidInput(
                "labels",
                f"a key has 1 to {MAX_LABEL_KEY} letters, digits or . _ / -, and begins with"
                " a letter or digit",
            )
        if not 0 < len(value.encode()) <= MAX_LABEL_VALUE:
            raise InvalidInput("labels", f"the value of {key} must have 1 to 256 bytes")
        _storable("labels", value)
    return wanted


def label_filter(terms: Sequence[str]) -> Mapping[str, str]:
    """Terms of a query, each `key:value`."""
    wanted: dict[str, str] = {}
    for term in terms:
        key, colon, value = term.partition(":")
        if not colon:
            raise InvalidInput("label", "must be key:value")
        if wanted.setdefault(key, value) != value:
            raise InvalidInput("label", f"{key} cannot have two values")
    try:
        return labels(wanted)
    except InvalidInput as error:
        raise InvalidInput("label", error.detail) from None


def archived_filter(query: str | None) -> bool:
    match (query or "").split():
        case [] | ["archived:false"]:
            return False
        case ["archived:true"]:
            return True
        case _:
            raise InvalidInput("q", "only archived:true and archived:false are understood")


def client_tools(tools: Sequence[ClientTool]) -> Json:
    """As they are kept in the row."""
    if not tools:
        return UNSET
    names = [_one_line("client_tools", tool.name) for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidInput("client_tools", "two tools have the same name")
    specs = [
        ToolSpec(name=tool.name, description=tool.description, input_schema=_schema(tool, index))
        for index, tool in enumerate(tools)
    ]
    return Raw(msgspec.json.encode(specs))


def _schema(tool: ClientTool, index: int) -> Raw:
    where = f"client_tools[{index}].input_schema"
    schema = _json(tool.input_schema, where)
    value = msgspec.json.decode(schema)
    if not isinstance(value, dict):
        raise InvalidInput(where, "must be a JSON object")
    declared = msgspec.convert(value, dict[str, object]).get("type", "object")
    if declared != "object":
        raise InvalidInput(where, "must be the schema of an object")
    return schema


def tool_results(results: Sequence[ToolResultIn]) -> tuple[ClientResult, ...]:
    return tuple(
        ClientResult(
            tool_call_id=ToolCallId(result.tool_call_id),
            output=bytes(_json(result.output, f"results[{index}].output")).decode(),
            is_error=result.is_error,
        )
        for index, result in enumerate(results)
    )


def _json(raw: Raw, where: str) -> Raw:
    try:
        return validate_json(bytes(raw).decode())
    except UnicodeDecodeError:
        raise InvalidInput(where, "is not UTF-8 text") from None
    except ValueError as error:
        raise InvalidInput(where, str(error)) from None


def system_prompt(text: str | None) -> str | None:
    return (text or "").strip() or None


def mode(name: str | None) -> str | None:
    return None if name is None else _one_line("mode", name)


def no_mcp_servers(ids: Sequence[UUID] | None) -> None:
    if ids:
        missing = ", ".join(str(server) for server in ids)
        raise InvalidInput("mcp_server_ids", f"there are no such servers: {missing}")


def workspace_id(wanted: UUID | None) -> WorkspaceId | None:
    """Zeros stand for none, for clients that cannot send null."""
    return WorkspaceId(wanted) if wanted is not None and wanted.int else None


def parameters(given: Mapping[str, str]) -> Mapping[str, str]:
    for name in given:
        _storable("parameters", name)
    return given


def idempotency_key(value: str) -> str:
    if not 0 < len(value) <= MAX_KEY:
        raise InvalidInput("Idempotency-Key", f"must have 1 to {MAX_KEY} characters")
    return value


def _one_line(field: str, name: str) -> str:
    """A pattern that ends in `$` lets a line break pass."""
    if "\n" in name:
        raise InvalidInput(field, "must not contain a line break")
    return name


def _storable(field: str, text: str) -> str:
    if "\0" in text:
        raise InvalidInput(field, "must not contain the character NUL")
    return text
