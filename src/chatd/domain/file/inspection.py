"""Judges an upload while its chunks arrive, in bounded memory: the type by content, and whether the
file is complete.

A broken image in a chat's history would fail every later model call of that chat, so that a file
that is cut off is refused here.
"""

import codecs
from collections.abc import Mapping
from typing import Final

from chatd.domain.errors import InvalidInput, UnsupportedFile
from chatd.domain.file.images import MAX_IMAGE_PIXELS, read_image_size
from chatd.domain.file.media_types import (
    JSON,
    PDF,
    PLAIN_TEXT,
    can_be_json,
    detect_type,
    expected_type,
    is_active_markup,
    settle_type,
    unreadable,
)

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
        self, declared: str | None, name: str | None, *, takes_markup: bool = False
    ) -> None:
        """`takes_markup`: a text that begins as HTML or SVG is taken if it is stored as plain text,
        which is how it is served too: no browser runs it. Raises UnsupportedFile."""
        self._expected = expected_type(declared, name)
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
            case "image/gif":
                return self._tail.rstrip(b"\0").endswith(b";")
            case _:
                return self._has_end


def _broken(media_type: str, why: str) -> InvalidInput:
    text = f"is not a whole file of type {media_type}: {why}"
    return InvalidInput("body", text, code="broken_file")
