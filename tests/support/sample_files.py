"""Small files of every type that can be uploaded."""

import struct
import zlib
from typing import Final


def png(width: int = 2, height: int = 3, *, padding: int = 0) -> bytes:
    """`padding` makes the file larger by a chunk with that many bytes."""
    row = b"\0" + b"\xff\0\0" * width
    data = zlib.compress(row * height if width * height < 10_000 else b"")
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [_png_chunk(b"IHDR", head)]
    if padding:
        parts.append(_png_chunk(b"paDd", bytes(index % 251 for index in range(padding))))
    parts += [_png_chunk(b"IDAT", data), _png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def jpeg(width: int = 2, height: int = 3, *, metadata: int = 0) -> bytes:
    """The structure of a JPEG; the scan contains no picture."""
    segments = [b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0\1\1\0\0\1\0\1\0\0"]
    if metadata:
        segments.append(b"\xff\xe1" + struct.pack(">H", metadata + 2) + b"x" * metadata)
    size = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    segments.append(b"\xff\xc0" + struct.pack(">H", len(size) + 2) + size)
    segments.append(b"\xff\xda" + struct.pack(">H", 8) + b"\1\1\0\0\x3f\0" + b"\x12\x34")
    return b"\xff\xd8" + b"".join(segments) + b"\xff\xd9"


def gif(width: int = 2, height: int = 3) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    image = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2\2\x44\1\0"
    return b"GIF89a" + screen + image + b";"


def webp(width: int = 2, height: int = 3) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    data = b"\x2f" + struct.pack("<I", bits) + b"\0" * 11
    chunk = b"WEBP" + b"VP8L" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunk)) + chunk


PDF: Final = (
    b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n"
    b"trailer\n<< /Root 1 0 R >>\nstartxref\n9\n%%EOF\n"
)
PNG: Final = png()
JPEG: Final = jpeg()
GIF: Final = gif()
WEBP: Final = webp()
MARKDOWN: Final = "# Größe\n\n<p align=center>centred</p>\n".encode()
CSV: Final = b"a,b\n1,2\n"
JSON: Final = b' {"a": [1, 2]}\n'

SAMPLES: Final = {
    "image/png": PNG,
    "image/jpeg": JPEG,
    "image/gif": GIF,
    "image/webp": WEBP,
    "application/pdf": PDF,
    "text/plain": "plain «text»\n".encode(),
    "text/markdown": MARKDOWN,
    "text/csv": CSV,
    "application/json": JSON,
}
