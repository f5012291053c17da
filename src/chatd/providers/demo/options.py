"""Options of the demo model."""

from typing import Annotated, Final

from msgspec import Meta, Struct

TOKENS_PER_S: Final = 50.0


class DemoOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    tokens_per_second: Annotated[
        float, Meta(ge=0, le=100_000, description="How fast it speaks; 0: without any pause")
    ] = TOKENS_PER_S
    seed: Annotated[int, Meta(description="Chooses among ways of saying the same")] = 0
    failures: Annotated[
        int, Meta(ge=0, le=100, description="How often it fails when asked for an error")
    ] = 2
