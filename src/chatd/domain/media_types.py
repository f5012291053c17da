"""Which files can be uploaded: media types by content, declaration and name; sizes of images;
whether an upload is complete.

The content decides. A declared type or a file name that says something else is refused, so that no
file is stored under a type that its bytes do not have. HTML and SVG are refused, because a browser
could run scripts in them.
"""

import codecs
import re
from collections.abc import Mapping
from struct import error as StructError  # noqa: N812
from struct import unpack_from
from typing import Final

from msgspec import Struct

from chatd.domain.errors import InvalidInput, UnsupportedFile

PDF: Final = "application/pdf"
JSON: Final = "application/json"
PLAIN_TEXT: Final = "text/plain"
MP4: Final = "video/mp4"
"""Only chatd's own recordings: it is not taken from users, and no model is sent it."""
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
TEXT_TYPES: Final = frozenset({PLAIN_TEXT, "text/markdown", "text/csv", JSON})
_TAKEN_TYPES: Final = (*sorted(IMAGE_TYPES), PDF, *sorted(TEXT_TYPES))
STORED_TYPES: Final = (*_TAKEN_TYPES, MP4)
UPLOAD_TYPES: Final = ("application/octet-stream", *_TAKEN_TYPES)

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


# The size of an image in pixels, from its first bytes. No image is decoded.

MAX_IMAGE_PIXELS: Final = 200_000_000
"""A small file can name a size that fills the memory of the program that decodes it."""

_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_SCAN: Final = 0xDA


class ImageSize(Struct, frozen=True):
    width_px: int
    height_px: int

    @property
    def pixels(self) -> int:
        return self.width_px * self.height_px


def read_image_size(media_type: str, head: bytes) -> ImageSize | None:
    """None if the size is not in these bytes."""
    try:
        match media_type:
            case "image/png":
                return _png(head)
            case "image/gif":
                return ImageSize(*unpack_from("<HH", head, 6))
            case "image/webp":
                return _webp(head)
            case "image/jpeg":
                return _jpeg(head)
            case _:
                return None
    except (StructError, IndexError):  # too few bytes
        return None


def _png(head: bytes) -> ImageSize | None:
    if head[12:16] != b"IHDR":
        return None
    return ImageSize(*unpack_from(">II", head, 16))


def _webp(head: bytes) -> ImageSize | None:
    match head[12:16]:
        case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
            width, height = unpack_from("<HH", head, 26)
            return ImageSize(width & 0x3FFF, height & 0x3FFF)
        case b"VP8L" if head[20] == 0x2F:
            (bits,) = unpack_from("<I", head, 21)
            return ImageSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X" if len(head) >= 30:
            width = int.from_bytes(head[24:27], "little") + 1
            return ImageSize(width, int.from_bytes(head[27:30], "little") + 1)
        case _:
            return None


def _jpeg(head: bytes) -> ImageSize | None:
    """Walks the segments up to the one that has the size."""
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _JPEG_WITHOUT_LENGTH:
            at += 2
        elif marker in _JPEG_SIZES:
            height, width = unpack_from(">HH", head, at + 5)
            return ImageSize(width, height)
        elif marker == _JPEG_SCAN:
            return None
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None


# Judges an upload while its chunks arrive, in bounded memory: the type by content, and whether the
# file is complete.
#
# A broken image in a chat's history would fail every later model call of that chat, so that a file
# that is cut off is refused here.

_MISMATCH: Final = "file_type_mismatch"
_MARKUP_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4096
_END_MARKERS: Final[Mapping[str, bytes]] = {
    "image/png": b"IEND\xaeB`\x82",
    "image/jpeg": b"\xff\xd9",
    PDF: b"%%EOF",
}


