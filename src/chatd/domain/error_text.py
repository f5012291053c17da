"""Reading a provider's failure: the status and the provider it names, and what may be quoted.

Owns the looking into texts and bodies. Does not own what a failure means: that is `classify`.
"""

import json
import re
from typing import Final

import msgspec

from chatd.domain.heal import heal_text
from chatd.domain.model import ProviderFault

MAX_DETAIL: Final = 500
_MAX_BRACES: Final = 16

_NAMED_STATUS: Final = re.compile(
    r"\b(?:status(?: code)?\s*[:= ]\s*|http(?:/\d(?:\.\d)?)? )(\d{3})\b"
)
# After a colon it is a port.
_BARE_STATUS: Final = re.compile(r"(?<![\d:.])\b(401|403|408|429|500|502|503|504|529)\b(?!\.?\d)")
_STREAM_ID: Final = re.compile(r"stream(?: id)?[ =:#]+\d+")

_PROVIDERS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"openai[-_ ]compat", "openai-compat"),
        (r"\bazure", "azure"),
        (r"openrouter", "openrouter"),
        (r"bedrock", "bedrock"),
        (r"vercel", "vercel"),
        (r"anthropic|claude", "anthropic"),
        (r"google|gemini|vertex", "google"),
        (r"openai", "openai"),
    )
)


def status_of(fault: ProviderFault) -> int | None:
    """What the provider said, or else a number in the text that can be nothing but a status."""
    if fault.status_code is not None:
        return fault.status_code
    text = _STREAM_ID.sub("", fault.message.lower())
    match = _NAMED_STATUS.search(text) or _BARE_STATUS.search(text)
    return int(match[1]) if match else None


def provider_of(fault: ProviderFault) -> str:
    """Who is configured counts. Otherwise whom the text names, the most specific first."""
    if fault.provider:
        return fault.provider
    text = fault.message.lower()
    return next((name for pattern, name in _PROVIDERS if pattern.search(text)), "")


def detail(fault: ProviderFault) -> str | None:
    """What the vendor said, short and without secrets."""
    return quotable(fault) or _raw(fault.message)


def quotable(fault: ProviderFault) -> str | None:
    """What the vendor wrote for people, in its body or wrapped into the error's text."""
    return body_detail(fault.body) or _json_message(fault.message)


def body_detail(body: str | None) -> str | None:
    """`error.message`, else `message` or `detail`, else the first line of plain text; no HTML."""
    if body is None or not (text := _joined(body).strip()):
        return None
    if (found := _json_message(text)) is not None:
        return found
    return None if text[0] in "<{[" else bounded(redact_urls(text.splitlines()[0]))


def _joined(body: str) -> str:
    """A body in chunks has the length of each, in hex, on a line of its own."""
    lines = body.splitlines()
    if len(lines) < 2 or not re.fullmatch(r"[0-9a-fA-F]{1,8}", lines[0].strip()):
        return body
    return "\n".join(line for line in lines if not re.fullmatch(r"[0-9a-fA-F]{1,8}", line.strip()))


def _raw(text: str) -> str | None:
    return None if text.lstrip().startswith("<") else bounded(redact_urls(text))


def _json_message(text: str) -> str | None:
    """SDKs and proxies put words before the body, and a URL may have braces of its own."""
    decoder = json.JSONDecoder()
    start = -1
    for _ in range(_MAX_BRACES):
        start = text.find("{", start + 1)
        if start < 0:
            return None
        try:
            parsed: object = decoder.raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            continue
        if (found := _message_in(parsed)) is not None:
            return bounded(redact_urls(found))
    return None


def _message_in(parsed: object) -> str | None:
    error = _field(parsed, "error")
    # AWS writes either case, and servers made with FastAPI have a word of their own.
    others = (_field(parsed, name) for name in ("message", "Message", "detail"))
    said = (error, _field(error, "message"), *others)
    return next((text for text in said if isinstance(text, str) and text.strip()), None)


def _field(value: object, name: str) -> object:
    return msgspec.convert(value, dict[str, object]).get(name) if isinstance(value, dict) else None


_URL: Final = re.compile(r"(https?://)(?:[^/\s@\"']*@)?([^\s?#\"']*)(?:[?#][^\s\"']*)?")
_KEY: Final = re.compile(
    r"\b(?:sk|pk|rk|key|gsk|xai|AIza)[-_][A-Za-z0-9_\-*.]{6,}|\bAIza[A-Za-z0-9_\-]{10,}"
    r"|\bAKIA[A-Z0-9]{12,}|\b[Bb]earer +[A-Za-z0-9_\-.~+/=]{6,}"
    # AWS repeats the headers that it has found signed wrongly.
    r"|(?<=x-amz-security-token:)[^\s\\\"']+"
)


def redact_urls(text: str) -> str:
    """Credentials hide in user info, queries and fragments; vendors echo keys in messages."""
    return _KEY.sub("[key]", _URL.sub(r"\1\2", text))


def bounded(text: str) -> str | None:
    """A text that may be stored and shown as a detail; None if it says nothing."""
    text = heal_text(text).strip()
    return f"{text[: MAX_DETAIL - 1]}…" if len(text) > MAX_DETAIL else text or None
