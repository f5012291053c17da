"""What becomes of a file on its way to a model: which forms a wire takes, and what else to do.

Nothing is dropped in silence: a file that a wire cannot carry becomes text if
it is text, else a sentence that says what the model is not shown.
"""

from typing import Final

from msgspec import Struct

from chatd.domain.model.protocol import PromptFile

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF: Final = "application/pdf"
MIB: Final = 1024 * 1024


class Accepts(Struct, frozen=True, kw_only=True):
    """What one wire takes as it is. Types may end in `/*`."""

    images: frozenset[str] = frozenset()
    documents: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    max_image_bytes: int = 20 * MIB
    max_document_bytes: int = 32 * MIB


ANTHROPIC: Final = Accepts(
    images=IMAGES,
    documents=frozenset({PDF}),
    max_image_bytes=5 * MIB,
)
RESPONSES: Final = Accepts(images=IMAGES, documents=frozenset({PDF}))
COMPLETIONS: Final = Accepts(images=IMAGES, documents=frozenset({PDF}))
# Of servers that call themselves compatible one can expect no more.
COMPATIBLE: Final = Accepts(images=IMAGES)
GEMINI: Final = Accepts(
    images=frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}),
    documents=frozenset({PDF}),
    media=frozenset({"audio/*", "video/*"}),
)


class Image(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes


class Document(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes
    name: str | None


class Media(Struct, frozen=True, kw_only=True):
    """Sound or moving pictures."""

    media_type: str
    data: bytes


class TextFile(Struct, frozen=True, kw_only=True):
    text: str
    name: str | None


class Note(Struct, frozen=True, kw_only=True):
    """Said to the model in the file's stead."""

    text: str


Fitted = Image | Document | Media | TextFile | Note


def fit(file: PromptFile, accepts: Accepts) -> Fitted:
    kind = media_type_of(file)
    size = len(file.data)
    if not size:
        return Note(text=f"[{_label(file, kind)} is empty.]")
    if _in(kind, accepts.images):
        if size < accepts.max_image_bytes:
            return Image(media_type=kind, data=file.data)
        return _not_shown(file, kind, f"larger than {accepts.max_image_bytes // MIB} MiB")
    if _in(kind, accepts.documents):
        if size < accepts.max_document_bytes:
            return Document(media_type=kind, data=file.data, name=file.name)
        return _not_shown(file, kind, f"larger than {accepts.max_document_bytes // MIB} MiB")
    if _in(kind, accepts.media):
        return Media(media_type=kind, data=file.data)
    if is_text(kind):
        return TextFile(text=file.data.decode("utf-8", "replace"), name=file.name)
    return _not_shown(file, kind, "this model does not take files of this type")


def media_type_of(file: PromptFile) -> str:
    """As declared, unless the bytes of an image say otherwise: vendors compare the two."""
    declared = file.media_type.partition(";")[0].strip().lower()
    if declared == "image/jpg":
        declared = "image/jpeg"
    if declared.startswith("image/") or declared in ("", "application/octet-stream"):
        return _sniffed(file.data) or declared or "application/octet-stream"
    return declared


_MAGIC: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def _sniffed(data: bytes) -> str | None:
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


def as_text(file: TextFile) -> str:
    """A text file within a wire's ordinary text."""
    return f"[File: {file.name}]\n{file.text}" if file.name else file.text


def _in(kind: str, accepted: frozenset[str]) -> bool:
    return kind in accepted or f"{kind.partition('/')[0]}/*" in accepted


def _label(file: PromptFile, kind: str) -> str:
    return f"The file {file.name} ({kind})" if file.name else f"A file ({kind})"


def _not_shown(file: PromptFile, kind: str, why: str) -> Note:
    return Note(text=f"[{_label(file, kind)} is not shown: {why}.]")
