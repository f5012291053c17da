"""What is known of Gemini models by their names: how they are told to think, what they refuse.

A name that tells nothing gets the answers that no model refuses.
"""

import re
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.model.protocol import Effort
from chatd.providers.effort import raised

Thinking = Literal["none", "budget", "level"]

_NAME: Final = re.compile(r"gemini-(\d+)(?:\.(\d+))?-([a-z0-9.-]+)")
_LATEST: Final = re.compile(r"gemini-(?:pro|flash|flash-lite)-latest")
# Variants that make pictures or speech: they think as they please, or not at all.
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


class Profile(Struct, frozen=True, kw_only=True):
    """`mixes_tools`: the model's own search and our functions may come in one request.

    `strict_signatures`: the first call of a step is refused without a signature.
    `media_results`: a function's response may hold pictures.
    """

    thinking: Thinking = "none"
    levels: tuple[Effort, ...] = ()
    min_budget: int = 0
    max_budget: int = 24_576
    mixes_tools: bool = False
    strict_signatures: bool = False
    media_results: bool = False

    def level(self, effort: Effort) -> Effort:
        return raised(effort, self.levels)

    def budget(self, effort: Effort) -> int:
        """Tokens to think with. 0 is no thinking, where the model can do without."""
        return min(max(_BUDGETS[effort], self.min_budget), self.max_budget)


def profile(model: str) -> Profile:
    name = model.lower().rpartition("/")[2]
    if _OTHER_USE.search(name):
        return Profile()
    match = _NAME.match(name)
    if match is None:
        # Whatever is latest takes a level, but which model that is changes under us.
        return _of_3(("low", "high")) if _LATEST.match(name) else Profile()
    version = (int(match[1]), int(match[2] or 0))
    if version >= (3, 0):
        return _of_3(_levels(version, match[3]))
    if version == (2, 5):
        return _of_2_5(match[3])
    return Profile()


def _levels(version: tuple[int, int], variant: str) -> tuple[Effort, ...]:
    if version == (3, 0) and variant.startswith("pro"):
        return ("low", "high")
    if (version == (3, 0) and variant.startswith("flash")) or (
        version == (3, 1) and variant.startswith("flash-lite")
    ):
        return ("minimal", *_LEVELS)
    return _LEVELS


def _of_3(levels: tuple[Effort, ...]) -> Profile:
    return Profile(
        thinking="level",
        levels=levels,
        max_budget=32_768,
        mixes_tools=True,
        strict_signatures=True,
        media_results=True,
    )


def _of_2_5(variant: str) -> Profile:
    if variant.startswith("pro"):
        return Profile(thinking="budget", min_budget=128, max_budget=32_768)
    return Profile(thinking="budget")
