"""Results of MCP tool calls as tool outputs, and errors of MCP servers without credentials."""

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

import msgspec
from msgspec import Struct

from chatd.domain.answer.tool_output import ToolMedia, ToolOutput
from chatd.domain.errors import ChatdError
from chatd.domain.text import clip, parse_json, replace_surrogates

MAX_RESULT_PARTS: Final = 1000
_MAX_LABEL_CHARS: Final = 500
_DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"

NO_REASON_TEXT: Final = "The tool failed and gave no reason."

_Object = Mapping[str, object]


class _Found(Struct, frozen=True, kw_only=True):
    text: str | None = None
    media: ToolMedia | None = None


def convert_result(result: _Object) -> ToolOutput:
    """`result` is the JSON object that the server sent. Binary content counts only if there is no
    text, and the first one wins; notes name what was left out."""
    content = result.get("content")
    parts = cast("Sequence[object]", content) if isinstance(content, list) else ()
    found = [_read_part(part) for part in parts[:MAX_RESULT_PARTS]]
    texts = [each.text for each in found if each.text is not None]
    media = [each.media for each in found if each.media is not None]
    if len(parts) > MAX_RESULT_PARTS:
        texts.append(f"[{len(parts) - MAX_RESULT_PARTS} more parts were left out]")
    if (structured := _structured_text(result, texts)) is not None:
        texts.append(structured)
    is_error = result.get("isError") is True
    used = media[0] if media and not texts and not is_error else None
    texts += [_left_out(each) for each in media if each is not used]
    text = "\n".join(texts)
    if is_error and not text.strip():
        text = NO_REASON_TEXT
    return ToolOutput(text=text, is_error=is_error, media=used)


def _structured_text(result: _Object, texts: Sequence[str]) -> str | None:
    """Most servers also send the structured content as text: then it is not repeated."""
    value = result.get("structuredContent")
    if value is None or any(parse_json(text) == value for text in texts):
        return None
    # The common wrapping of a plain value: {"result": value}, with its text beside it.
    if isinstance(value, dict) and set(cast("_Object", value)) == {"result"}:
        inner = cast("_Object", value)["result"]
        if "\n".join(texts) == inner or [parse_json(text) for text in texts] in ([inner], inner):
            return None
    return msgspec.json.encode(value).decode()


def _left_out(media: ToolMedia) -> str:
    return f"[{len(media.data)} bytes of {media.media_type} were left out]"


def _read_part(part: object) -> _Found:
    fields = cast("_Object", part if isinstance(part, dict) else {})
    match fields.get("type"):
        case "text":
            return _Found(text=_string(fields, "text"))
        case "image" | "audio":
            return _media(fields, "data")
        case "resource":
            return _embedded(fields.get("resource"))
        case "resource_link":
            return _Found(text=_link_label(fields))
        case kind:
            return _Found(text=f"[content of unknown type {clip(str(kind), 60)!r}]")


def _embedded(resource: object) -> _Found:
    fields = cast("_Object", resource if isinstance(resource, dict) else {})
    if isinstance(fields.get("text"), str):
        return _Found(text=_string(fields, "text"))
    if "blob" in fields:
        return _media(fields, "blob")
    return _Found(text=f"[empty resource {clip(_string(fields, 'uri'), _MAX_LABEL_CHARS)}]")


def _media(fields: _Object, key: str) -> _Found:
    media_type = _string(fields, "mimeType") or _DEFAULT_MEDIA_TYPE
    try:
        data = b64decode(_string(fields, key), validate=True)
    except (binascii.Error, ValueError):
        return _Found(text=f"[{clip(media_type, 100)} that is not valid base64]")
    return _Found(media=ToolMedia(media_type=clip(media_type, 100), data=data))


def _link_label(fields: _Object) -> str:
    name = _string(fields, "title") or _string(fields, "name")
    uri, description = _string(fields, "uri"), _string(fields, "description")
    label = " ".join(part for part in (name, f"<{uri}>" if uri else "") if part)
    whole = f"{label}: {description}" if description else label
    return f"[resource {clip(whole, _MAX_LABEL_CHARS)}]"


def _string(fields: _Object, key: str) -> str:
    value = fields.get(key)
    return replace_surrogates(value) if isinstance(value, str) else ""


# Error texts of MCP servers without what a URL may hold: credentials, queries, fragments.

MAX_ERROR_CHARS: Final = 1000

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s\"'<>`]+)")


def redact_url(url: str) -> str:
    """Scheme, host, port and path."""
    match = _URL.fullmatch(url)
    return url if match is None else _without_secrets(match)


def redact_urls(text: str) -> str:
    return _URL.sub(_without_secrets, text)


def _without_secrets(match: re.Match[str]) -> str:
    whole = re.split(r"[?#]", match["rest"], maxsplit=1)[0]
    authority, slash, path = whole.partition("/")
    return f"{match['scheme']}://{authority.rpartition('@')[2]}{slash}{path}"


def error_text(error: object) -> str:
    """For a model or a log: one bounded line without secrets of URLs."""
    text = " ".join(redact_urls(replace_surrogates(str(error))).split())
    return clip(text, MAX_ERROR_CHARS)


# Why a call to an MCP server gave no result, and whether the tool may have run.

FaultKind = Literal[
    "refused",  # 401: the credential is not accepted
    "gone",  # the server does not know the session any more: nothing ran
    "unreachable",  # the request was not sent
    "lost",  # the request was sent, and the connection broke before the reply
    "timeout",
    "too_large",
    "busy",
    "failed",  # the server replied with an error
]

_MAY_HAVE_RUN: Final = frozenset({"lost", "timeout", "too_large"})

OUTCOME_UNKNOWN_TEXT: Final = (
    "Its outcome is unknown: look at the state it would have changed before you repeat it."
)


class McpFault(ChatdError):
    code = "mcp_fault"

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind

    @property
    def may_have_run(self) -> bool:
        return self.kind in _MAY_HAVE_RUN
