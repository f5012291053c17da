"""Answers that must be JSON of a given schema: what the model is told, and whether an answer fits.

The schema goes with the prompt, so that every model can be asked. The command checks the answer
itself.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from chatd.cli.api_session import UsageProblem
from chatd.domain.text import clip

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_PROBLEM_CHARS: Final = 500
_FENCED: Final = re.compile(r"```[a-zA-Z]*\n(.*?)\n?```", re.DOTALL)


class OutputSchema(Struct, frozen=True):
    """A JSON Schema; `text` is as it is told to the model."""

    schema: Mapping[str, Any] | bool
    text: str

    @property
    def request(self) -> str:
        """For the end of the prompt."""
        return (
            "Answer with one JSON value that is valid against this JSON Schema, and with nothing"
            f" else:\n\n{self.text}"
        )

    def read(self, answer: str) -> object:
        """The value of an answer, which may stand in one block of code. Raises NotFitting."""
        blocks = _FENCED.findall(answer)
        given = blocks[0] if len(blocks) == 1 else answer
        try:
            value = msgspec.json.decode(given.strip().encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise NotFitting(f"it is not JSON: {error}") from None
        try:
            errors = list(_validator(self.schema).iter_errors(value))
        except Exception as error:  # noqa: BLE001 - a schema may refer to what is not there
            raise NotFitting(f"the schema cannot be applied: {error}") from None
        if errors:
            first: Any = min(errors, key=lambda one: len(one.absolute_path))
            place = "".join(f"/{one}" for one in first.absolute_path)
            raise NotFitting(f"at {place or 'its top'}: {clip(first.message, MAX_PROBLEM_CHARS)}")
        return value


class NotFitting(Exception):
    """Says what is wrong with an answer."""


def retry_text(problem: str) -> str:
    return (
        f"That answer does not fit: {problem}. Answer again with the JSON value alone, valid"
        " against the schema."
    )


def read_schema(path: Path | None) -> OutputSchema | None:
    """Raises UsageProblem."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > MAX_SCHEMA_BYTES:
        raise UsageProblem(f"{path} has more than {MAX_SCHEMA_BYTES >> 10} KiB")
    try:
        schema = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageProblem(f"{path} is not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise UsageProblem(f"{path} is not a JSON Schema: it must be an object")
    known = cast("Mapping[str, Any] | bool", schema)
    try:
        _validator_class(known).check_schema(known)
    except Exception as error:  # noqa: BLE001 - whatever the library finds wrong with it
        text = clip(str(getattr(error, "message", error)), MAX_PROBLEM_CHARS)
        raise UsageProblem(f"{path} is not a valid JSON Schema: {text}") from None
    return OutputSchema(known, data.decode("utf-8", "replace").strip())


def _validator_class(schema: object) -> Any:
    validators: Any = import_module("jsonschema.validators")
    return validators.validator_for(schema, default=validators.Draft202012Validator)


def _validator(schema: object) -> Any:
    """It fetches nothing: a reference to another document is not followed."""
    registry: Any = import_module("referencing").Registry()
    return _validator_class(schema)(schema, registry=registry)
