"""What a model can do: known of the vendor's models, reported by the provider, or set by an
administrator."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from chatd.domain.model.protocol import Effort

TokenCount = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class ModelCapabilities(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model can do. A field that is missing is unknown."""

    context_limit: Annotated[
        TokenCount | None,
        Meta(description="Size of the context window in tokens.", examples=[200_000]),
    ] = None
    max_output_tokens: Annotated[
        TokenCount | None, Meta(description="The longest answer in tokens.", examples=[64_000])
    ] = None
    efforts: Annotated[
        tuple[Effort, ...] | None,
        Meta(
            description="The reasoning efforts that the model takes; none for a model that does"
            " not reason.",
            examples=[["low", "medium", "high"]],
        ),
    ] = None
    images: Annotated[
        bool | None, Meta(description="Whether the model reads images.", examples=[True])
    ] = None
    pdfs: Annotated[
        bool | None, Meta(description="Whether the model reads PDF files.", examples=[True])
    ] = None
    web_search: Annotated[
        bool | None,
        Meta(description="Whether the provider searches the web for it.", examples=[True]),
    ] = None


def merge_capabilities(*layers: ModelCapabilities | None) -> ModelCapabilities:
    """For each field the first layer that knows it."""
    known: dict[str, object] = {}
    for layer in reversed([one for one in layers if one is not None]):
        for field in ModelCapabilities.__struct_fields__:
            if (value := getattr(layer, field)) is not None:
                known[field] = value
    return msgspec.convert(known, ModelCapabilities, strict=False)
