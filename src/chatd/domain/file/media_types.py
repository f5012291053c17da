"""Which files can be uploaded: media types by content, by declaration and by name.

The content decides. A declared type or a file name that says something else is refused, so that no
file is stored under a type that its bytes do not have. HTML and SVG are refused, because a browser
could run scripts in them.
"""

import re
from collections.abc import Mapping
from typing import Final

from chatd.domain.errors import InvalidInput, UnsupportedFile

PDF: Final = "application/pdf"
JSON: Final = "application/json"
PLAIN_TEXT: Final = "text/plain"
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
TEXT_TYPES: Final = frozenset({PLAIN_TEXT, "text/markdown", "text/csv", JSON})
STORED_TYPES: Final = (*sorted(IMAGE_TYPES), PDF, *sorted(TEXT_TYPES))
UPLOAD_TYPES: Final = ("application/octet-stream", *STORED_TYPES)

_OPAQUE_TYPES: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_ALIASES: Final[Mapping[str, str]] = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "application/x-pdf": PDF,
    "text/json": JSON,
    "text/x-markdown": "text/markdown",
    "application/csv": "text/csv",
}
_MARKUP_TYPES: Final = frozenset({"text/html", "text/xml", "application/xml", "image/svg+xml"})
_FORM_TYPES: Final = frozenset({"multipart/form-data", "application/x-www-form-urlencoded"})
_BINARY_EXTENSIONS: Final[Mapping[str, str]] = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "jpe": "image/jpeg",
    "jfif": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "pdf": PDF,
}
_TEXT_EXTENSIONS: Final[Mapping[str, str]] = {
    "txt": PLAIN_TEXT,
    "md": "text/markdown",
    "markdown": "text/markdown",
    "csv": "text/csv",
    "json": JSON,
}
_MARKUP_EXTENSIONS: Final = frozenset({"svg", "svgz", "html", "htm", "xhtml", "xht", "shtml"})

_MAGIC: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)

_SUPPORTED_TEXT: Final = "PNG, JPEG, GIF, WebP, PDF and UTF-8 text (plain, Markdown, CSV, JSON)"


def detect_type(head: bytes) -> str | None:
    """The type of an image or a PDF by its first bytes; None for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)


def is_text_type(media_type: str) -> bool:
    return media_type in TEXT_TYPES


def expected_type(declared: str | None, name: str | None) -> str | None:
    """The type that the request promises, None if it promises nothing. Raises UnsupportedFile for
    a type that is never stored, whatever the content."""
    kind = (declared or "").partition(";")[0].strip().lower()
    kind = _ALIASES.get(kind, kind)
    if _extension(name) in _MARKUP_EXTENSIONS or kind in _MARKUP_TYPES:
        raise UnsupportedFile(
            "HTML, XML and SVG files are refused, because a browser could run scripts in them."
        )
    if kind in _FORM_TYPES:
        raise UnsupportedFile(
            "Send the file itself as the body, not a form, with its own Content-Type or with"
            " application/octet-stream."
        )
    if kind in _OPAQUE_TYPES:
        return None
    if kind in IMAGE_TYPES or kind == PDF or kind in TEXT_TYPES:
        return kind
    if kind.startswith("text/"):
        return PLAIN_TEXT
    raise UnsupportedFile(f"Files of this type are not supported; supported: {_SUPPORTED_TEXT}.")


def settle_type(expected: str | None, name: str | None, found: str | None) -> str:
    """The media type to store. `found` is the type of an image or PDF by its content; None: the
    content is checked as text. Raises InvalidInput if the declared type or the name differs."""
    by_name = _BINARY_EXTENSIONS.get(_extension(name))
    if found is None:
        if expected is not None and not is_text_type(expected):
            raise _mismatch("Content-Type", expected, "the content is not")
        if by_name is not None:
            raise _mismatch("filename", by_name, "the content is not")
        return expected or _TEXT_EXTENSIONS.get(_extension(name), PLAIN_TEXT)
    if expected not in (None, found):
        raise _mismatch("Content-Type", expected or "", f"the content is {found}")
    is_text_name = _extension(name) in _TEXT_EXTENSIONS
    if is_text_name or by_name not in (None, found):
        raise _mismatch("filename", by_name or "a text file", f"the content is {found}")
    return found


def _mismatch(field: str, says: str, but: str) -> InvalidInput:
    return InvalidInput(field, f"says {says}, but {but}", code="file_type_mismatch")


def _extension(name: str | None) -> str:
    _, dot, extension = (name or "").rpartition(".")
    return extension.strip().lower() if dot else ""


_PROLOG: Final = re.compile(
    r"(?:\s+|<!--.*?-->|<\?.*?\?>|<!doctype(?!\s+(?:html|svg)\b)[^>\[]*(?:\[.*?\])?\s*>)+",
    re.DOTALL,
)
_ACTIVE_ROOT: Final = re.compile(
    r"<(?:!doctype\s+(?:html|svg)|(?:\w+:)?svg|html|head|body|script|iframe|style|title"
    r"|object|embed|meta|link|xsl:stylesheet)(?![\w-])"
)


def is_active_markup(head: str) -> bool:
    """Whether a text begins as HTML or SVG, after comments and declarations."""
    text = head.removeprefix("\ufeff").lower()
    found = _PROLOG.match(text)
    return _ACTIVE_ROOT.match(text, 0 if found is None else found.end()) is not None


_JSON_STARTS: Final = frozenset('{["-0123456789tfn')


def can_be_json(head: str) -> bool:
    """By the first character; the rest is not parsed."""
    return head.removeprefix("\ufeff").lstrip()[:1] in _JSON_STARTS


def unreadable() -> UnsupportedFile:
    return UnsupportedFile(
        f"The content is neither an image, a PDF nor UTF-8 text; supported: {_SUPPORTED_TEXT}."
    )
