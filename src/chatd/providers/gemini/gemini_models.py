"""Facts about Gemini models by name, and the options of Google's models.

A model with an unknown name gets the settings that every model accepts.
"""

import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from chatd.domain.model.protocol import Effort
from chatd.providers.options import OptionBlock, raise_effort

ThinkingControl = Literal["none", "budget", "level"]

_NAME: Final = re.compile(r"gemini-(\d+)(?:\.(\d+))?-([a-z0-9.-]+)")
_LATEST: Final = re.compile(r"gemini-(?:pro|flash|flash-lite)-latest")
# Variants for images or audio do not take thinking settings.
_OTHER_USE: Final = re.compile(r"image|tts|live|audio|embedding|computer-use|robotics")

_LEVELS: Final[tuple[Effort, ...]] = ("low", "medium", "high")
_BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24_576,
    "xhigh": 32_768,
    "max": 32_768,
}


class GeminiProfile(Struct, frozen=True, kw_only=True):
    """`mixes_tools`: takes the provider's search and functions in one request.

    `strict_signatures`: requires a signature on the first call of a step.
    `media_results`: takes images in a function's response.
    """

    thinking: ThinkingControl = "none"
    levels: tuple[Effort, ...] = ()
    min_budget: int = 0
    max_budget: int = 24_576
    mixes_tools: bool = False
    strict_signatures: bool = False
    media_results: bool = False

    def fit_level(self, effort: Effort) -> Effort:
        return raise_effort(effort, self.levels)

    def fit_budget(self, effort: Effort) -> int:
        """The thinking budget in tokens. 0 disables thinking, where the model allows that."""
        return min(max(_BUDGETS[effort], self.min_budget), self.max_budget)


def gemini_profile(model: str) -> GeminiProfile:
    name = model.lower().rpartition("/")[2]
    if _OTHER_USE.search(name):
        return GeminiProfile()
    match = _NAME.match(name)
    if match is None:
        # The model behind "latest" changes; all of them take these levels.
        return _of_3(("low", "high")) if _LATEST.match(name) else GeminiProfile()
    version = (int(match[1]), int(match[2] or 0))
    if version >= (3, 0):
        return _of_3(_levels(version, match[3]))
    if version == (2, 5):
        return _of_2_5(match[3])
    return GeminiProfile()


def _levels(version: tuple[int, int], variant: str) -> tuple[Effort, ...]:
    if version == (3, 0) and variant.startswith("pro"):
        return ("low", "high")
    if (version == (3, 0) and variant.startswith("flash")) or (
        version == (3, 1) and variant.startswith("flash-lite")
    ):
        return ("minimal", *_LEVELS)
    return _LEVELS


def _of_3(levels: tuple[Effort, ...]) -> GeminiProfile:
    return GeminiProfile(
        thinking="level",
        levels=levels,
        max_budget=32_768,
        mixes_tools=True,
        strict_signatures=True,
        media_results=True,
    )


def _of_2_5(variant: str) -> GeminiProfile:
    if variant.startswith("pro"):
        return GeminiProfile(thinking="budget", min_budget=128, max_budget=32_768)
    return GeminiProfile(thinking="budget")


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


class GeminiThinkingOptions(OptionBlock, frozen=True, kw_only=True):
    thinking_budget: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        Meta(description="Thinking budget in tokens; 0: none, -1: the model decides"),
    ] = None
    thinking_level: Annotated[
        Literal["minimal", "low", "medium", "high"] | None,
        Meta(description="Thinking level, from Gemini 3 on; excludes a budget"),
    ] = None
    include_thoughts: Annotated[bool | None, Meta(description="Return the model's thoughts")] = None

    def __post_init__(self) -> None:
        if self.thinking_budget is not None and self.thinking_level is not None:
            raise ValueError("thinking_budget and thinking_level exclude each other")


class SafetySetting(OptionBlock, frozen=True, kw_only=True):
    category: Category
    threshold: Threshold


class GoogleOptions(OptionBlock, frozen=True, kw_only=True):
    thinking_config: Annotated[
        GeminiThinkingOptions | None, Meta(description="Thinking settings")
    ] = None
    web_search_enabled: Annotated[
        bool, Meta(description="Let the provider search the web for the model")
    ] = False
    cached_content: Annotated[
        str | None,
        Meta(description="A cache of system prompt and tools: cachedContents/ID"),
    ] = None
    safety_settings: Annotated[
        tuple[SafetySetting, ...], Meta(description="Blocking thresholds by category")
    ] = ()
    threshold: Annotated[
        Threshold | None, Meta(description="Blocking threshold of all other categories")
    ] = None
