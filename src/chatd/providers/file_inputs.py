"""The form in which a file is sent to a model API.

No file is dropped silently: a file that the API does not take is sent as text if it is text,
else as a sentence that tells the model which file it does not see.
"""

import base64
from typing import Final

from msgspec import Struct

from chatd.domain.model.protocol import PromptFile

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF: Final = "application/pdf"
BYTES_PER_MIB: Final = 1024 * 1024


class AcceptedFiles(Struct, frozen=True, kw_only=True):
    """The media types that one API takes unchanged. A type may end in `/*`."""

    images: frozenset[str] = frozenset()
    documents: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    max_image_bytes: int = 20 * BYTES_PER_MIB
    max_document_bytes: int = 32 * BYTES_PER_MIB


ANTHROPIC_FILES: Final = AcceptedFiles(
    images=IMAGE_TYPES,
    documents=frozenset({PDF}),
    max_image_bytes=5 * BYTES_PER_MIB,
)
RESPONSES_FILES: Final = AcceptedFiles(images=IMAGE_TYPES, documents=frozenset({PDF}))
CHAT_COMPLETIONS_FILES: Final = AcceptedFiles(images=IMAGE_TYPES, documents=frozenset({PDF}))
# The common minimum of compatible servers.
COMPATIBLE_FILES: Final = AcceptedFiles(images=IMAGE_TYPES)
GEMINI_FILES: Final = AcceptedFiles(
    images=frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}),
    documents=frozenset({PDF}),
    media=frozenset({"audio/*", "video/*"}),
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
    if _in(kind, accepts.images):
        if size < accepts.max_image_bytes:
            return ImageInput(media_type=kind, data=file.data)
        return _describe_missing(
            file, kind, f"larger than {accepts.max_image_bytes // BYTES_PER_MIB} MiB"
        )
    if _in(kind, accepts.documents):
        if size < accepts.max_document_bytes:
            return DocumentInput(media_type=kind, data=file.data, name=file.name)
        return _describe_missing(
            file, kind, f"larger than {accepts.max_document_bytes // BYTES_PER_MIB} MiB"
        )
    if _in(kind, accepts.media):
        return MediaInput(media_type=kind, data=file.data)
    if is_text(kind):
        return TextFileInput(text=file.data.decode("utf-8", "replace"), name=file.name)
    return _describe_missing(file, kind, "this model does not take files of this type")


def media_type_of(file: PromptFile) -> str:
    """The declared type; for images the type of the bytes, because providers compare them."""
    declared = file.media_type.partition(";")[0].strip().lower()
    if declared == "image/jpg":
        declared = "image/jpeg"
    if declared.startswith("image/") or declared in ("", "application/octet-stream"):
        return _detect_type(file.data) or declared or "application/octet-stream"
    return declared


_MAGIC: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def _detect_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


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


def data_url(file: ImageInput | DocumentInput) -> str:
    return f"data:{file.media_type};base64,{base64.b64encode(file.data).decode()}"


def _in(kind: str, accepted: frozenset[str]) -> bool:
    return kind in accepted or f"{kind.partition('/')[0]}/*" in accepted


def _label(file: PromptFile, kind: str) -> str:
    return f"The file {file.name} ({kind})" if file.name else f"A file ({kind})"


def _describe_missing(file: PromptFile, kind: str, why: str) -> NoteInput:
    return NoteInput(text=f"[{_label(file, kind)} is not shown: {why}.]")
