"""Checks of request values beyond their types. Pure; raises InvalidInput.

Refuses text that a database column cannot store. The text of messages may contain anything.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from chatd.api.schemas.chats import ClientTool
from chatd.api.schemas.messages import (
    InputCommand,
    InputFile,
    InputFileReference,
    InputPart,
    InputText,
    ToolResultIn,
)
from chatd.domain.chat.commands import ClientResult
from chatd.domain.chat.parts import (
    CommandPart,
    FilePart,
    FileReferencePart,
    Part,
    TextPart,
    validate_json,
)
from chatd.domain.deployment.runtime_settings import clean_prompt
from chatd.domain.errors import InvalidInput
from chatd.domain.files import StoredFile
from chatd.domain.ids import FileId, ToolCallId, WorkspaceId
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.text import Json

MAX_TITLE_CHARS: Final = 200
MAX_LABELS: Final = 50
MAX_LABEL_KEY_CHARS: Final = 64
MAX_LABEL_VALUE_BYTES: Final = 256
MAX_IDEMPOTENCY_KEY_CHARS: Final = 255

_LABEL_KEY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/-]*")


def check_content(
    parts: Sequence[InputPart], files: Mapping[FileId, StoredFile]
) -> tuple[Part, ...]:
    """`files` are those of the named ones that exist and that the caller may name."""
    if len(parts) > 1 and any(isinstance(part, InputCommand) for part in parts):
        raise InvalidInput("content", "a command is the only part of its message")
    return tuple(_part(part, f"content[{index}]", files) for index, part in enumerate(parts))


def list_named_files(parts: Sequence[InputPart]) -> list[FileId]:
    return [FileId(part.file_id) for part in parts if isinstance(part, InputFile)]


def _part(part: InputPart, where: str, files: Mapping[FileId, StoredFile]) -> Part:
    match part:
        case InputText(text=text):
            return TextPart(text=text.strip())
        case InputFile():
            file = files.get(FileId(part.file_id))
            if file is None:
                raise InvalidInput(f"{where}.file_id", "there is no such file")
            return FilePart(media_type=file.media_type, file_id=str(file.id), name=file.name)
        case InputCommand(command=command):
            return CommandPart(command=command.strip())
        case InputFileReference():
            if part.end_line < part.start_line:
                raise InvalidInput(f"{where}.end_line", "must not be before start_line")
            return FileReferencePart(
                file_name=part.file_name,
                start_line=part.start_line,
                end_line=part.end_line,
                content=part.content,
            )


def check_title(text: str) -> str:
    trimmed = text.strip()
    if not 0 < len(trimmed) <= MAX_TITLE_CHARS:
        raise InvalidInput("title", f"must have 1 to {MAX_TITLE_CHARS} characters")
    return _storable("title", trimmed)


def check_labels(given: Mapping[str, str]) -> Mapping[str, str]:
    if len(given) > MAX_LABELS:
        raise InvalidInput("labels", f"must have at most {MAX_LABELS} labels")
    for key, value in given.items():
        if len(key) > MAX_LABEL_KEY_CHARS or not _LABEL_KEY.fullmatch(key):
            raise InvalidInput(
                "labels",
                f"a key must have 1 to {MAX_LABEL_KEY_CHARS} letters, digits or . _ / -, and"
                " begin with a letter or digit",
            )
        if not 0 < len(value.encode()) <= MAX_LABEL_VALUE_BYTES:
            raise InvalidInput(
                "labels", f"the value of {key} must have 1 to {MAX_LABEL_VALUE_BYTES} bytes"
            )
        _storable("labels", value)
    return given


def parse_label_filter(terms: Sequence[str]) -> Mapping[str, str]:
    """From query terms, each `key:value`."""
    given: dict[str, str] = {}
    for term in terms:
        key, colon, value = term.partition(":")
        if not colon:
            raise InvalidInput("label", "must be key:value")
        if given.setdefault(key, value) != value:
            raise InvalidInput("label", f"{key} cannot have two values")
    try:
        return check_labels(given)
    except InvalidInput as error:
        raise InvalidInput("label", error.detail) from None


class _StoredClientTool(ToolSpec, frozen=True, kw_only=True, omit_defaults=True):
    timeout_s: float | None = None


def check_client_tools(tools: Sequence[ClientTool]) -> Json:
    """As stored in the chat's row."""
    if not tools:
        return UNSET
    names = [_one_line("client_tools", tool.name) for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidInput("client_tools", "two tools have the same name")
    specs = [
        _StoredClientTool(
            name=tool.name,
            description=tool.description,
            input_schema=_schema(tool, index),
            timeout_s=tool.timeout_s,
        )
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


def check_tool_results(results: Sequence[ToolResultIn]) -> tuple[ClientResult, ...]:
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


def clean_system_prompt(text: str | None) -> str | None:
    return None if text is None else clean_prompt("system_prompt", text) or None


def clean_workspace_id(given: UUID | None) -> WorkspaceId | None:
    """An id of zeros means none, for clients that cannot send null."""
    return WorkspaceId(given) if given is not None and given.int else None


def check_parameters(given: Mapping[str, str]) -> Mapping[str, str]:
    for name in given:
        _storable("parameters", name)
    return given


def check_idempotency_key(value: str) -> str:
    if not 0 < len(value) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise InvalidInput(
            "Idempotency-Key", f"must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters"
        )
    return value


def _one_line(field: str, name: str) -> str:
    """A pattern that ends in `$` also matches before a final line break."""
    if "\n" in name:
        raise InvalidInput(field, "must not contain a line break")
    return name


def _storable(field: str, text: str) -> str:
    if "\0" in text:
        raise InvalidInput(field, "must not contain the character NUL")
    return text
