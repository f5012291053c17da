"""Replies in a form that the request prescribes: a title, and JSON that a schema accepts."""

import re
from typing import Final

import msgspec

from chatd.providers.sse import DECODE_ERRORS
from chatd.providers.tool_schema import is_list, is_object

POLITE_OPENING: Final = re.compile(
    r"^\W*(?:(?:please|hello|hi|hey|(?:can|could|would) you|i (?:want|need) (?:you )?to|help me)"
    r"\b\W*)+(?=\w)",
    re.IGNORECASE,
)
_DANGLING_END: Final = re.compile(
    r"(?: (?:a|an|and|as|at|but|by|for|from|if|in|is|it|of|on|or|that|the|to|with))+$",
    re.IGNORECASE,
)
_MAX_TITLE_WORDS: Final = 6
_MAX_SCHEMA_DEPTH: Final = 8
_MAX_SAMPLE_ITEMS: Final = 3


def make_title(text: str) -> str:
    """The first words of the text, without a polite opening and without a dangling end."""
    words = re.findall(r"[^\s\"'`“”]+", POLITE_OPENING.sub("", text))
    title = _DANGLING_END.sub("", " ".join(words[:_MAX_TITLE_WORDS])).strip(".,:;!?- ")
    return title[:1].upper() + title[1:] if title else "New chat"


def parse_object(text: str | bytes) -> dict[str, object]:
    """The JSON object in `text`; empty if there is none."""
    try:
        value: object = msgspec.json.decode(text)
    except DECODE_ERRORS:
        return {}
    return value if is_object(value) else {}


def sample_json(schema: bytes, prompt: str) -> str:
    """JSON that the schema accepts: titles, labels, simple forms and arguments of tools."""
    about = re.sub(r"</?[a-z_-]+>|^Title:.*$", " ", prompt, flags=re.MULTILINE).strip()
    return msgspec.json.encode(_sample(parse_object(schema), "", about, 0)).decode()


def _sample(schema: object, name: str, about: str, depth: int) -> object:
    """A value for the field `name`. The name says what a string is about."""
    if not is_object(schema) or depth > _MAX_SCHEMA_DEPTH:
        return None
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        if is_list(choices := schema.get(key)) and choices:
            return choices[0] if key == "enum" else _sample(choices[0], name, about, depth + 1)
    kind = schema.get("type")
    match kind[0] if is_list(kind) and kind else kind:
        case _ if "const" in schema:
            return schema["const"]
        case "string":
            return _sample_text(name.lower(), about)[: _number(schema, "maxLength", 10_000)]
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            count = min(_number(schema, "minItems", 0), _MAX_SAMPLE_ITEMS)
            return [_sample(schema.get("items"), name, about, depth + 1)] * count
        case _:
            fields, required = schema.get("properties"), schema.get("required")
            fields = fields if is_object(fields) else {}
            wanted = [key for key in fields if is_list(required) and key in required] or fields
            return {key: _sample(fields[key], key, about, depth + 1) for key in wanted}


def _number(schema: dict[str, object], key: str, default: int) -> int:
    found = schema.get(key)
    return found if isinstance(found, int) else default


def _sample_text(name: str, about: str) -> str:
    if "title" in name or "name" in name:
        return make_title(about)
    if "label" in name:
        return "Answered in demo mode"
    return " ".join(about.split()[:30]) or "Nothing was said"
