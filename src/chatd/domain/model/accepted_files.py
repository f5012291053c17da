"""Which files a model takes unchanged, and how large they may be."""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

BYTES_PER_MIB: Final = 1024 * 1024

FileInputKind = Literal["image", "pdf"]
"""What a model can be configured to take. Text is always sent as text."""


class AcceptedFiles(Struct, frozen=True, kw_only=True):
    """The media types that one API takes unchanged. A type may end in `/*`. `max_total_bytes` is of
    all files of a request, which the request contains in base64. The side of an image is in
    pixels; None: no limit."""

    images: frozenset[str] = frozenset()
    documents: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    max_image_bytes: int = 20 * BYTES_PER_MIB
    max_document_bytes: int = 32 * BYTES_PER_MIB
    max_total_bytes: int = 22 * BYTES_PER_MIB
    max_image_side_px: int | None = None

    def takes(self, kind: str) -> bool:
        return any(has_type(kind, kinds) for kinds in (self.images, self.documents, self.media))

    def max_bytes(self, kind: str) -> int:
        """Of one file. A file of this size is too large already."""
        return self.max_image_bytes if has_type(kind, self.images) else self.max_document_bytes

    def limited_to(self, inputs: tuple[FileInputKind, ...] | None) -> "AcceptedFiles":
        """What a model takes of it, by its configuration; None: all of it."""
        if inputs is None:
            return self
        return replace(
            self,
            images=self.images if "image" in inputs else frozenset(),
            documents=self.documents if "pdf" in inputs else frozenset(),
            media=frozenset(),
        )


ANY_IMAGE_OR_PDF: Final = AcceptedFiles(
    images=frozenset({"image/*"}), documents=frozenset({"application/pdf"})
)
"""Of a provider that says nothing."""


def has_type(kind: str, accepted: frozenset[str]) -> bool:
    return kind in accepted or f"{kind.partition('/')[0]}/*" in accepted
