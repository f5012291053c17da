"""The form in which a file is sent to a model API.

No file is dropped silently: a file that the API does not take is sent as text if it is text,
else as a sentence that tells the model which file it does not see.
"""

from binascii import b2a_base64
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.media_types import IMAGE_TYPES, PDF, detect_type, read_image_size
from chatd.domain.model.protocol import BYTES_PER_MIB, AcceptedFiles, PromptFile, has_type

BASE64_SLICE_BYTES: Final = 384 * 1024
"""A multiple of 3, so that only the last slice is padded."""

ANTHROPIC_FILES: Final = AcceptedFiles(
    images=IMAGE_TYPES,
    documents=frozenset({PDF}),
    max_image_bytes=5 * BYTES_PER_MIB,
    max_image_side_px=8000,
)
RESPONSES_FILES: Final = AcceptedFiles(
    images=IMAGE_TYPES, documents=frozenset({PDF}), max_total_bytes=32 * BYTES_PER_MIB
)
CHAT_COMPLETIONS_FILES: Final = RESPONSES_FILES
# The common minimum of compatible servers.
COMPATIBLE_FILES: Final = AcceptedFiles(images=IMAGE_TYPES)
GEMINI_FILES: Final = AcceptedFiles(
    images=frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}),
    documents=frozenset({PDF}),
    media=frozenset({"audio/*", "video/*"}),
    max_total_bytes=14 * BYTES_PER_MIB,
)


class ImageInput(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes


class DocumentInput(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes
    name: str | None


class MediaInput(Struct, frozen=True, kw_only=True):
    """Audio or video."""

    media_type: str
    data: bytes


class TextFileInput(Struct, frozen=True, kw_only=True):
    text: str
    name: str | None


class NoteInput(Struct, frozen=True, kw_only=True):
    """Tells the model about a file that it does not see."""

    text: str


FileInput = ImageInput | DocumentInput | MediaInput | TextFileInput | NoteInput


def fit_file(file: PromptFile, accepts: AcceptedFiles) -> FileInput:
    kind = media_type_of(file)
    size = len(file.data)
    if not size:
        return NoteInput(text=f"[{_label(file, kind)} is empty.]")
    if has_type(kind, accepts.images):
        return _fit_image(file, kind, accepts)
    if has_type(kind, accepts.documents):
        if size < accepts.max_document_bytes:
            return DocumentInput(media_type=kind, data=file.data, name=file.name)
        return _describe_missing(
            file, kind, f"larger than {accepts.max_document_bytes // BYTES_PER_MIB} MiB"
        )
    if has_type(kind, accepts.media):
        return MediaInput(media_type=kind, data=file.data)
    if is_text(kind):
        return TextFileInput(text=file.data.decode("utf-8", "replace"), name=file.name)
    return _describe_missing(file, kind, "this model does not take files of this type")


def _fit_image(file: PromptFile, kind: str, accepts: AcceptedFiles) -> FileInput:
    if len(file.data) >= accepts.max_image_bytes:
        limit = accepts.max_image_bytes // BYTES_PER_MIB
        return _describe_missing(file, kind, f"larger than {limit} MiB")
    side, size = accepts.max_image_side_px, read_image_size(kind, file.data)
    if side is not None and size is not None and max(size.width_px, size.height_px) > side:
        shown = f"{size.width_px} x {size.height_px} pixels"
        return _describe_missing(file, kind, f"{shown}, and a side may have {side}")
    return ImageInput(media_type=kind, data=file.data)


def media_type_of(file: PromptFile) -> str:
    """The declared type; for images the type of the bytes, because providers compare them."""
    declared = file.media_type.partition(";")[0].strip().lower()
    if declared == "image/jpg":
        declared = "image/jpeg"
    if declared.startswith("image/") or declared in ("", "application/octet-stream"):
        return detect_type(file.data) or declared or "application/octet-stream"
    return declared


_TEXT: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/x-yaml"}
    | {"application/javascript", "application/toml", "application/sql", "image/svg+xml"}
)


def is_text(media_type: str) -> bool:
    return (
        media_type.startswith("text/")
        or media_type in _TEXT
        or media_type.endswith(("+json", "+xml"))
    )


def file_text(file: TextFileInput) -> str:
    """A text file as ordinary text of a message."""
    return f"[File: {file.name}]\n{file.text}" if file.name else file.text


def data_url(file: ImageInput | DocumentInput) -> Raw:
    return base64_json(file.data, f"data:{file.media_type};base64,")


def base64_json(data: bytes, prefix: str = "") -> Raw:
    """The JSON string of a prefix and the bytes in base64. It is made in slices, because one call
    for a large file would keep all threads waiting."""
    view = memoryview(data)
    slices = (
        b2a_base64(view[start : start + BASE64_SLICE_BYTES], newline=False)
        for start in range(0, len(data), BASE64_SLICE_BYTES)
    )
    return Raw(b"".join((msgspec.json.encode(prefix)[:-1], *slices, b'"')))


def _label(file: PromptFile, kind: str) -> str:
    return f"The file {file.name} ({kind})" if file.name else f"A file ({kind})"


def _describe_missing(file: PromptFile, kind: str, why: str) -> NoteInput:
    return NoteInput(text=f"[{_label(file, kind)} is not shown: {why}.]")
