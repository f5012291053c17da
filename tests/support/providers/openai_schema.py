"""The rules by which OpenAI refuses schemas and names of tools, in both of its APIs."""

import re
from typing import TypeGuard


class OpenAiRefusal(Exception):
    """The real API's message. `param` names its subject."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, object]:
        error = {
            "message": self.message,
            "type": "invalid_request_error",
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


REASONING = re.compile(r"(?:.*/)?(?:o\d|gpt-5(?!-chat)|gpt-6|gpt-oss|computer-use-preview)")


def check_name(name: str, param: str) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9_-]+", name):
        raise OpenAiRefusal(
            f"Invalid '{param}': string does not match pattern. Expected a string that matches"
            " the pattern '^[a-zA-Z0-9_-]+$'.",
            param,
            "invalid_value",
        )
    if len(name) > 64:
        raise OpenAiRefusal(
            f"Invalid '{param}': string too long. Expected a string with maximum length 64, but"
            f" got a string with length {len(name)} instead.",
            param,
            "string_above_max_length",
        )


def check_schema(name: str, schema: object, *, strict: bool, at: str = "()") -> None:
    what = f"Invalid schema for function '{name}': "
    if not is_object(schema):
        raise OpenAiRefusal(f"{what}schema must be a JSON Schema of 'type: \"object\"'.")
    if at == "()" and schema.get("type") != "object":
        raise OpenAiRefusal(f"{what}schema must be a JSON Schema of 'type: \"object\"'.")
    _check_level(what, schema, at, strict=strict)
    for key, inner in _inner(schema):
        check_schema(name, inner, strict=strict, at=f"({at}, '{key}')")


def _check_level(what: str, schema: dict[str, object], at: str, *, strict: bool) -> None:
    kind = schema.get("type")
    if kind == "object" and not is_object(schema.get("properties", {})):
        raise OpenAiRefusal(f"{what}In context={at}, 'properties' is not an object.")
    if kind == "array" and "items" not in schema:
        raise OpenAiRefusal(f"{what}In context={at}, array schema missing items.")
    if "required" in schema and not isinstance(schema["required"], list):
        raise OpenAiRefusal(f"{what}In context={at}, 'required' is not a list.")
    if strict and kind == "object":
        properties, required = schema.get("properties"), schema.get("required", [])
        names = list(properties) if is_object(properties) else []
        if schema.get("additionalProperties") is not False:
            raise OpenAiRefusal(f"{what}In context={at}, 'additionalProperties' must be false.")
        if sorted(names) != sorted(str(n) for n in (required if is_list(required) else [])):
            raise OpenAiRefusal(
                f"{what}In context={at}, 'required' is required to be supplied and to be an array"
                " including every key in properties."
            )


def _inner(schema: dict[str, object]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    if is_object(properties := schema.get("properties")):
        found += properties.items()
    if is_object(items := schema.get("items")):
        found.append(("items", items))
    for key in ("anyOf", "allOf", "oneOf"):
        if is_list(choices := schema.get(key)):
            found += [(key, choice) for choice in choices]
    return found


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)
