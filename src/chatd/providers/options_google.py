"""Options of Google's models: `options` explains the rules."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Threshold = Literal[
    "BLOCK_LOW_AND_ABOVE", "BLOCK_MEDIUM_AND_ABOVE", "BLOCK_ONLY_HIGH", "BLOCK_NONE", "OFF"
]
Category = Literal[
    "HARM_CATEGORY_HARASSMENT",
    "HARM_CATEGORY_HATE_SPEECH",
    "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "HARM_CATEGORY_DANGEROUS_CONTENT",
    "HARM_CATEGORY_CIVIC_INTEGRITY",
]


class ThinkingConfig(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    thinking_budget: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        Meta(description="Tokens the model may think; 0: none, -1: as it likes"),
    ] = None
    thinking_level: Annotated[
        Literal["minimal", "low", "medium", "high"] | None,
        Meta(description="How hard the model thinks, from Gemini 3 on; excludes a budget"),
    ] = None
    include_thoughts: Annotated[bool | None, Meta(description="Show what the model thinks")] = None

    def __post_init__(self) -> None:
        if self.thinking_budget is not None and self.thinking_level is not None:
            raise ValueError("thinking_budget and thinking_level exclude each other")


class SafetySetting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    category: Category
    threshold: Threshold


class GoogleOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    thinking_config: Annotated[
        ThinkingConfig | None, Meta(description="Whether and how the model thinks")
    ] = None
    web_search_enabled: Annotated[
        bool, Meta(description="Let the provider search the web for the model")
    ] = False
    cached_content: Annotated[
        str | None,
        Meta(description="A cache that holds the system prompt and the tools: cachedContents/ID"),
    ] = None
    safety_settings: Annotated[
        tuple[SafetySetting, ...], Meta(description="What is blocked, by category")
    ] = ()
    threshold: Annotated[
        Threshold | None, Meta(description="What is blocked, in categories not named")
    ] = None
