"""Error texts of MCP servers without what a URL may hold: credentials, queries, fragments."""

import re
from typing import Final

from chatd.domain.text import clip, replace_surrogates

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
