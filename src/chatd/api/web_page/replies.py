"""Replies with a file of a page: compressed as the browser takes it, and 304 if it has it."""

from collections.abc import Mapping
from typing import Final

from chatd.api.request import ApiReply, Scope, header
from chatd.api.web_page.files import PageFile

REVALIDATED: Final = "no-cache"
IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""For files with a hash of their content in their names."""
_ISOLATION: Final[Mapping[str, str]] = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


def reply_file(
    scope: Scope,
    file: PageFile,
    policy: str,
    *,
    is_immutable: bool = False,
    in_frames: bool = False,
) -> ApiReply:
    """`in_frames`: the policy says which pages may show it in a frame."""
    compressed = (("br", file.brotli), ("gzip", file.gzip))
    encoding, body = next(
        ((name, made) for name, made in compressed if made is not None and accepts(scope, name)),
        (None, file.body),
    )
    etag = f'"{file.etag}{"" if encoding is None else f"-{encoding}"}"'
    headers = {
        **({} if in_frames else _ISOLATION),
        "content-security-policy": policy,
        "cache-control": IMMUTABLE if is_immutable else REVALIDATED,
        "etag": etag,
    }
    if file.gzip is not None or file.brotli is not None:
        headers["vary"] = "accept-encoding"
    if _is_known(etag, header(scope, b"if-none-match")):
        return ApiReply(status=304, headers=headers)
    if encoding is not None:
        headers["content-encoding"] = encoding
    return ApiReply(body=body, media_type=file.media_type, headers=headers)


def accepts(scope: Scope, encoding: str) -> bool:
    """`gzip;q=0` refuses gzip; what is unreadable counts as a refusal."""
    for choice in (header(scope, b"accept-encoding") or "").split(","):
        name, _, weight = choice.strip().lower().partition(";")
        if name.strip() in (encoding, "*"):
            value = weight.strip().removeprefix("q=").strip() or "1"
            return value.replace(".", "", 1).isdecimal() and float(value) > 0
    return False


def _is_known(etag: str, asked: str | None) -> bool:
    known = {one.strip().removeprefix("W/") for one in (asked or "").split(",")}
    return etag in known or "*" in known
