"""File names: read from a Content-Disposition header, and written into one."""

import re
from typing import Final

MAX_NAME_BYTES: Final = 255

_EXTENDED: Final = re.compile(r"filename\*\s*=\s*(utf-8|iso-8859-1)'[^']*'([^\s;]+)", re.IGNORECASE)
_QUOTED: Final = re.compile(r'filename\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_BARE: Final = re.compile(r"filename\s*=\s*([^\s;\"]+)", re.IGNORECASE)
_PERCENT: Final = re.compile(rb"%([0-9a-fA-F]{2})")


def read_file_name(disposition: str | None) -> str | None:
    """The name in a Content-Disposition header, without directories; None if it has none."""
    if disposition is None:
        return None
    if (extended := _EXTENDED.search(disposition)) is not None:
        data = _PERCENT.sub(_byte, extended[2].encode("latin-1", "replace"))
        return clean_file_name(data.decode(extended[1].lower(), "replace"))
    if (quoted := _QUOTED.search(disposition)) is not None:
        return clean_file_name(_decode(re.sub(r"\\([\"\\])", r"\1", quoted[1])))
    bare = _BARE.search(disposition)
    return None if bare is None else clean_file_name(_decode(bare[1]))


def clean_file_name(name: str) -> str | None:
    """The last piece of a path, without control characters, cut to MAX_NAME_BYTES."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(char for char in last if char.isprintable()).strip()
    cut = shown.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    return None if cut in ("", ".", "..") else cut


def content_disposition(kind: str, name: str | None) -> str:
    """`kind` is inline or attachment. An old client reads the name in ASCII."""
    if name is None:
        return kind
    plain = re.sub(r'[^ -~]|["\\%;]', "_", name)
    encoded = "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or chr(byte) in "-._~" else f"%{byte:02X}"
        for byte in name.encode()
    )
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{encoded}"


def _decode(text: str) -> str:
    """A header is read as Latin-1; clients send UTF-8."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode())