class FileInspection:
    """Feed every chunk in order, then call `finish`. The first chunk must hold the beginning of
    the file, at least some kilobytes if the file has them."""

    def __init__(
        self,
        declared: str | None,
        name: str | None,
        *,
        takes_markup: bool = False,
        is_recording: bool = False,
    ) -> None:
        """`takes_markup`: a text that begins as HTML or SVG is taken if it is stored as plain text,
        which is how it is served too: no browser runs it. `is_recording`: it must be an MP4. Raises
        UnsupportedFile."""
        self._expected = MP4 if is_recording else expected_type(declared, name)
        self._name = name
        self._takes_markup = takes_markup
        self._media_type = ""
        self._is_text = False
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._size = 0
        self._riff_bytes = 0
        self._has_image_size = True
        self._tail = b""
        self._has_end = False

    @property
    def size(self) -> int:
        return self._size

    def feed(self, chunk: bytes) -> None:
        """Raises InvalidInput, UnsupportedFile."""
        if not self._size:
            self._begin(chunk)
        self._size += len(chunk)
        if self._is_text:
            self._check_text(chunk)
        else:
            self._find_end(chunk)

    def finish(self) -> str:
        """The media type. Raises InvalidInput, UnsupportedFile."""
        if not self._size:
            raise InvalidInput("body", "is empty; send the file's bytes", code="empty_file")
        if self._is_text:
            self._check_text(b"", final=True)
        elif not self._is_complete():
            raise _broken(self._media_type, "its end is missing")
        elif not self._has_image_size:
            raise _broken(self._media_type, "it has no size in pixels")
        return self._media_type

    def _begin(self, head: bytes) -> None:
        if self._expected == MP4:
            if head[4:8] != b"ftyp":
                raise _broken(MP4, "it does not begin as one")
            self._media_type = MP4
            return
        found = detect_type(head)
        self._media_type = settle_type(self._expected, self._name, found)
        self._is_text = found is None
        if self._is_text:
            self._check_beginning(head[:_MARKUP_BYTES].decode("utf-8", "ignore"))
        elif found == "image/webp":
            self._riff_bytes = 8 + int.from_bytes(head[4:8], "little")
        if self._media_type.startswith("image/"):
            self._check_image(head)

    def _check_beginning(self, head: str) -> None:
        is_taken = self._takes_markup and self._media_type == PLAIN_TEXT
        if not is_taken and is_active_markup(head):
            raise UnsupportedFile(
                "The text is HTML or SVG, which is refused, because a browser could run scripts"
                " in it."
            )
        if self._media_type == JSON and not can_be_json(head):
            raise InvalidInput("Content-Type", "says JSON, but the content is not", code=_MISMATCH)

    def _check_image(self, head: bytes) -> None:
        """The size of a JPEG may come after long metadata, and then is not known."""
        size = read_image_size(self._media_type, head)
        if size is None:
            self._has_image_size = self._media_type == "image/jpeg" and len(head) > _TAIL_BYTES
        elif not size.pixels:
            raise _broken(self._media_type, "it has no pixels")
        elif size.pixels > MAX_IMAGE_PIXELS:
            shown = f"{size.width_px} x {size.height_px} pixels"
            raise _broken(self._media_type, f"{shown} are more than {MAX_IMAGE_PIXELS:,}")

    def _check_text(self, chunk: bytes, *, final: bool = False) -> None:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            raise unreadable() from None
        if b"\0" in chunk:
            raise unreadable()

    def _find_end(self, chunk: bytes) -> None:
        marker = _END_MARKERS.get(self._media_type)
        if marker is not None and not self._has_end:
            seam = self._tail[-len(marker) :] + chunk[: len(marker)]
            self._has_end = marker in chunk or marker in seam
        if self._media_type == PDF:
            # Every saved change of a PDF ends with a marker; only the last one counts.
            self._has_end = marker is not None and marker in (self._tail + chunk)[-_TAIL_BYTES:]
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def _is_complete(self) -> bool:
        match self._media_type:
            case "image/webp":
                return self._size >= self._riff_bytes
            case "video/mp4":
                return True
            case "image/gif":
                return self._tail.rstrip(b"\0").endswith(b";")
            case _:
                return self._has_end


def _broken(media_type: str, why: str) -> InvalidInput:
    text = f"is not a whole file of type {media_type}: {why}"
    return InvalidInput("body", text, code="broken_file")
