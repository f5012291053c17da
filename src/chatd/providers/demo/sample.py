"""JSON that a schema accepts, for requests that want an answer in that form.

Good enough for titles, labels and simple forms: names of fields say what they are for, types
say the rest.
"""

import re
from typing import Final, TypeGuard

import msgspec
from msgspec import Raw

_MAX_DEPTH: Final = 8
_MAX_ITEMS: Final = 3
_TITLE_WORDS: Final = 6
_WRAP: Final = re.compile(r"</?[a-z_-]+>|^Title:.*$", re.MULTILINE)

Schema = dict[str, object]


def sample(schema: Raw, about: str) -> str:
    try:
        parsed: object = msgspec.json.decode(schema)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        parsed = {}
    return msgspec.json.encode(_value(parsed, "", _plain(about), 0)).decode()


def title(about: str) -> str:
    words = re.findall(r"[^\s\"'`“”]+", about)[:_TITLE_WORDS]
    found = " ".join(words).strip(".,:;!?- ")
    return found[:1].upper() + found[1:] if found else "New chat"


def _plain(text: str) -> str:
    return _WRAP.sub(" ", text).strip()


def _value(schema: object, name: str, about: str, depth: int) -> object:
    if not _is_object(schema) or depth > _MAX_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        choices = schema.get(key)
        if _is_list(choices) and choices:
            first = choices[0]
            return first if key == "enum" else _value(first, name, about, depth + 1)
    return _typed(schema, name, about, depth)


def _typed(schema: Schema, name: str, about: str, depth: int) -> object:
    kind = schema.get("type")
    if _is_list(kind):
        kind = kind[0] if kind else None
    match kind:
        case "string":
            return _string(schema, name, about)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            least = schema.get("minItems", 0)
            count = min(least, _MAX_ITEMS) if isinstance(least, int) else 0
            return [_value(schema.get("items"), name, about, depth + 1) for _ in range(count)]
        case _:
            return _object(schema, about, depth)


def _object(schema: Schema, about: str, depth: int) -> Schema:
    properties = schema.get("properties")
    if not _is_object(properties):
        return {}
    required = schema.get("required")
    names = [name for name in required if name in properties] if _is_list(required) else []
    wanted = [str(name) for name in names] or list(properties)
    return {name: _value(properties[name], name, about, depth + 1) for name in wanted}


def _string(schema: Schema, name: str, about: str) -> str:
    word = name.lower()
    if "title" in word or "name" in word:
        text = title(about)
    elif "label" in word:
        text = "Answered in demo mode"
    else:
        text = " ".join(about.split()[:30]) or "Nothing was said"
    limit = schema.get("maxLength")
    return text[:limit] if isinstance(limit, int) else text


def _is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)
