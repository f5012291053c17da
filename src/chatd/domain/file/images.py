"""The size of an image in pixels, from its first bytes. No image is decoded."""

from struct import error as StructError  # noqa: N812
from struct import unpack_from
from typing import Final

from msgspec import Struct

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
